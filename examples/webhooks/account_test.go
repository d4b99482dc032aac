package main

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
		"somebody else's": {
			func(l *ledger) { settle(l, half); l.foundIn("q", "salad"); l.request("salad", 1, noon, noon) },
			[]string{`"salad" is no delivery of this demo`, `"salad" is no delivery of this demo`},
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
