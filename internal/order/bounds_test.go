package order_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/order"
)

// began counts the messages that a Line of three messages lets begin.
type began struct{ handled, followed int }

// pour gives n messages of as many keys to a Line of three messages and fails each that is handled.
func pour(n int, careful, must bool) (b began, messages int) {
	l := order.New[int](order.Limits{Messages: 3, Bytes: 1 << 20})
	l.BeCareful(careful, 1)
	l.Know(1, true)
	now := time.Unix(1000, 0)
	for i := range n {
		l.Arrived(fmt.Sprint("key", i), i, careful, must)
		for step, ok := l.Next(now); ok; step, ok = l.Next(now) {
			if step.Follows {
				b.followed++
			} else {
				b.handled++
			}
			l.Ended(step, true)
			l.Returned(order.Waiting[int]{
				Key: step.Key, Seq: step.Seq, ID: step.ID, Due: now.Add(time.Hour), Size: 1, Item: step.Item,
			})
		}
	}
	messages, _ = l.Len()
	return b, messages
}

// All messages of the line are in memory, and the broker delivers no more than 65535. So a line
// that only grows would end all handling.
func TestTheLineIsBounded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ careful, must bool }{
		"each message fails, and has another key": {},
		"each message goes through the line":      {careful: true},
		"each message must leave its queue":       {must: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, messages := pour(70_000, c.careful, c.must)
			require.Less(t, messages, 10_000)
		})
	}
}

// Nothing is handled before the messages that must follow, also if it came first: nothing stands
// still, and a handler that ends the process brings no message nearer to the delivery limit.
func TestWhatMustFollowGoesFirst(t *testing.T) {
	t.Parallel()
	l := order.New[string](order.Limits{Messages: 3, Bytes: 1 << 20})
	l.Returned(order.Waiting[string]{Key: "line", Seq: 1, ID: order.ID{Epoch: 1, N: 1}, Item: "line"})
	l.Know(1, true)
	for i := range 4 {
		l.Arrived(fmt.Sprint("free", i), "free", false, false)
		l.Arrived(fmt.Sprint("must", i), "must", false, true)
	}
	var items []string
	for step, ok := l.Next(time.Time{}); ok; step, ok = l.Next(time.Time{}) {
		items = append(items, step.Item)
	}
	require.Equal(t, []string{"must", "must", "must", "must"}, items[:4])
	require.Len(t, items, 9)
}

// Given more messages that must follow than there is room for, then messages of the line are
// handled until there is.
func TestMessagesThatMustFollowWaitForRoom(t *testing.T) {
	t.Parallel()
	const n = order.Reserve + order.Reserve/4
	l := order.New[int](order.Limits{Messages: 3, Bytes: 1 << 20})
	l.Know(1, true)
	for i := range n {
		l.Arrived(fmt.Sprint("key", i), i, false, true)
	}
	handled := 0
	for step, ok := l.Next(time.Time{}); ok; step, ok = l.Next(time.Time{}) {
		l.Ended(step, step.Follows)
		if !step.Follows {
			handled++
			continue
		}
		l.Returned(order.Waiting[int]{
			Key: step.Key, Seq: step.Seq, ID: step.ID, Size: 1, Item: step.Item,
		})
	}
	require.Equal(t, n, handled)
}

// Given more messages in hand than are tried together, when messages begin to be tried, then a
// token names as many as the next process reads.
func TestATokenNamesWhatIsInHand(t *testing.T) {
	t.Parallel()
	l := order.New[int](order.Limits{Messages: 100, Bytes: 1 << 20})
	inHand := map[order.ID]bool{}
	for n := range order.MaxTried + 8 {
		l.Returned(order.Waiting[int]{ID: order.ID{Epoch: 1, N: uint64(n)}, Item: n})
	}
	l.Know(2, true)
	for step, ok := l.Next(time.Time{}); ok; step, ok = l.Next(time.Time{}) {
		inHand[step.From] = true
	}
	l.BeCareful(true, order.MaxTried)
	alone, together := l.Trying()
	require.Zero(t, alone)
	require.Len(t, together, order.MaxTried)
	for _, id := range together {
		require.True(t, inHand[id])
	}
}

// The epoch of a process that has led counts up to the highest that a process can reach.
func TestTheHighestEpochThatCounts(t *testing.T) {
	t.Parallel()
	const highest = order.MaxEpoch + order.MaxJump
	for epoch, counts := range map[uint64]bool{
		order.MaxEpoch: true, highest: true, highest + 1: false,
	} {
		l := order.New[int](order.Limits{})
		l.Led(epoch)
		require.Equal(t, counts, l.Seen(epoch))
		require.Equal(t, counts, l.Epoch() == epoch)
	}
}
