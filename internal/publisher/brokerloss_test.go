package publisher_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/testing/frame"
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

// The confirm comes after its call has ended. The channel is closed and not used again. The
// connection, which answers, is.
func TestChannelIsNotUsedAfterATimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		before := behindProxy(t, long)
		var channels atomic.Int32
		before.proxy.Tap(func(seen testbroker.Seen) testbroker.Fault {
			switch seen.Method() {
			case frame.ChannelOpen:
				channels.Add(1)
			case frame.ChannelClose:
				channels.Add(-1)
			}
			return testbroker.Fault{}
		})
		p := connect(t, before.proxy.URL(), before.queue, long) // the tap sees new connections
		p.url, p.proxy = before.url, before.proxy
		require.NoError(t, p.say("before"))

		p.proxy.Delay(400 * time.Millisecond)
		assert.ErrorIs(t, p.sayWithin(100*time.Millisecond, "late"), publisher.ErrUnknown)
		p.proxy.Delay(0)
		require.NoError(t, p.say("after"))

		places := p.client.published()
		require.Len(t, places, 3)
		assert.Equal(t, places[0], places[1])
		assert.NotEqual(t, places[1], places[2], "the channel is used again")
		await(t, "the channel to be closed", func() bool { return channels.Load() == 1 })
		assert.Equal(t, 1, p.client.connections(), "the connection is not")
		p.hasOnly("before", "late", "after")
	})
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

func TestHealthyFollowsTheConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := behindProxy(t, long)
		assert.NoError(t, p.Healthy())
		p.cutOff()
		assert.ErrorContains(t, p.Healthy(), "not connected")
		p.proxy.Refuse(false)
		await(t, "healthy", func() bool { return p.Healthy() == nil })
		p.Close()
		assert.ErrorIs(t, p.Healthy(), publisher.ErrClosed)
	})
}

const (
	lowMemory  = "0.000001"
	muchMemory = "0.4"
)

// memory sets the watermark of a node. lowMemory raises an alarm.
func memory(t *testing.T, node *testbroker.Node, watermark string) {
	t.Helper()
	node.Ctl(t, "set_vm_memory_high_watermark", watermark)
}

// The broker lives and takes no byte more. A write without a limit would hold the channel for as
// long as that lasts.
func TestWriteThatGetsNowhereEndsTheConnection(t *testing.T) {
	t.Parallel()
	const timeout = time.Second // a single write may take much longer
	url := testbroker.URL(t)
	p := connect(t, url, declare(t, url, testbroker.Queue(t), nil), timeout)
	p.recovers()
	p.recovers() // on the common channel, even if a confirm was late before
	connections := p.client.connections()

	p.client.stall()
	body := strings.Repeat("x", 16<<20)
	within(t, timeout, "Publish", func() { assert.ErrorIs(t, p.say(body), publisher.ErrUnknown) })
	testbroker.WaitFor(t, "the connection to be given up", timeout+slack, func() bool {
		return p.client.connections() > connections
	})
	p.recovers()
	assert.Zero(t, p.bodies()[body])
}

// A caller gives up while its message cannot be written. That ends its own wait and not the write,
// because other messages are behind it: neither is the write cut off, nor is its channel closed in
// the middle of the message, which would end the connection.
func TestContextEndsTheWaitForAWrite(t *testing.T) {
	t.Parallel()
	for name, resumed := range map[string]bool{"until Close": false, "until it goes on": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := onBroker(t, nil)
			require.NoError(t, p.say("before"))

			resume := p.client.stall()
			ctx, cancel := context.WithCancel(t.Context())
			result := make(chan error, 1)
			body := strings.Repeat("x", 12<<20)
			go func() { result <- p.sayTo(ctx, p.queue, body) }()
			p.awaitPublished(2)
			cancel()
			within(t, 0, "Publish", func() { assert.ErrorIs(t, <-result, publisher.ErrUnknown) })
			if !resumed {
				within(t, goodbye, "Close", p.Close)
				return
			}
			resume()
			require.NoError(t, p.say("after"))
			await(t, "the whole message", func() bool {
				return testbroker.Depth(t, p.url, p.queue) == 3
			})
			p.hasOnly("before", body, "after")
			assert.Equal(t, 1, p.client.connections(), "the connection was ended")
		})
	}
}

// While the broker is known not to read, nothing more is written. So the outcome of a publish
// during the alarm is never in doubt, and its channel is used again afterwards.
func TestNothingIsSentDuringAnAlarm(t *testing.T) {
	t.Parallel()
	p, node := onNode(t, long)
	require.NoError(t, p.say("before"))
	closing := connect(t, node.URL(), declare(t, node.URL(), "other", nil), long)
	memory(t, node, lowMemory)
	first := p.begin(1, "first") // the broker blocks the connection because of it
	p.unhealthy()
	closing.begin(1, "of a publisher that closes")
	closing.unhealthy()
	within(t, goodbye, "Close during the alarm", closing.Close)
	sent := p.client.published()

	for _, c := range callers(8, 1, func(int, string) error {
		return p.sayWithin(200*time.Millisecond, "never")
	}) {
		assert.ErrorIs(t, c.err, publisher.ErrNotSent)
		assert.ErrorContains(t, c.err, "blocked publishing")
	}
	assert.Equal(t, sent, p.client.published(), "something was written")

	patient := p.begin(1, "patient")
	memory(t, node, muchMemory)
	within(t, patience, "publishing", func() {
		assert.NoError(t, <-first)
		assert.NoError(t, <-patient)
	})
	assert.NoError(t, p.Healthy())
	places := p.client.published()
	assert.Equal(t, places[0], places[len(places)-1], "another channel")
	p.hasOnly("before", "first", "patient")
}
