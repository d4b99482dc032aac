package publisher_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// 150 messages are started at an exchange that has not worked yet, so that its channel has one
// place. No Start waits for a call of wait, and the messages keep their order.
func TestStartDoesNotWaitForItself(t *testing.T) {
	t.Parallel()
	p := onBroker(t, nil)
	exchange := p.queue + ".exchange"
	p.bind(exchange)
	var waits []func() error
	within(t, 0, "starting", func() {
		for i := range 150 {
			wait, err := p.Start(t.Context(), exchange, "", amqp.Publishing{Body: fmt.Append(nil, i)})
			require.NoError(t, err)
			waits = append(waits, wait)
		}
	})
	for _, wait := range waits {
		assert.NoError(t, wait())
	}
	ch := testbroker.Channel(t, p.url)
	for i := range waits {
		msg, ok, err := ch.Get(p.queue, true)
		require.NoError(t, err)
		require.True(t, ok)
		assert.Equal(t, fmt.Sprint(i), string(msg.Body), "order")
	}
}

// Headers fill the frame to the last byte, so that a nonce does not fit.
func TestAloneWithoutANonce(t *testing.T) {
	t.Parallel()
	p := onBroker(t, nil)
	missing := testbroker.Queue(t)
	const overhead = 8 + 14 + 4 // the frame, the bytes before the properties, the table's length
	const key = 1 + 3 + 1 + 4   // the key's length, the key, the type, the value's length
	value := strings.Repeat("x", 131072-overhead-key)
	full := amqp.Publishing{Headers: amqp.Table{"big": value}}
	require.ErrorIs(t, p.Publish(t.Context(), "", p.queue, full), publisher.ErrNotSent)

	var wg sync.WaitGroup
	for range 8 { // side by side, each gets its own outcome
		wg.Go(func() {
			assert.NoError(t, p.PublishAlone(t.Context(), nil, to(p.queue), &full))
			isReturned(t, p.PublishAlone(t.Context(), nil, to(missing), &full))
		})
	}
	wg.Wait()
	for range 8 {
		require.Equal(t, full.Headers, p.get().Headers)
	}
	full.MessageId = "x"
	err := p.PublishAlone(t.Context(), nil, to(p.queue), &full)
	require.ErrorIs(t, err, publisher.ErrNotSent)
}

// to is the target of a queue.
func to(queue string) publisher.Target { return publisher.Target{RoutingKey: queue} }

// kept is the same at an exchange that keeps messages.
func kept(queue string) publisher.Target {
	return publisher.Target{RoutingKey: queue, Kept: true}
}

// A message that an exchange keeps is not mandatory, so no return says that it failed.
func TestKeptMessageIsNotReturned(t *testing.T) {
	t.Parallel()
	p := onBroker(t, nil)
	missing := testbroker.Queue(t)
	msg := func() *amqp.Publishing { return &amqp.Publishing{Headers: amqp.Table{}} }
	require.NoError(t, p.PublishFor(t.Context(), nil, kept(missing), msg()))
	isReturned(t, p.PublishFor(t.Context(), nil, to(missing), msg()))
	require.NoError(t, p.PublishFor(t.Context(), nil, kept(p.queue), msg()))
	require.NotEmpty(t, p.get().Headers[nonce], "it has a nonce as any other")
}

func TestAloneWhileTheBrokerIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := behindProxy(t, 500*time.Millisecond)
		publish := func() error {
			return p.PublishAlone(t.Context(), nil, to(p.queue), &amqp.Publishing{})
		}
		p.proxy.Blackhole(true)
		for range 3 {
			within(t, 0, "a publish while the broker is away", func() { require.Error(t, publish()) })
		}
		within(t, 500*time.Millisecond, "Do", func() {
			err := p.Do(t.Context(), func(*amqp.Channel) error { return nil })
			assert.ErrorIs(t, err, context.DeadlineExceeded)
		})
		p.proxy.Blackhole(false)
		await(t, "publishing works again", func() bool { return publish() == nil })
		p.Close()
		require.ErrorIs(t, publish(), publisher.ErrClosed)
	})
}
