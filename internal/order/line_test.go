package order_test

import (
	"fmt"
	"strings"
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
		_, messages := pour(70_000, c.careful, c.must)
		require.Less(t, messages, 10_000, name)
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

// Given more blocked keys than an answer has, then a key that is asked for is in it, by its name or
// its mark.
func TestAnAnswerHasTheKeyThatIsAskedFor(t *testing.T) {
	t.Parallel()
	sorted := func(name string) (s order.State) {
		for i := range order.MaxKeys + 500 {
			s.Keys = append(s.Keys, order.KeyState{
				Key: fmt.Sprintf("key %04d", i), Mark: fmt.Sprintf("1-%d", i),
			})
		}
		s.Sort(name)
		return s
	}
	for name, want := range map[string]struct {
		keys, others int
		last         string
	}{
		"":         {1000, 500, "key 0999"},
		"key 0007": {1000, 500, "key 0999"},
		"key 1400": {1001, 499, "key 1400"},
		"1-1400":   {1001, 499, "key 1400"},
		"no key":   {1000, 500, "key 0999"},
	} {
		s := sorted(name)
		require.Len(t, s.Keys, want.keys, name)
		require.Equal(t, want.others, s.Others, name)
		require.Equal(t, want.last, s.Keys[len(s.Keys)-1].Key, name)
	}
}
