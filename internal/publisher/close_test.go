package publisher_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// goodbye is how long a Close may wait for the broker.
const goodbye = 2 * time.Second

func TestPublishAfterClose(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue := declare(t, url, nil)
	for _, used := range []bool{false, true} {
		p := open(t, url, long)
		if used {
			require.NoError(t, p.say(t.Context(), queue, "before"))
		}
		p.Close()
		p.Close()
		assert.ErrorIs(t, p.say(t.Context(), queue, "never"), publisher.ErrClosed)
		assert.ErrorIs(t, p.Do(t.Context(), func(*amqp.Channel) error { return nil }), publisher.ErrClosed)
		assert.ErrorIs(t, p.Healthy(), publisher.ErrClosed)
	}
	assert.Equal(t, map[string]int{"before": 1}, bodies(t, url, queue))
}

func TestCloseUnderManyCallers(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue := declare(t, url, nil)
	p := open(t, url, long)
	var published atomic.Int64
	var closing sync.WaitGroup
	closing.Go(func() {
		testbroker.WaitFor(t, "publishes", patience, func() bool { return published.Load() > 200 })
		var all sync.WaitGroup
		for range 3 {
			all.Go(p.Close)
		}
		within(t, goodbye, "Close", all.Wait)
	})
	var calls []call
	within(t, patience, "publishing until Close", func() {
		calls = callers(32, 300, func(_ int, body string) error {
			err := p.say(t.Context(), queue, body)
			if err == nil {
				published.Add(1)
			}
			return err
		})
	})
	closing.Wait()
	closed := 0
	for _, c := range calls {
		if c.err != nil {
			closed++
			if !assert.True(t, isAny(c.err, publisher.ErrClosed, publisher.ErrUnknown), "%v", c.err) {
				break
			}
		}
	}
	assert.Positive(t, closed)
	assert.EqualValues(t, published.Load(), noFalseSuccess(t, calls, url, queue))
}

func TestCloseEndsCallsThatWaitForAConnection(t *testing.T) {
	t.Parallel()
	proxy := testbroker.NewProxy(t, testbroker.URL(t))
	p := open(t, proxy.URL(), long)
	proxy.Refuse(true)
	proxy.Cut()
	testbroker.WaitFor(t, "the loss to be noticed", patience, func() bool { return p.Healthy() != nil })
	results := make(chan error, 8)
	for range cap(results) {
		go func() { results <- p.say(t.Context(), "any", "never") }()
	}
	within(t, goodbye, "Close", p.Close)
	within(t, 0, "the calls", func() {
		for range cap(results) {
			assert.ErrorIs(t, <-results, publisher.ErrClosed)
		}
	})
}

func TestCloseEndsCallsThatWaitForTheirConfirm(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue := declare(t, url, nil)
	proxy := testbroker.NewProxy(t, url)
	p := open(t, proxy.URL(), long)
	require.NoError(t, p.say(t.Context(), queue, "before"))
	proxy.Blackhole(true)
	results := make(chan error, 8)
	for range cap(results) {
		go func() { results <- p.say(t.Context(), queue, "lost") }()
	}
	testbroker.WaitFor(t, "the publishes", patience, func() bool { return proxy.Publishes() == 1+cap(results) })
	within(t, goodbye, "Close", p.Close)
	within(t, 0, "the calls", func() {
		for range cap(results) {
			assert.ErrorIs(t, <-results, publisher.ErrUnknown)
		}
	})
}
