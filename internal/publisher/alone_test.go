package publisher_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// Headers that fill the frame to the last byte: a nonce would not fit.
func TestAloneWithoutANonce(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue, missing := declare(t, url, nil), testbroker.Queue(t)
	p := open(t, url, long)
	// A frame of 131072 has 8 bytes of its own, 14 before the properties, 4 before
	// the table, and a key of 3 with its length, type and the length of the value.
	full := amqp.Publishing{Headers: amqp.Table{"big": strings.Repeat("x", 131072-8-14-4-1-3-1-4)}}
	require.ErrorIs(t, p.Publish(t.Context(), "", queue, full), publisher.ErrNotSent)

	var wg sync.WaitGroup
	for range 8 { // side by side, each knows what became of its own
		wg.Go(func() {
			assert.NoError(t, p.PublishAlone(t.Context(), nil, "", queue, &full))
			var returned *publisher.ReturnedError
			assert.ErrorAs(t, p.PublishAlone(t.Context(), nil, "", missing, &full), &returned)
		})
	}
	wg.Wait()
	for range 8 {
		msg, ok, err := testbroker.Channel(t, url).Get(queue, true)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, full.Headers, msg.Headers)
	}
	full.MessageId = "x"
	require.ErrorIs(t, p.PublishAlone(t.Context(), nil, "", queue, &full), publisher.ErrNotSent)
}

func TestAloneWhileTheBrokerIsAway(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue := declare(t, url, nil)
	proxy := testbroker.NewProxy(t, url)
	p := open(t, proxy.URL(), 500*time.Millisecond)
	proxy.Blackhole(true)
	for range 3 {
		within(t, 10*time.Second, "a publish while the broker is away", func() {
			require.Error(t, p.PublishAlone(t.Context(), nil, "", queue, &amqp.Publishing{}))
		})
	}
	proxy.Blackhole(false)
	testbroker.WaitFor(t, "publishing works again", time.Minute, func() bool {
		return p.PublishAlone(t.Context(), nil, "", queue, &amqp.Publishing{}) == nil
	})
	p.Close()
	require.ErrorIs(t, p.PublishAlone(t.Context(), nil, "", queue, &amqp.Publishing{}), publisher.ErrClosed)
}
