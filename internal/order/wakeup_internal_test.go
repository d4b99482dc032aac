package order

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// waitingKeys is a Line in which a message of each key waits to be tried.
func waitingKeys(keys int) *Line[int] {
	l := New[int](Limits{Messages: 2 * keys, Bytes: 1 << 30})
	l.Know(2, true)
	l.BeCareful(true, 1)
	for i := range keys {
		l.Returned(Waiting[int]{Key: fmt.Sprint("key", i), Seq: 1, ID: ID{1, uint64(i + 1)}, Size: 1})
	}
	return l
}

// The end of a message once woke all keys that waited: 262 µs with 4096 of them.
func TestAnEndWakesOnlyTheKeysThatMayBegin(t *testing.T) {
	t.Parallel()
	const keys = 4096
	l := waitingKeys(keys)
	for handled := range keys {
		step, ok := l.Next(time.Time{})
		require.True(t, ok, handled)
		_, ok = l.Next(time.Time{})
		require.False(t, ok, "one at a time")
		require.Equal(t, ID{1, uint64(handled + 1)}, step.From, "the key that has waited longest")
		l.Ended(step, true)
		l.window = 1
		require.LessOrEqual(t, len(l.ready), 1)
		l.Returned(Waiting[int]{Key: step.Key, Seq: step.Seq, ID: step.ID, Size: 1})
	}
}
