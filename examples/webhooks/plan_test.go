package main

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/middleware/header"
)

func TestSameSeedDealsSamePlan(t *testing.T) {
	t.Parallel()
	require.Equal(t, deal(200, 7), deal(200, 7))
	require.NotEqual(t, deal(200, 7), deal(200, 8))
}

// Whatever the seed, all that a receiver can do is in the plan.
func TestPlanHasEveryAnswerAndEnd(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		answers, ends, ids := map[string]int{}, map[header.Reason]int{}, map[string]bool{}
		for _, p := range deal(200, seed) {
			ids[p.id] = true
			attempts, dead := p.script.end()
			ends[dead]++
			for attempt := 1; attempt <= attempts; attempt++ {
				a := p.script.at(attempt)
				answers[answer{status: a.status, date: a.date, hang: a.hang}.String()]++
			}
		}
		require.Len(t, ids, 200)
		require.Equal(t, map[header.Reason]int{"": 170, header.ReasonPermanent: 20,
			header.ReasonExhausted: 10}, ends)
		for _, want := range []string{"200", "400", "410", "429", "429 in 0s (date)", "500", "503",
			"dropped", "no answer"} {
			require.NotZero(t, answers[want], "%s, seed %d", want, seed)
		}
	}
}

func TestScriptEnds(t *testing.T) {
	t.Parallel()
	failing := answer{status: http.StatusInternalServerError}
	tests := map[string]struct {
		script   script
		attempts int
		dead     header.Reason
	}{
		"at once":            {script{accepted}, 1, ""},
		"after a failure":    {script{failing, accepted}, 2, ""},
		"at the last moment": {script{dropped, hangs, dropped, failing, accepted}, 5, ""},
		"too late": {script{dropped, hangs, dropped, failing, dropped, accepted}, 5,
			header.ReasonExhausted},
		"never":         {script{failing}, 5, header.ReasonExhausted},
		"gone":          {script{{status: http.StatusGone}}, 1, header.ReasonPermanent},
		"refused later": {script{hangs, {status: http.StatusBadRequest}}, 2, header.ReasonPermanent},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			attempts, dead := test.script.end()
			require.Equal(t, test.attempts, attempts)
			require.Equal(t, test.dead, dead)
		})
	}
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	tests := []struct {
		answer answer
		text   string
		waits  []time.Duration // after the first failure, and after the fourth
	}{
		{answer{status: 500}, "500", []time.Duration{500 * time.Millisecond, 4 * time.Second}},
		{answer{status: 429, after: 3 * time.Second}, "429 in 3s",
			[]time.Duration{3 * time.Second, 4 * time.Second}},
		{answer{status: 429, after: time.Second, date: true}, "429 in 1s (date)",
			[]time.Duration{time.Second, 4 * time.Second}},
		{dropped, "dropped", []time.Duration{250 * time.Millisecond, 2 * time.Second}},
		{hangs, "no answer", []time.Duration{250 * time.Millisecond, 2 * time.Second}},
	}
	for _, test := range tests {
		t.Run(test.text, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.text, test.answer.String())
			require.Equal(t, test.waits, []time.Duration{test.answer.wait(1), test.answer.wait(4)})
		})
	}
}
