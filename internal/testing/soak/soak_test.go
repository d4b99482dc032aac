package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// Nine seconds at a tenth of the load: everything is measured, and nothing goes missing. Whether
// anything grows takes longer to see.
func TestSoakMeasures(t *testing.T) {
	t.Parallel()
	testbroker.RequireNode(t)
	var out strings.Builder
	problems, err := soak(t.Context(), config{length: 9 * time.Second, every: 3 * time.Second,
		rate: 50, out: &out})
	t.Log(out.String())
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.LessOrEqual(t, len(lines), 6, "a sample every three seconds")
	require.GreaterOrEqual(t, len(lines), 4, "two lines of heading, what was measured, the sum")
	assert.Len(t, strings.Fields(lines[2]), 2+len(newSampler(nil, nil).rows),
		"time, rate and the figures")
	for _, p := range problems {
		assert.Contains(t, p, "too few", "so few samples are no verdict, and all else is well")
	}
}

func TestBadArgumentsStartNothing(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"-minutes 0", "-minutes -1", "-rate 0", "-rate x"} {
		assert.Equal(t, 2, run(strings.Fields(args)), args)
	}
}
