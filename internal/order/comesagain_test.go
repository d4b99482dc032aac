package order_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/order"
)

// id is an ID of the process that has ended.
func id(n uint64) order.ID { return order.ID{Epoch: 1, N: n} }

// marked is the line of a process that was killed between the mark and the ack of a dead letter:
// the message, a later one of its key, and the mark of a message.
func marked(of order.ID) *order.Line[string] {
	l := order.New[string](order.Limits{Messages: 10, Bytes: 1 << 20})
	for _, w := range []order.Waiting[string]{
		{Seq: 1, ID: id(2), First: id(1), Item: "message"},
		{Seq: 2, ID: id(3), Item: "later"},
		{Seq: 1, ID: id(4), First: of, Block: true, Item: "mark"},
	} {
		w.Key = "a"
		l.Returned(w)
	}
	l.Know(2, true)
	return l
}

// items returns the messages that may begin now.
func items(l *order.Line[string]) (all []string) {
	for step, ok := l.Next(time.Unix(1000, 0)); ok; step, ok = l.Next(time.Unix(1000, 0)) {
		all = append(all, step.Item)
		l.Ended(step, false)
	}
	return all
}

// A process was killed between the mark and the ack of its message, which comes again.
func TestAMessageComesAgainBesideItsMark(t *testing.T) {
	t.Parallel()
	begin := func(t *testing.T) (*order.Line[string], *order.Step[string]) {
		t.Helper()
		l := marked(id(1))
		step, ok := l.Next(time.Unix(1000, 0))
		require.True(t, ok)
		require.Equal(t, "message", step.Item)
		require.Equal(t, id(4), step.Mark)
		require.Equal(t, id(1), step.First)
		return l, step
	}
	t.Run("it is handled: the key goes on", func(t *testing.T) {
		t.Parallel()
		l, step := begin(t)
		l.Ended(step, false)
		require.Equal(t, []string{"mark"}, l.Release("a", step.Mark))
		require.Equal(t, []string{"later"}, items(l))
		n, _ := l.Len()
		require.Zero(t, n)
	})
	t.Run("it waits again: it goes first", func(t *testing.T) {
		t.Parallel()
		l, step := begin(t)
		l.Ended(step, true)
		require.Equal(t, []string{"mark"}, l.Release("a", step.Mark))
		require.Empty(t, items(l), "its copy has not come back")
		l.Returned(order.Waiting[string]{
			Key: "a", Seq: 1, ID: step.ID, First: step.First, Item: "copy",
		})
		require.Equal(t, []string{"copy", "later"}, items(l))
	})
	t.Run("it is dead again: the one mark blocks the key", func(t *testing.T) {
		t.Parallel()
		l, step := begin(t)
		l.Ended(step, false)
		require.Empty(t, items(l))
		for k := range l.Keys {
			require.Equal(t, step.Mark, k.MarkID)
			require.Equal(t, 2, k.Waiting)
		}
		require.Equal(t, []string{"mark"}, l.Release("a", step.Mark))
		require.Equal(t, []string{"later"}, items(l))
	})
	t.Run("it is handled while a person releases the key: its outcome decides", func(t *testing.T) {
		t.Parallel()
		l, step := begin(t)
		require.Empty(t, l.Release("a", step.Mark))
		l.Ended(step, false)
		require.Empty(t, items(l))
	})
	t.Run("it is handled while the line is read again: the mark stays with it", func(t *testing.T) {
		t.Parallel()
		l, step := begin(t)
		require.Equal(t, []string{"later"}, l.Forget())
		l.Ended(step, false)
		require.Equal(t, []string{"mark"}, l.Release("a", step.Mark))
	})
}

// The numbers of a key begin anew when the line has none of its messages. A letter that is replayed
// late may so have the number of another letter, which blocks the key.
func TestAMarkOfAnotherMessageWithTheSameNumber(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]order.ID{"a first copy": id(9), "no copy before": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := marked(of)
			step, ok := l.Next(time.Unix(1000, 0))
			require.True(t, ok)
			require.Zero(t, step.Mark)
			l.Ended(step, false)
			require.Empty(t, items(l))
		})
	}
}

// Given a message of the queue whose mark is in the line, while it is not acked, then no later
// message goes to the line: if the process ends, the first comes again, and would be behind it.
func TestNothingFollowsAMessageThatIsNotAcked(t *testing.T) {
	t.Parallel()
	l := order.New[string](order.Limits{Messages: 10, Bytes: 1 << 20})
	l.Know(1, true)
	l.Arrived("a", "first", false, false)
	l.Arrived("a", "second", false, false)
	step, ok := l.Next(time.Time{})
	require.True(t, ok)
	l.Returned(order.Waiting[string]{Key: "a", Seq: 1, ID: step.ID, Block: true, Item: "mark"})
	_, ok = l.Next(time.Time{})
	require.False(t, ok)
	l.Ended(step, true)
	step, ok = l.Next(time.Time{})
	require.True(t, ok)
	require.True(t, step.Follows)
	require.Equal(t, "second", step.Item)
}

// A token names the messages that its process tries. An earlier version ignores the last word. A
// forged token names no more than a process tries together.
func TestATokenNamesTheMessagesThatAreTried(t *testing.T) {
	t.Parallel()
	plain := order.Note{Kind: order.Token, Epoch: 5, Name: "x", Ahead: 256, Crashes: 3}
	alone, together := plain, plain
	alone.Trying, together.Together = id(3), []order.ID{id(3), {Epoch: 2, N: 9}}
	for text, want := range map[string]order.Note{
		"token 5 x 256 3 0-0": plain, "token 5 x 256 3 1-3": alone,
		"token 5 x 256 3 0-0 1-3,2-9": together,
	} {
		require.Equal(t, want, order.ParseNote(text))
		require.Equal(t, text, want.String())
	}
	forged := order.ParseNote("token 5 x 256 3 0-0 " + strings.Repeat(",1-3", 1000))
	require.Len(t, forged.Together, order.MaxTried)
}

func TestTheFirstCopyIsNamedInTheHeader(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]order.Note{
		"wait 7 2-9 1-3":  {Kind: order.Wait, Seq: 7, ID: order.ID{Epoch: 2, N: 9}, First: id(3)},
		"block 7 2-9 1-3": {Kind: order.Block, Seq: 7, ID: order.ID{Epoch: 2, N: 9}, First: id(3)},
		// Of earlier versions:
		"wait 7 2-9": {Kind: order.Wait, Seq: 7, ID: order.ID{Epoch: 2, N: 9}},
	} {
		require.Equal(t, want, order.ParseNote(text))
		require.Equal(t, text, want.String())
	}
	first := order.Note{Kind: order.Wait, Seq: 7, ID: id(3), First: id(3)}
	require.Equal(t, "wait 7 1-3", first.String())
}
