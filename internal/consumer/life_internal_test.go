package consumer

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A message that its queue keeps may still be copied, and then its delivery is acked. Once that is
// settled a Republish of its handler comes too late. Of the marshaler and the end of the process
// one ends the phase.
func TestTheLifeOfADelivery(t *testing.T) {
	t.Parallel()
	for last, end := range map[copied]phase{none: acked, stored: acked, open: acked, kept: rejected} {
		var l life
		l.enter(decoding)
		require.True(t, l.endDecoding(handling))
		require.False(t, l.endDecoding(left))
		require.True(t, l.know(kept))
		l.enter(deciding)
		require.Equal(t, kept, l.copy())
		require.True(t, l.know(last))
		require.Equal(t, end, l.settle())
		require.False(t, l.know(kept))
		require.Equal(t, end, l.phase())
		require.Equal(t, last, l.copy())
	}
}
