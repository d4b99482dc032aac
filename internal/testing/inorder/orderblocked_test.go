package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Given keys that a dead letter blocks, then no later message begins before the decision, nor
// before a replayed letter is over. op<N.0 releases number N, and op>N.0 replays it.
func TestJudgeOfBlockedKeys(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		words     string
		passed    int
		undecided int
	}{
		"released":     {words: "a+1.6 a!1.6 op<1.0 a+2.1 a=2.1"},
		"replayed":     {words: "a+1.6 a!1.6 op>1.0 a+1.1 a=1.1 a+2.1 a=2.1"},
		"fails again":  {words: "a+1.6 a!1.6 op>1.0 a+1.6 a!1.6 op>1.0 a+1.1 a=1.1 a+2.1 a=2.1"},
		"not released": {words: "a+1.6 a!1.6 a+2.1 a=2.1", passed: 1, undecided: 1},
		"begun before the release": {
			words: "a+1.6 a!1.6 a+2.1 op<1.0 a=2.1", passed: 1,
		},
		"begun before the replay is over": {
			words: "a+1.6 a!1.6 op>1.0 a+1.1 a-1.1 a+2.1 a=2.1 a+1.2 a=1.2", passed: 1,
		},
		"begun before the second release": {
			words: "a+1.6 a!1.6 op>1.0 a+1.6 a!1.6 a+2.1 a=2.1", passed: 1, undecided: 1,
		},
		"the replay is given up, and the key is released": {
			words: "a+1.6 a!1.6 op>1.0 op<1.0 a+2.1 a=2.1",
		},
		"a decision is repeated after the replay": {
			words: "a+1.6 a!1.6 op>1.0 a+1.1 a=1.1 op>1.0 a+2.1 a=2.1",
		},
		"an ack is lost": {
			words: "a+1.1 a=1.1 a+2.6 a!2.6 *cut b+1.1 b=1.1 b+2.6 b!2.6 op<2.0 b+3.1 b=3.1",
		},
		"a woken instance gives up what was released": {
			words: "a+1.6 a*freeze b+1.6 b!1.6 op<1.0 b+2.1 b=2.1 a*thaw a!1.6 b+3.1 b=3.1",
		},
		"replayed and never handled": {words: "a+1.6 a!1.6 op>1.0", undecided: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newJudge(fates{}, usualDelays, 0, confirmedUpTo(3))
			j.block = true
			for _, e := range script(t, c.words) {
				j.add(e)
			}
			assert.Len(t, j.report.Passed, c.passed)
			assert.Equal(t, c.undecided, j.undecided())
			assert.Equal(t, c.passed > 0, j.report.outOfOrder())
		})
	}
}

// Given no option Block, then a key goes on after a dead letter.
func TestJudgeOfKeysThatGoOn(t *testing.T) {
	t.Parallel()
	j := newJudge(fates{}, usualDelays, 0, confirmedUpTo(2))
	for _, e := range script(t, "a+1.6 a!1.6 a+2.1 a=2.1") {
		j.add(e)
	}
	require.Empty(t, j.report.Passed)
	require.Zero(t, j.undecided())
}
