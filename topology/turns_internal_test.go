package topology

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func hasCome(own *turn) bool {
	select {
	case <-own.come:
		return true
	default:
		return false
	}
}

func TestTurnsComeInOrder(t *testing.T) {
	t.Parallel()
	var line turns
	first, second, third, fourth := line.join(), line.join(), line.join(), line.join()
	require.True(t, hasCome(first))
	require.False(t, hasCome(second))
	second.leave() // before its turn
	require.False(t, hasCome(third))
	first.leave()
	first.leave()
	require.True(t, hasCome(third))
	require.False(t, hasCome(second))
	require.False(t, hasCome(fourth))
	third.leave()
	require.True(t, hasCome(fourth))
	fourth.leave()
	require.True(t, hasCome(line.join()), "an empty line")
	var none *turn
	none.leave()
}

func TestOneTurnAtATime(t *testing.T) {
	t.Parallel()
	var line turns
	var trying, tried atomic.Int32
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			own := line.join()
			defer own.leave()
			if i%3 == 0 { // gives up before its turn
				return
			}
			<-own.come
			if n := trying.Add(1); n != 1 {
				t.Errorf("%d at once", n)
			}
			tried.Add(1)
			trying.Add(-1)
		})
	}
	wg.Wait()
	require.EqualValues(t, 133, tried.Load())
	require.Empty(t, line.line)
}
