package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSchedulesAreOfTheirSeed(t *testing.T) {
	t.Parallel()
	first, same, other := schedule(1, time.Second), schedule(1, time.Second), schedule(2, time.Second)
	differ := false
	seen := map[fault]int{}
	for range 3 * len(faults) {
		p := first()
		require.Equal(t, p, same())
		differ = differ || p != other()
		seen[p.fault]++
	}
	require.True(t, differ)
	for _, f := range faults {
		require.Equal(t, 3, seen[f], "every fault strikes as often as the others: %s", f)
	}
}
