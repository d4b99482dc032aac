package main

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/millpond-go/millpond/backoff"
)

// grace is how early a message may seem to come back: client and broker do not
// read the same clock.
const grace = 5 * time.Millisecond

// ledger is what is known of every order. Its methods may be called from many
// goroutines.
type ledger struct {
	policy backoff.List

	mu       sync.Mutex
	entries  []*entry
	letters  []string // in the dead-letter queue, a line each
	problems []string
}

type entry struct {
	order
	published bool
	attempted int
	ended     time.Time // of the last attempt
	handled   int       // attempts that succeeded
	dead      int       // copies in the dead-letter queue
	queues    []string  // where else it was found at the end
}

func newLedger(policy backoff.List, orders []order) *ledger {
	l := &ledger{policy: policy}
	for _, o := range orders {
		l.entries = append(l.entries, &entry{order: o})
	}
	return l
}

// find must be called with mu locked. It is nil for a message of somebody else.
func (l *ledger) find(name string) *entry {
	if i := slices.IndexFunc(l.entries, func(e *entry) bool { return e.name == name }); i >= 0 {
		return l.entries[i]
	}
	l.problem("%q is no order of this demo", name)
	return nil
}

func (l *ledger) problem(format string, args ...any) {
	l.problems = append(l.problems, fmt.Sprintf(format, args...))
}

// published: the broker has confirmed the order.
func (l *ledger) published(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.find(name); e != nil {
		e.published = true
	}
}

// attempt enters an attempt that the library calls attempt number said, and
// returns its line.
func (l *ledger) attempt(name string, said int, began, ended time.Time, err error) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.find(name)
	if e == nil {
		return ""
	}
	e.attempted++
	if said != e.attempted {
		l.problem("%s: attempt %d is called attempt %d", name, e.attempted, said)
	}
	asked, measured := "-", "-"
	if retry := e.attempted - 2; retry >= 0 && retry < len(l.policy) {
		wait := began.Sub(e.ended)
		asked, measured = l.policy[retry].String(), wait.Round(time.Millisecond).String()
		if wait < l.policy[retry]-grace {
			l.problem("%s: attempt %d came after %v, asked for were %v", name, e.attempted, wait, l.policy[retry])
		}
	}
	e.ended = ended
	outcome := "handled"
	if err != nil {
		outcome = "failed: " + err.Error()
	} else {
		e.handled++
	}
	return fmt.Sprintf(line, name, fmt.Sprint(said), outcome, asked, measured)
}

// line has a column each for order, attempt, outcome, asked and measured delay.
const line = "%-8s  %7s  %-26s  %6s  %8s\n"

// deadLetter enters a message found in the dead-letter queue.
func (l *ledger) deadLetter(name, reason, failures, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.letters = append(l.letters, fmt.Sprintf("%-8s  %s, failures %s, error: %s", name, reason, failures, text))
	e := l.find(name)
	if e == nil {
		return
	}
	e.dead++
	if reason != string(e.order.dead) || failures != fmt.Sprint(e.attempts) {
		l.problem("%s: dead-lettered as %q after %s failures, expected %q after %d", name, reason, failures, e.order.dead, e.attempts)
	}
}

func (l *ledger) deadLetters() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.letters)
}

// foundIn enters an order found in a queue that should be empty at the end.
func (l *ledger) foundIn(queue, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.find(name); e != nil && !slices.Contains(e.queues, queue) {
		e.queues = append(e.queues, queue)
	}
}

// decided reports whether every published order was handled or dead-lettered.
func (l *ledger) decided() bool { return l.tally().undecided == 0 }

// tally counts orders, each once in one place.
type tally struct{ published, handled, dead, undecided, lost int }

func (t tally) String() string {
	s := fmt.Sprintf("published %d  handled %d  dead-lettered %d  lost %d", t.published, t.handled, t.dead, t.lost)
	if t.undecided > t.lost {
		s += fmt.Sprintf("  still in a queue %d", t.undecided-t.lost)
	}
	return s
}

func (l *ledger) tally() tally {
	l.mu.Lock()
	defer l.mu.Unlock()
	var t tally
	for _, e := range l.entries {
		switch {
		case !e.published:
			continue
		case e.handled > 0:
			t.handled++
		case e.dead > 0:
			t.dead++
		default:
			t.undecided++
			if len(e.queues) == 0 {
				t.lost++
			}
		}
		t.published++
	}
	return t
}

// faults returns what is wrong with orders that are decided, and with the whole.
func (l *ledger) faults() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	faults := slices.Clone(l.problems)
	add := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	for _, e := range l.entries {
		if e.handled+e.dead == 0 {
			continue
		}
		if e.handled+e.dead > 1 {
			add("%s: handled %d times, dead-lettered %d times", e.name, e.handled, e.dead)
		}
		if e.attempted != e.attempts {
			add("%s: %d attempts, expected %d", e.name, e.attempted, e.attempts)
		}
		if (e.handled > 0) != (e.order.dead == "") {
			add("%s: %s, but handled %d times", e.name, e.story, e.handled)
		}
		for _, queue := range e.queues {
			add("%s: decided, and still in %s", e.name, queue)
		}
	}
	return faults
}
