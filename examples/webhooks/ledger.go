package main

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/millpond-go/millpond/examples/internal/webhook"
)

// grace is how early a message may seem to come back: client and broker do not read the same clock.
const grace = 5 * time.Millisecond

// ledger holds the receiver's log, and what was found in the dead-letter queue.
// Its methods may be called from many goroutines.
type ledger struct {
	mu       sync.Mutex
	entries  []*entry // in the order of the plan
	byID     map[string]*entry
	late     []time.Duration // measured delay minus asked, of every retry
	answered int             // requests that were answered 2xx
	letters  int             // messages in the dead-letter queue
	requests int
	problems []string
}

// entry is what is known of a delivery.
type entry struct {
	planned
	published bool
	requests  int
	last      answer
	ended     time.Time // of the last request
	delivered int       // requests that were answered 2xx
	dead      []letter
	queues    []string // where else it was found at the end
}

// letter is what the dead-letter queue says of a delivery.
type letter struct{ reason, failures string }

func newLedger(plan []planned) *ledger {
	l := &ledger{byID: make(map[string]*entry, len(plan))}
	for _, p := range plan {
		e := &entry{planned: p}
		l.entries = append(l.entries, e)
		l.byID[p.id] = e
	}
	return l
}

// find must be called with mu locked. It is nil for a message of somebody else.
func (l *ledger) find(id string) *entry {
	e := l.byID[id]
	if e == nil {
		l.problem("%q is no delivery of this demo", id)
	}
	return e
}

func (l *ledger) problem(format string, args ...any) {
	l.problems = append(l.problems, fmt.Sprintf(format, args...))
}

// published: the broker has confirmed the delivery.
func (l *ledger) published(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.find(id); e != nil {
		e.published = true
	}
}

// line has a column each for delivery, attempt, answer, asked and measured delay.
const line = "%-11s  %7s  %-18s  %6s  %8s\n"

// request enters a request that the sender calls attempt number said. It returns
// how to answer, and the line of the request.
func (l *ledger) request(id string, said int, sent, at time.Time) (answer, string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests++
	e := l.find(id)
	if e == nil {
		return answer{status: http.StatusNotFound}, ""
	}
	e.requests++
	if said != e.requests {
		l.problem("%s: request %d is called attempt %d", id, e.requests, said)
	}
	asked, measured := l.delay(e, at)

	e.last = e.script.at(e.requests)
	e.ended = at
	switch {
	case e.last.hang:
		// The sender's patience ends no earlier than this; when the receiver
		// notices may be later, and would make the delay seem shorter than it is.
		e.ended = sent.Add(webhook.Patience)
	case e.last.status == http.StatusOK:
		e.delivered++
		l.answered++
	}
	return e.last, fmt.Sprintf(line, id, fmt.Sprint(said), e.last.String(), asked, measured)
}

// delay returns the delay before a request that comes now, as it was asked for and as it was.
func (l *ledger) delay(e *entry, now time.Time) (asked, measured string) {
	failure := e.requests - 1
	switch {
	case failure == 0:
		return "-", "-"
	case failure >= webhook.MaxAttempts:
		return "none", "-" // faults has it: too many requests
	}
	wait, was := e.last.wait(failure), now.Sub(e.ended)
	l.late = append(l.late, was-wait)
	if was < wait-grace {
		l.problem("%s: attempt %d came after %v, asked for were %v", e.id, e.requests,
			was.Round(100*time.Microsecond), wait)
	}
	return wait.String(), was.Round(time.Millisecond).String()
}

// deadLetter enters a message found in the dead-letter queue.
func (l *ledger) deadLetter(id, reason, failures string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.letters++
	if e := l.find(id); e != nil {
		e.dead = append(e.dead, letter{reason, failures})
	}
}

// foundIn enters a delivery found in a queue that should be empty at the end.
func (l *ledger) foundIn(queue, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.find(id); e != nil && !slices.Contains(e.queues, queue) {
		e.queues = append(e.queues, queue)
	}
}

// decided reports whether every delivery of the plan was delivered or dead-lettered.
func (l *ledger) decided() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !slices.ContainsFunc(l.entries, func(e *entry) bool { return e.delivered+len(e.dead) == 0 })
}

// progress is one line on how far it is, of at most 79 columns.
func (l *ledger) progress() string {
	r := l.report()
	return fmt.Sprintf("published %d/%d  delivered %d  dead-lettered %d  to do %d  attempts %d",
		r.published, len(l.entries), r.sumDelivered(), r.sumDead(), r.undecided, r.requests)
}
