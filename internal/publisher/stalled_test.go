package publisher_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// The peer lives, sends heartbeats, and takes no byte more: without a limit of
// its own a write would hold the channel for as long as that lasts.
func TestWriteThatGetsNowhereEndsTheConnection(t *testing.T) {
	t.Parallel()
	broker := testbroker.URL(t)
	queue := declare(t, broker, nil)
	n, address := startNarrow(t, broker)
	const timeout = time.Second
	p := open(t, address, timeout) // a single write may take much longer
	p.recovers(t, queue)
	p.recovers(t, queue) // on the common channel, also where a confirm was late before
	accepted := n.accepted()

	n.stall()
	body := strings.Repeat("x", 16<<20)
	within(t, timeout, "Publish", func() {
		assert.ErrorIs(t, p.say(t.Context(), queue, body), publisher.ErrUnknown)
	})
	testbroker.WaitFor(t, "the connection to be given up", timeout+slack, func() bool { return n.accepted() > accepted })
	p.recovers(t, queue)
	assert.Zero(t, bodies(t, broker, queue)[body])
}

// A caller that gives up ends its own wait, not the write: others are behind it.
func TestContextEndsTheWaitForAWrite(t *testing.T) {
	t.Parallel()
	broker := testbroker.URL(t)
	queue := declare(t, broker, nil)
	n, address := startNarrow(t, broker)
	p := open(t, address, long)
	require.NoError(t, p.say(t.Context(), queue, "before"))

	n.stall()
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- p.say(ctx, queue, strings.Repeat("x", 16<<20)) }()
	testbroker.WaitFor(t, "the publish", patience, func() bool { return len(p.recorder.published()) == 2 })
	cancel()
	within(t, 0, "Publish", func() { assert.ErrorIs(t, <-result, publisher.ErrUnknown) })
	within(t, goodbye, "Close", p.Close)
}

// The write that its caller has left is neither cut off nor is its channel
// closed in the middle of the message, which would end the connection.
func TestWriteGoesOnWithoutItsCaller(t *testing.T) {
	t.Parallel()
	broker := testbroker.URL(t)
	queue := declare(t, broker, nil)
	n, address := startNarrow(t, broker)
	p := open(t, address, long)
	require.NoError(t, p.say(t.Context(), queue, "before"))

	resume := n.stall()
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	body := strings.Repeat("x", 12<<20)
	go func() { result <- p.say(ctx, queue, body) }()
	testbroker.WaitFor(t, "the publish", patience, func() bool { return len(p.recorder.published()) == 2 })
	cancel()
	assert.ErrorIs(t, <-result, publisher.ErrUnknown)
	resume()

	require.NoError(t, p.say(t.Context(), queue, "after"))
	testbroker.WaitFor(t, "the whole message", patience, func() bool { return testbroker.Depth(t, broker, queue) == 3 })
	assert.Equal(t, map[string]int{"before": 1, body: 1, "after": 1}, bodies(t, broker, queue))
	assert.Equal(t, 1, n.accepted(), "the connection was ended")
}

// A broker that lives and confirms nothing, as one whose quorum queue has lost
// its majority: the connection is kept, and each call ends in time.
func TestConfirmsThatNeverComeCostNoConnection(t *testing.T) {
	t.Parallel()
	broker := testbroker.URL(t)
	queue := declare(t, broker, nil)
	n, address := startNarrow(t, broker)
	p := open(t, address, long)
	require.NoError(t, p.say(t.Context(), queue, "before"))
	release := n.holdConfirms()
	const limit = 300 * time.Millisecond
	calls := callers(8, 3, func(_ int, body string) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		return p.say(ctx, queue, body)
	})
	for _, c := range calls {
		// Not sent, where the next channel was not open in time.
		assert.True(t, isAny(c.err, publisher.ErrUnknown, publisher.ErrNotSent), "%v", c.err)
		assert.Less(t, c.took, limit+slack)
	}
	release()
	p.recovers(t, queue)
	assert.Equal(t, 1, n.accepted(), "the connection was ended")
}

// More returns at once than the channel holds places for would block the
// reader, and after five seconds a lost return would look like success.
func TestReturnsOfMoreCallersThanPlaces(t *testing.T) {
	t.Parallel()
	broker := testbroker.URL(t)
	n, address := startNarrow(t, broker)
	p := open(t, address, long)
	missing := testbroker.Queue(t)
	release := n.holdConfirms()
	const all, places = 5000, 200
	result := make(chan []call, 1)
	go func() {
		result <- callers(all, 1, func(_ int, body string) error { return p.say(t.Context(), missing, body) })
	}()
	testbroker.WaitFor(t, "as many publishes as there are places", patience, func() bool {
		return len(p.recorder.published()) == places
	})
	release()
	within(t, patience, "the calls", func() {
		for _, c := range <-result {
			var returned *publisher.ReturnedError
			assert.ErrorAs(t, c.err, &returned)
		}
	})
	assert.Len(t, p.recorder.published(), all)
}
