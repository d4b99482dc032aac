package main

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/examples/internal/webhook"
)

var noon = time.Date(2025, 1, 2, 12, 0, 0, 0, time.UTC)

// book returns a ledger of two deliveries: tea is delivered at the second attempt, soup is refused.
func book() *ledger {
	l := newLedger([]planned{
		{id: "tea", script: script{{status: http.StatusInternalServerError}, accepted}},
		{id: "soup", script: script{{status: http.StatusGone}}},
	})
	l.published("tea")
	l.published("soup")
	return l
}

// settle enters the expected events, with the given delay before the second attempt at tea.
func settle(l *ledger, delay time.Duration) {
	l.request("tea", 1, noon, noon)
	l.request("soup", 1, noon, noon)
	l.deadLetter("soup", "permanent", "1")
	l.request("tea", 2, noon, noon.Add(delay))
}

const half = 500 * time.Millisecond

func TestLedgerOfGoodRun(t *testing.T) {
	t.Parallel()
	l := book()
	require.False(t, l.decided())
	require.Equal(t, "published 2/2  delivered 0  dead-lettered 0  to do 2  attempts 0", l.progress())
	settle(l, half)
	require.True(t, l.decided())
	require.Empty(t, l.faults())
	require.Equal(t, "published 2/2  delivered 1  dead-lettered 1  to do 0  attempts 3", l.progress())
}

func TestProgressFitsTerminal(t *testing.T) {
	t.Parallel()
	l := newLedger(deal(maxDeliveries, 1))
	for _, e := range l.entries {
		l.published(e.id)
		l.request(e.id, 1, noon, noon)
		if e.delivered == 0 {
			l.deadLetter(e.id, "permanent", "1")
		}
	}
	l.requests *= webhook.MaxAttempts
	require.LessOrEqual(t, len(l.progress()), 79)
}

func TestLedgerLines(t *testing.T) {
	t.Parallel()
	l := newLedger([]planned{{id: "tea", script: script{
		hangs, {status: 429, after: time.Second, date: true}, accepted,
	}}})
	// The first attempt was sent a little before it arrived. It lasts until the sender gives up.
	for i, test := range []struct {
		sent, at time.Time
		line     string
	}{
		{
			noon, noon.Add(100 * time.Millisecond),
			"tea                1  no answer                -         -\n",
		},
		{
			noon, noon.Add(2252 * time.Millisecond),
			"tea                2  429 in 1s (date)     250ms     252ms\n",
		},
		{
			noon, noon.Add(3255 * time.Millisecond),
			"tea                3  200                     1s    1.003s\n",
		},
	} {
		a, line := l.request("tea", i+1, test.sent, test.at)
		require.Equal(t, test.line, line)
		require.Equal(t, l.entries[0].script[i], a)
	}
	require.Equal(t, []time.Duration{2 * time.Millisecond, 3 * time.Millisecond}, l.late)
}

func TestLedgerFindsFaults(t *testing.T) {
	t.Parallel()
	const good = "published 2  delivered 1  dead-lettered 1  lost 0"
	tests := map[string]struct {
		run    func(l *ledger)
		faults []string
		sums   string
	}{
		"lost": {
			func(*ledger) {}, nil, "published 2  delivered 0  dead-lettered 0  lost 2",
		},
		"still waiting": {
			func(l *ledger) { l.foundIn("q.wait.1s", "tea") }, nil,
			"published 2  delivered 0  dead-lettered 0  lost 1  still in a queue 1",
		},
		"early by a little": {func(l *ledger) { settle(l, half-5*time.Millisecond) }, nil, good},
		"too early": {
			func(l *ledger) { settle(l, half-6*time.Millisecond) },
			[]string{"tea: attempt 2 came after 494ms, asked for were 500ms"},
			good,
		},
		"delivered twice": {
			func(l *ledger) { settle(l, half); l.request("tea", 2, noon, noon.Add(time.Hour)) },
			[]string{
				"tea: request 3 is called attempt 2", "tea: delivered 2 times, dead-lettered 0 times",
				"tea: 3 attempts, expected 2", "the table has 1 delivered, the receiver answered 2xx 2 times",
			},
			good,
		},
		"delivered and not acked": {
			func(l *ledger) { settle(l, half); l.foundIn("q", "tea"); l.foundIn("q", "tea") },
			[]string{"tea: decided, and still in q"},
			good,
		},
		"delivered and dead-lettered": {
			func(l *ledger) { settle(l, half); l.deadLetter("tea", "exhausted", "2") },
			[]string{
				"tea: delivered 1 times, dead-lettered 1 times",
				`tea: dead-lettered as "exhausted" after 2 failures, expected "" after 2`,
				"the table has 1 dead-lettered, the dead-letter queue has 2",
			},
			good,
		},
		"dead-lettered for another reason": {
			func(l *ledger) {
				l.request("soup", 1, noon, noon)
				l.deadLetter("soup", "exhausted", "2")
			},
			[]string{`soup: dead-lettered as "exhausted" after 2 failures, expected "permanent" after 1`},
			"published 2  delivered 0  dead-lettered 1  lost 1",
		},
		"more attempts than are allowed": {
			func(l *ledger) {
				l.deadLetter("soup", "permanent", "6")
				for i := range 6 {
					l.request("soup", i+1, noon, noon.Add(time.Duration(i)*time.Hour))
				}
			},
			[]string{"soup: 6 attempts, expected 1"},
			"published 2  delivered 0  dead-lettered 1  lost 1",
		},
		"somebody else's": {
			func(l *ledger) { settle(l, half); l.foundIn("q", "salad"); l.request("salad", 1, noon, noon) },
			[]string{`"salad" is no delivery of this demo`, `"salad" is no delivery of this demo`},
			good,
		},
		"a dead letter of somebody else": {
			func(l *ledger) { settle(l, half); l.deadLetter("salad", "permanent", "1") },
			[]string{
				`"salad" is no delivery of this demo`,
				"the table has 1 dead-lettered, the dead-letter queue has 2",
			},
			good,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := book()
			test.run(l)
			require.Subset(t, l.faults(), test.faults)
			require.Len(t, l.faults(), len(test.faults))
			require.Contains(t, l.report().String()+"\n", "\n"+test.sums+"\n")
		})
	}
}

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
		"p99 of hundred":   {hundred, 99, 99 * time.Millisecond},
		"least of hundred": {hundred, 0, time.Millisecond},
	}
	for name, test := range tests {
		require.Equal(t, test.want, percentile(test.values, test.p), name)
	}
}
