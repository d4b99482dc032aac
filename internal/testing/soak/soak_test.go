package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// Given nine seconds at a tenth of the load, then everything is measured and no message is missing.
// Growth would take longer to see.
func TestSoakMeasures(t *testing.T) {
	t.Parallel()
	testbroker.RequireNode(t)
	var out strings.Builder
	problems, err := soak(t.Context(), config{
		length: 9 * time.Second, every: 3 * time.Second, rate: 50, out: &out,
	})
	t.Log(out.String())
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.LessOrEqual(t, len(lines), 6, "a sample every three seconds")
	require.GreaterOrEqual(t, len(lines), 4, "two lines of heading, the samples, the sum")
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

func TestGrowth(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		values []float64
		want   string
	}{
		"flat":                     {[]float64{20, 20, 20, 20, 20, 20}, ""},
		"the first does not count": {[]float64{1, 20, 20, 20, 20, 20}, ""},
		"noise":                    {[]float64{20, 24, 18, 23, 17, 22, 19, 21}, ""},
		"one peak in the middle":   {[]float64{20, 20, 20, 90, 20, 20, 20}, ""},
		"falling":                  {[]float64{90, 80, 70, 60, 50, 40}, ""},
		"a little more each minute": {
			[]float64{20, 22, 24, 26, 28, 30, 32}, "things rises by 10.0 pieces, allowed are 7.8",
		},
		"too short": {
			[]float64{20, 20, 20}, "things: 3 samples are too few for a verdict, want 6",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, c.want, series{
				name: "things", unit: "pieces", abs: 5, rel: 0.1, values: c.values,
			}.growth())
		})
	}
}
