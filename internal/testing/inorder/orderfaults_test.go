package main

import (
	"os"
	"path/filepath"
	"strings"
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

// A passage that was changed in the library would leave its mistake out.
func TestThePassagesOfTheMistakesAreThere(t *testing.T) {
	t.Parallel()
	for _, b := range bugs {
		for _, p := range b.plantings {
			source, err := os.ReadFile(filepath.Join("../../..", filepath.FromSlash(p.file)))
			require.NoError(t, err)
			require.Equal(t, 1, strings.Count(string(source), p.old), b.name)
		}
	}
}
