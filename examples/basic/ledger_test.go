package main

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware/header"
)

var noon = time.Date(2025, 1, 2, 12, 0, 0, 0, time.UTC)

// book is a ledger of two orders: tea is handled at the second attempt, soup is
// dead-lettered after the first.
func book() *ledger {
	l := newLedger(backoff.List{time.Second}, []order{
		{name: "tea", story: "fails once", attempts: 2},
		{name: "soup", story: "is impossible", attempts: 1, dead: header.ReasonPermanent},
	})
	l.published("tea")
	l.published("soup")
	return l
}

// settle enters what should happen, with the given delay before the second
// attempt at tea.
func settle(l *ledger, delay time.Duration) {
	l.attempt("tea", 1, noon, noon.Add(time.Millisecond), errors.New("no water"))
	l.attempt("soup", 1, noon, noon, errors.New("no spoon"))
	l.deadLetter("soup", "permanent", "1", "no spoon")
	again := noon.Add(time.Millisecond + delay)
	l.attempt("tea", 2, again, again, nil)
}

func TestLedgerOfGoodRun(t *testing.T) {
	t.Parallel()
	l := book()
	require.False(t, l.decided())
	settle(l, time.Second)
	require.True(t, l.decided())
	require.Empty(t, l.faults())
	require.Equal(t, "published 2  handled 1  dead-lettered 1  lost 0", l.tally().String())
	require.Equal(t, []string{"soup      permanent, failures 1, error: no spoon"}, l.deadLetters())
}

func TestLedgerLine(t *testing.T) {
	t.Parallel()
	l := book()
	require.Equal(t, "tea             1  failed: no water                 -         -\n",
		l.attempt("tea", 1, noon, noon, errors.New("no water")))
	require.Equal(t, "tea             2  handled                         1s    1.002s\n",
		l.attempt("tea", 2, noon.Add(1002*time.Millisecond), noon, nil))
}

func TestLedgerFindsFaults(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		run    func(l *ledger)
		faults []string
		tally  string
	}{
		"lost": {
			func(*ledger) {}, nil,
			"published 2  handled 0  dead-lettered 0  lost 2",
		},
		"still waiting": {
			func(l *ledger) { l.foundIn("q.wait.1s", "tea") }, nil,
			"published 2  handled 0  dead-lettered 0  lost 1  still in a queue 1",
		},
		"early by a little": {
			func(l *ledger) { settle(l, 995*time.Millisecond) }, nil,
			"published 2  handled 1  dead-lettered 1  lost 0",
		},
		"too early": {
			func(l *ledger) { settle(l, 994*time.Millisecond) },
			[]string{"tea: attempt 2 came after 994ms, asked for were 1s"},
			"published 2  handled 1  dead-lettered 1  lost 0",
		},
		"handled twice": {
			func(l *ledger) { settle(l, time.Second); l.attempt("tea", 2, noon, noon, nil) },
			[]string{
				"tea: attempt 3 is called attempt 2",
				"tea: handled 2 times, dead-lettered 0 times",
				"tea: 3 attempts, expected 2",
			},
			"published 2  handled 1  dead-lettered 1  lost 0",
		},
		"handled and not acked": {
			func(l *ledger) { settle(l, time.Second); l.foundIn("q", "tea"); l.foundIn("q", "tea") },
			[]string{"tea: decided, and still in q"},
			"published 2  handled 1  dead-lettered 1  lost 0",
		},
		"dead-lettered for another reason, twice": {
			func(l *ledger) { settle(l, time.Second); l.deadLetter("soup", "exhausted", "2", "") },
			[]string{
				`soup: dead-lettered as "exhausted" after 2 failures, expected "permanent" after 1`,
				"soup: handled 0 times, dead-lettered 2 times",
			},
			"published 2  handled 1  dead-lettered 1  lost 0",
		},
		"handled where it cannot be": {
			func(l *ledger) { l.attempt("soup", 1, noon, noon, nil) },
			[]string{"soup: is impossible, but handled 1 times"},
			"published 2  handled 1  dead-lettered 0  lost 1",
		},
		"a message of somebody else": {
			func(l *ledger) { settle(l, time.Second); l.foundIn("q", "salad") },
			[]string{`"salad" is no order of this demo`},
			"published 2  handled 1  dead-lettered 1  lost 0",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := book()
			test.run(l)
			require.Equal(t, test.faults, l.faults())
			require.Equal(t, test.tally, l.tally().String())
		})
	}
}
