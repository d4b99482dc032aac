package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestReport(t *testing.T) {
	t.Parallel()
	l := newLedger(append([]planned{
		{id: "cake", script: script{accepted}},
		{id: "bread", script: script{{status: 400}}},
		{id: "water", script: script{{status: 400}}},
		{id: "not published", script: script{accepted}},
	}, book().entries[0].planned, book().entries[1].planned))
	for _, e := range l.entries {
		if e.id != "not published" {
			l.published(e.id)
		}
	}
	settle(l, 503*time.Millisecond)
	l.request("cake", 1, noon, noon)
	for _, id := range []string{"bread", "water"} {
		l.request(id, 1, noon, noon)
		l.deadLetter(id, "permanent", "1")
	}
	require.Empty(t, l.faults())
	require.Equal(t, `delivered
  1 attempt                    1
  2 attempts                   1
dead-lettered
  permanent, last 400          2
  permanent, last 410          1
lateness of 1 retries: p50 3ms, p99 3ms

published 5  delivered 2  dead-lettered 3  lost 0`, l.report().String())
	require.False(t, l.decided())
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(i+1)*time.Millisecond)
	}
	tests := map[string]struct {
		values []time.Duration
		p      float64
		want   time.Duration
	}{
		"of nothing":       {nil, 50, 0},
		"of one":           {hundred[6:7], 99, 7 * time.Millisecond},
		"lower of two":     {hundred[:2], 50, time.Millisecond},
		"upper of two":     {hundred[:2], 51, 2 * time.Millisecond},
		"half of hundred":  {hundred, 50, 50 * time.Millisecond},
		"p99 of hundred":   {hundred, 99, 99 * time.Millisecond},
		"least of hundred": {hundred, 0, time.Millisecond},
		"most of hundred":  {hundred, 100, 100 * time.Millisecond},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, percentile(test.values, test.p))
		})
	}
}
