package publisher_test

import (
	"context"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// The network swallows a publish. Its call ends at the timeout, and the next one is not even sent.
func TestConfirmThatNeverComes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout = 500 * time.Millisecond
		p := behindProxy(t, timeout)
		p.recovers()

		p.proxy.Blackhole(true)
		begun := time.Now()
		within(t, timeout, "Publish", func() {
			err := p.say("lost")
			assert.ErrorIs(t, err, publisher.ErrUnknown)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.ErrorContains(t, err, "no answer from the broker within 500ms")
		})
		assert.GreaterOrEqual(t, time.Since(begun), timeout)
		within(t, timeout, "Publish", func() {
			assert.ErrorIs(t, p.say("not even sent"), publisher.ErrNotSent)
		})

		p.proxy.Blackhole(false)
		p.recovers()
		assert.Zero(t, p.bodies()["not even sent"])
	})
}

// The confirm comes after its call has ended. The channel is not used again. The connection, which
// answers, is.
func TestChannelIsNotUsedAfterATimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := behindProxy(t, long)
		require.NoError(t, p.say("before"))

		p.proxy.Delay(400 * time.Millisecond)
		assert.ErrorIs(t, p.sayWithin(100*time.Millisecond, "late"), publisher.ErrUnknown)
		p.proxy.Delay(0)
		require.NoError(t, p.say("after"))

		places := p.client.published()
		require.Len(t, places, 3)
		assert.Equal(t, places[0], places[1])
		assert.NotEqual(t, places[1], places[2], "the channel is used again")
		assert.Equal(t, 1, p.client.connections(), "the connection is not")
		p.hasOnly("before", "late", "after")
	})
}

// Channels of calls that have ended are closed, because thousands would be too many.
func TestChannelsGivenUpAreClosed(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	proxy := testbroker.NewProxy(t, node.URL())
	p := connect(t, proxy.URL(), declare(t, node.URL(), "q", nil), long)
	for range 10 {
		require.NoError(t, p.say("in between"))
		proxy.Delay(100 * time.Millisecond)
		assert.ErrorIs(t, p.sayWithin(20*time.Millisecond, "late"), publisher.ErrUnknown)
		proxy.Delay(0)
	}
	require.NoError(t, p.say("last"))
	await(t, "two channels: the publisher's and the declaration's", func() bool {
		return strings.Count(node.Ctl(t, "list_channels", "name"), " -> ") == 2
	})
	assert.Equal(t, 1, proxy.Connections())
}

func TestCutUnderManyCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := behindProxy(t, 10*time.Second)
		const n, each, cuts = 32, 150, 4
		var done atomic.Int64
		cutting := make(chan struct{})
		go func() {
			defer close(cutting)
			for cut := range int64(cuts) {
				at := (cut + 1) * n * each / (cuts + 1)
				await(t, "calls before a cut", func() bool { return done.Load() >= at })
				p.proxy.Cut()
				// Two cuts in a row would be one.
				await(t, "the next connection", func() bool {
					return p.proxy.Connections() == int(cut)+2
				})
			}
		}()
		var calls []call
		within(t, patience, "publishing through cuts", func() {
			calls = callers(n, each, func(_ int, body string) error {
				defer done.Add(1)
				return p.say(body)
			})
		})
		<-cutting
		for _, c := range calls {
			if c.err != nil {
				assert.ErrorIs(t, c.err, publisher.ErrUnknown)
			}
			assert.Less(t, c.took, 10*time.Second+slack)
		}
		assert.Greater(t, p.succeeded(calls), n*each/2)
		assert.Equal(t, 1+cuts, p.proxy.Connections())
	})
}

func TestBrokerRestartsUnderManyCallers(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*testbroker.Node, testing.TB){
		"stopped": (*testbroker.Node).Stop,
		"killed":  (*testbroker.Node).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const timeout = 2 * time.Second
			p, node := onNode(t, timeout)
			require.NoError(t, p.Healthy())
			// A broker with Mnesia that is killed within two seconds may forget the queue, because it
			// writes its log late. 4.3 has no Mnesia.
			node.Ctl(t, "eval", "catch mnesia:sync_log().")

			stop, result := make(chan struct{}), make(chan []call, 1)
			var published atomic.Int64
			var last atomic.Pointer[error]
			go func() {
				result <- callers(16, math.MaxInt, func(_ int, body string) error {
					select {
					case <-stop:
						return errEnough
					default:
					}
					err := p.say(body)
					if err == nil {
						published.Add(1)
					} else {
						last.Store(&err)
					}
					return err
				})
			}()
			defer func() {
				if err := last.Load(); t.Failed() && err != nil {
					t.Logf("the last error of a call was: %v", *err)
				}
			}()
			publishes := func(more int64) {
				at := published.Load() + more
				await(t, "publishes", func() bool { return published.Load() > at })
			}
			publishes(500)
			end(node, t)
			p.unhealthy()
			node.Start(t)
			publishes(500)
			close(stop)
			var calls []call
			within(t, timeout, "the calls", func() { calls = <-result })
			for _, c := range calls {
				assert.Less(t, c.took, timeout+slack)
			}
			assert.NoError(t, p.Healthy())
			assert.Greater(t, p.succeeded(calls), 1000)
		})
	}
}

func TestHealthyFollowsTheConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := behindProxy(t, long)
		assert.NoError(t, p.Healthy())
		p.proxy.Refuse(true)
		p.proxy.Cut()
		p.unhealthy()
		assert.ErrorContains(t, p.Healthy(), "not connected")
		p.proxy.Refuse(false)
		await(t, "healthy", func() bool { return p.Healthy() == nil })
		p.Close()
		assert.ErrorIs(t, p.Healthy(), publisher.ErrClosed)
	})
}
