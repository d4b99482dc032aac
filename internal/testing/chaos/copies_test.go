package chaos

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// run returns a consumer's run of an attempt at message 1, of a copy, from begun to at in seconds.
func run(consumer string, attempt int, copied string, begun, at float64) Attempt {
	return Attempt{
		Consumer: consumer, Began: after(begun), At: after(at), N: 1, Attempt: attempt, Outcome: Failed,
		Nonce: copied, Priority: Fates(0).Priority(1),
	}
}

// redelivered returns the run with the broker's mark.
func redelivered(a Attempt) Attempt {
	a.Redelivered = true
	return a
}

// asides returns the run as one of a snoozed copy.
func asides(a Attempt) Attempt {
	a.Aside = true
	return a
}

func lost(consumer string, what Lost, at float64) Loss {
	return Loss{Consumer: consumer, What: what, Began: after(at), At: after(at)}
}

func byItself(l Loss) Loss {
	l.Own = true
	return l
}

func struck(kind Kind, begun, end float64) Struck {
	return Struck{Fault: Fault{Kind: kind}, Begun: after(begun), End: after(end)}
}

// Given the runs of a message and the losses meanwhile, then these explain its extra runs or not.
func TestFaultsExplainExtraRuns(t *testing.T) {
	t.Parallel()
	// Attempt 1 at 10 s has put one copy, or two, for attempt 2 into the wait queue of one second.
	first := run("c1", 1, "", 9, 10)
	one, two := run("c2", 2, "a", 11, 11.1), run("c2", 2, "b", 20, 20.1)
	twoCopies := []Attempt{first, one, two}
	again := run("c2", 2, "a", 15, 15.1)
	stopped := Loss{Consumer: "c2", What: LostProcess, Began: after(12), At: after(17)}
	for name, c := range map[string]struct {
		attempts    []Attempt
		losses      []Loss
		faults      []Struck
		explained   map[string]int
		unexplained map[string]int
	}{
		"no extra run": {attempts: []Attempt{first, one}},

		"a late confirm explains no second copy": {
			attempts: twoCopies, faults: []Struck{struck(DelayConfirms, 9, 25)},
			unexplained: map[string]int{TwoCopies: 1},
		},
		"nor does the death of a node to which the publisher is not connected": {
			attempts: twoCopies, faults: []Struck{struck(KillNode, 9, 25)},
			unexplained: map[string]int{TwoCopies: 1},
		},
		"nor a policy that an operator applies": {
			attempts: twoCopies, faults: []Struck{struck(ApplyPolicy, 9, 25)},
			unexplained: map[string]int{TwoCopies: 1},
		},
		"nor a full disk": {
			attempts: twoCopies, faults: []Struck{struck(DiskAlarm, 9, 25)},
			unexplained: map[string]int{TwoCopies: 1},
		},
		"nor a loss of the consuming connection": {
			attempts: twoCopies, losses: []Loss{lost("c1", LostConsuming, 12)},
			unexplained: map[string]int{TwoCopies: 1},
		},
		"nor a loss of another consumer": {
			attempts: twoCopies, losses: []Loss{lost("c2", LostPublishing, 12)},
			unexplained: map[string]int{TwoCopies: 1},
		},
		"nor a loss before the hand-over": {
			attempts: twoCopies, losses: []Loss{lost("c1", LostPublishing, 8)},
			unexplained: map[string]int{TwoCopies: 1},
		},
		"nor a loss after the second copy was published": {
			attempts: []Attempt{first, one, run("c2", 2, "b", 13, 13.1)},
			losses:   []Loss{lost("c1", LostPublishing, 13.1)}, unexplained: map[string]int{TwoCopies: 1},
		},
		"nor a connection that the client gave up by itself": {
			attempts: twoCopies, losses: []Loss{byItself(lost("c1", LostPublishing, 12))},
			faults: []Struck{struck(DelayConfirms, 9, 25)}, unexplained: map[string]int{TwoCopies: 1},
		},
		"unless the network was silent": {
			attempts: twoCopies, losses: []Loss{byItself(lost("c1", LostPublishing, 12))},
			faults: []Struck{struck(Blackhole, 9, 15)}, explained: map[string]int{TwoCopies: 1},
		},
		"a publishing connection that is lost explains one copy": {
			attempts: twoCopies, losses: []Loss{lost("c1", LostPublishing, 12)},
			explained: map[string]int{TwoCopies: 1},
		},
		"and one only": {
			attempts: []Attempt{first, one, two, run("c3", 2, "c", 21, 21.1)},
			losses:   []Loss{lost("c1", LostPublishing, 12)}, explained: map[string]int{TwoCopies: 1},
			unexplained: map[string]int{TwoCopies: 1},
		},
		"two losses explain two": {
			attempts:  []Attempt{first, one, two, run("c3", 2, "c", 21, 21.1)},
			losses:    []Loss{lost("c1", LostPublishing, 12), lost("c1", LostPublishing, 14)},
			explained: map[string]int{TwoCopies: 2},
		},
		"the ends of a process and of its connections are one loss": {
			attempts:  []Attempt{first, one, two, run("c3", 2, "c", 21, 21.1)},
			losses:    []Loss{lost("c1", LostPublishing, 12), lost("c1", LostProcess, 12.1)},
			explained: map[string]int{TwoCopies: 1}, unexplained: map[string]int{TwoCopies: 1},
		},

		"no reason to deliver again": {
			attempts:    []Attempt{first, one, redelivered(again)},
			unexplained: map[string]int{Redelivered: 1},
		},
		"a late confirm is none": {
			attempts: []Attempt{first, one, redelivered(again)},
			faults:   []Struck{struck(DelayConfirms, 9, 25)}, unexplained: map[string]int{Redelivered: 1},
		},
		"a consuming connection that is lost is one": {
			attempts: []Attempt{first, one, redelivered(again)},
			losses:   []Loss{lost("c2", LostConsuming, 12)}, explained: map[string]int{Redelivered: 1},
		},
		"but not that of a consumer that never had it": {
			attempts: []Attempt{first, one, redelivered(again)},
			losses:   []Loss{lost("c3", LostConsuming, 12)}, unexplained: map[string]int{Redelivered: 1},
		},
		"nor after it was delivered again": {
			attempts: []Attempt{first, one, redelivered(again)},
			losses:   []Loss{lost("c2", LostConsuming, 17)}, unexplained: map[string]int{Redelivered: 1},
		},
		"a process that is told to stop gives back before it ends": {
			attempts: []Attempt{first, one, redelivered(again)}, losses: []Loss{stopped},
			explained: map[string]int{Redelivered: 1},
		},
		"the two ends of a node's fault explain two": {
			attempts: []Attempt{
				first, one, redelivered(again), redelivered(run("c3", 2, "a", 16, 16.1)),
				redelivered(run("c3", 2, "a", 17, 17.1)),
			},
			faults: []Struck{struck(FreezeNode, 10, 16)}, explained: map[string]int{Redelivered: 2},
			unexplained: map[string]int{Redelivered: 1},
		},

		"a copy returns twice without a fault": {
			attempts: []Attempt{first, one, again}, faults: []Struck{struck(DelayConfirms, 9, 25)},
			unexplained: map[string]int{SentTwice: 1},
		},
		"a node died while it expired": {
			attempts: []Attempt{first, one, again}, faults: []Struck{struck(KillNode, 5, 8)},
			explained: map[string]int{SentTwice: 1},
		},
		"a node died too long ago": {
			attempts: []Attempt{first, run("c2", 2, "a", 40, 40.1), run("c2", 2, "a", 41, 41.1)},
			faults:   []Struck{struck(KillNode, 5, 8)}, unexplained: map[string]int{SentTwice: 1},
		},

		"runs of the attempt before each publish their copy": {
			attempts:  []Attempt{first, redelivered(run("c2", 1, "", 12, 12.1)), one, two},
			losses:    []Loss{lost("c1", LostProcess, 10.5)},
			explained: map[string]int{Redelivered: 1, Follows: 1},
		},
		"a suspect that is set aside has been delivered again": {
			attempts: []Attempt{first, one, asides(two)}, losses: []Loss{lost("c2", LostProcess, 11.5)},
			explained: map[string]int{Redelivered: 1},
		},
		"a copy that was set aside before any run is no extra run": {
			attempts: []Attempt{first, asides(two)},
		},
		"but two of it are": {
			attempts: []Attempt{first, asides(two), asides(run("c3", 2, "c", 30, 30.1))},
			faults:   []Struck{struck(DelayConfirms, 9, 25)}, unexplained: map[string]int{Redelivered: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := Check(History{
				Sent: []Sent{{
					1, after(8),
				}}, Attempts: c.attempts, Losses: c.losses, Faults: c.faults, Timer: time.Minute,
				Letters: []Letter{{N: 1, At: after(99), Nonce: "dead", Reason: "crash_loop"}}, // not lost
			})
			explained, unexplained := map[string]int{}, map[string]int{}
			for why, count := range r.Again {
				if count.Explained > 0 {
					explained[why] = count.Explained
				}
				if count.Unexplained > 0 {
					unexplained[why] = count.Unexplained
				}
			}
			assert.Equal(t, len(c.explained), len(explained))
			assert.Equal(t, len(c.unexplained), len(unexplained))
			for why, times := range c.explained {
				assert.Equal(t, times, explained[why], "explained: %s", why)
			}
			for why, times := range c.unexplained {
				assert.Equal(t, times, unexplained[why], "unexplained: %s", why)
			}
			if len(c.unexplained) == 0 {
				require.NoError(t, r.Err())
			} else {
				require.ErrorContains(t, r.Err(), "more often than its faults explain: message 1: attempt 2")
			}
		})
	}
}

// Given a node that is away for several dead-letter timers, then each explains a copy.
func TestDeadLetterTimerExplainsCopies(t *testing.T) {
	t.Parallel()
	h := History{
		Sent: []Sent{{1, after(8)}}, Timer: 10 * time.Second, Faults: []Struck{struck(Minority, 10, 45)},
	}
	h.Attempts = []Attempt{run("c1", 1, "", 9, 10)}
	for i := range 7 {
		h.Attempts = append(h.Attempts, run("c1", 2, "a", 46+float64(i), 46.1+float64(i)))
	}
	r := Check(h)
	assert.Equal(t, Count{Explained: 5, Unexplained: 1}, r.Again[SentTwice],
		"its two ends and three timers")
}

func TestFaultsExplainExtraDeadLetters(t *testing.T) {
	t.Parallel()
	history := func(losses ...Loss) History {
		h := flawless(500)
		h.Losses = losses
		extra := h.Letters[0]
		extra.Nonce, extra.At = "second", extra.At.Add(time.Minute)
		h.Letters = append(h.Letters, extra)
		return h
	}
	h := history()
	r := Check(h)
	assert.Equal(t, map[string]Count{TwoLetters: {Unexplained: 1}}, r.Again)
	assert.ErrorContains(t, r.Err(),
		fmt.Sprintf("message %d: dead letter dead-lettered twice: 1 times, 0 explained", h.Letters[0].N))

	at := h.Letters[0].At
	r = Check(history(Loss{Consumer: "c1", What: LostPublishing, Began: at, At: at}))
	assert.Equal(t, map[string]Count{TwoLetters: {Explained: 1}}, r.Again)
	require.NoError(t, r.Err())

	h = history(Loss{
		Consumer: "c1", What: LostProcess, Began: at.Add(-time.Second), At: at.Add(-time.Second),
	})
	for _, a := range h.Attempts {
		if a.N == h.Letters[0].N && (a.Outcome == Permanent || a.Attempt == Limit) {
			a.Began, a.At, a.Redelivered = at, at, true
			h.Attempts = append(h.Attempts, a)
			break
		}
	}
	r = Check(h)
	assert.Equal(t, 1, r.Again[Follows].Explained, "two runs, two letters")
	assert.Zero(t, r.Again[TwoLetters])
}
