package publisher_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/publisher"
)

// endsWith waits for the results of calls that were under way when the publisher was closed.
func endsWith(t *testing.T, results chan error, want error) {
	t.Helper()
	within(t, 0, "the calls", func() {
		for range cap(results) {
			assert.ErrorIs(t, <-results, want)
		}
	})
}

func TestPublishAfterClose(t *testing.T) {
	t.Parallel()
	for _, used := range []bool{false, true} {
		p := onBroker(t, nil)
		var said []string
		if used {
			said = []string{"before"}
			require.NoError(t, p.say("before"))
		}
		p.Close()
		p.Close()
		assert.ErrorIs(t, p.say("never"), publisher.ErrClosed)
		err := p.Do(t.Context(), func(*amqp.Channel) error { return nil })
		assert.ErrorIs(t, err, publisher.ErrClosed)
		assert.ErrorIs(t, p.Healthy(), publisher.ErrClosed)
		p.hasOnly(said...)
	}
}

func TestCloseUnderManyCallers(t *testing.T) {
	t.Parallel()
	p := onBroker(t, nil)
	var published atomic.Int64
	var closing sync.WaitGroup
	closing.Go(func() {
		await(t, "publishes", func() bool { return published.Load() > 200 })
		var all sync.WaitGroup
		for range 3 {
			all.Go(p.Close)
		}
		within(t, goodbye, "Close", all.Wait)
	})
	var calls []call
	within(t, patience, "publishing until Close", func() {
		calls = callers(32, 300, func(_ int, body string) error {
			err := p.say(body)
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
			if !isAny(t, c.err, publisher.ErrClosed, publisher.ErrUnknown) {
				break
			}
		}
	}
	assert.Positive(t, closed)
	assert.EqualValues(t, published.Load(), p.succeeded(calls))
}

func TestCloseEndsCallsThatWaitForAConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := behindProxy(t, long)
		p.proxy.Refuse(true)
		p.proxy.Cut()
		p.unhealthy()
		results := p.begin(8, "never")
		within(t, goodbye, "Close", p.Close)
		endsWith(t, results, publisher.ErrClosed)
	})
}

func TestCloseEndsCallsThatWaitForTheirConfirm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := behindProxy(t, long)
		require.NoError(t, p.say("before"))
		p.proxy.Blackhole(true)
		results := p.begin(8, "lost")
		p.awaitPublished(1 + cap(results))
		within(t, goodbye, "Close", p.Close)
		endsWith(t, results, publisher.ErrUnknown)
	})
}
