package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSpread(t *testing.T) {
	t.Parallel()
	assert.Equal(t, spread{2, 1, 9}, spreadOf([]float64{9, 1, 2}))
	assert.Equal(t, spread{3, 1, 9}, spreadOf([]float64{9, 1, 2, 4}))
}

// Given a round that is slow as a whole, then it does not change the ratio of its entries.
func TestRatiosAreOfOneRound(t *testing.T) {
	t.Parallel()
	r := run{Results: []result{
		{Group: "publish", X: 1, Entry: millpond, Metric: rate, Samples: []float64{100, 10, 50}},
		{Group: "publish", X: 1, Entry: raw, Metric: rate, Samples: []float64{50, 5, 100}},
	}}
	a := aim{group: "publish", x: 1, metric: rate, entry: millpond, by: raw}
	s, ok := a.of(r)
	require.True(t, ok)
	assert.Equal(t, spread{2, 0.5, 2}, s)
	a.x = 8
	_, ok = a.of(r)
	assert.False(t, ok, "it was not measured")
}

func TestAddedTakesTheHandlerAway(t *testing.T) {
	t.Parallel()
	r := run{Results: []result{
		{Group: "success", Entry: bare, Metric: nanoseconds, Samples: []float64{2, 4}},
		{Group: "success", Entry: recoverer, Metric: nanoseconds, Samples: []float64{12, 14}},
		{Group: "success", Entry: millpond, Metric: nanoseconds, Samples: []float64{22, 24}},
	}}
	s, ok := aim{
		group: "success", metric: nanoseconds, entry: millpond, by: recoverer, bare: bare,
	}.of(r)
	require.True(t, ok)
	assert.Equal(t, spread{2, 2, 2}, s)
	assert.Equal(t, []float64{22, 24}, r.samples("success", 0, millpond, nanoseconds),
		"the samples are as they were")
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		aim  aim
		got  float64
		want string
	}{
		{aim{least: 0.95}, 0.95, "met"},
		{aim{least: 0.95}, 0.949, "missed"},
		{aim{least: 0.95, beyond: 1}, 1, "beyond"},
		{aim{most: 3, beyond: 2}, 3, "met"},
		{aim{most: 3, beyond: 2}, 3.1, "missed"},
		{aim{most: 3, beyond: 2}, 1.9, "beyond"},
		{aim{}, 0, "met"},
		{aim{}, 1, "missed"},
	} {
		got := test.aim.verdict(spread{median: test.got})
		assert.Equal(t, test.want, got, "%+v %v", test.aim, test.got)
	}
}

// Every aim belongs to a contest, or to a law of one.
func TestAimsAreOfContests(t *testing.T) {
	t.Parallel()
	groups := []string{}
	for _, l := range laws {
		groups = append(groups, l.group)
	}
	for _, a := range aims() {
		if group, _, _ := strings.Cut(a.group, ","); group != "laws" {
			groups = append(groups, group)
		}
	}
	for _, group := range groups {
		_, err := chosen(slices.Concat(contests, scales, comparisons), group)
		require.NoError(t, err)
	}
	_, err := chosen(contests, "nothing")
	assert.ErrorContains(t, err, `there is no "nothing"`)
}

func TestFit(t *testing.T) {
	t.Parallel()
	fixed, each, worst := fit([]float64{1, 2, 4, 8}, []float64{12, 14, 18, 26})
	require.InDeltaSlice(t, []float64{10, 2, 0}, []float64{fixed, each, worst}, 1e-9)
	_, _, worst = fit([]float64{1, 2, 4, 8}, []float64{12, 14, 18, 52})
	require.Greater(t, worst, 0.15)
}
