package main

import (
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millpond-go/millpond/examples/internal/webhook"
)

// grace is the time by which a message may seem early: client and broker read different clocks.
const grace = 5 * time.Millisecond

// ledger holds the receiver's log and the findings in the dead-letter queue. Its methods may be
// called from many goroutines.
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

// entry is the record of one delivery.
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

// letter has the headers of a delivery in the dead-letter queue.
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

// find returns nil for a message of another program. mu must be locked.
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

// published enters that the broker has confirmed the delivery.
func (l *ledger) published(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.find(id); e != nil {
		e.published = true
	}
}

// line has a column each for delivery, attempt, answer, asked and measured delay.
const line = "%-11s  %7s  %-18s  %6s  %8s\n"

// request enters a request that the sender calls attempt number said. It returns the answer to
// give, and the line of the request.
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
		// The sender gives up no earlier than this. The receiver notices it later, and that time
		// would make the delay seem shorter than it is.
		e.ended = sent.Add(webhook.Patience)
	case e.last.status == http.StatusOK:
		e.delivered++
		l.answered++
	}
	return e.last, fmt.Sprintf(line, id, fmt.Sprint(said), e.last.String(), asked, measured)
}

// delay returns the delay before a request that comes now: the one asked for and the one measured.
func (l *ledger) delay(e *entry, now time.Time) (asked, measured string) {
	failure := e.requests - 1
	switch {
	case failure == 0:
		return "-", "-"
	case failure >= webhook.MaxAttempts:
		return "none", "-" // faults reports it: too many requests
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

// progress returns one line about the progress, of at most 79 columns.
func (l *ledger) progress() string {
	r := l.report()
	return fmt.Sprintf("published %d/%d  delivered %d  dead-lettered %d  to do %d  attempts %d",
		r.published, len(l.entries), r.sumDelivered(), r.sumDead(), r.undecided, r.requests)
}

// report counts each published delivery once, in one place.
type report struct {
	published int
	delivered map[int]int  // by the requests it took
	dead      map[fate]int // by reason and last answer
	undecided int
	lost      []string // undecided, and in no queue

	requests int
	late     []time.Duration // ascending
}

// fate is the reason of a dead letter, and the receiver's last answer.
type fate struct{ reason, answer string }

func (l *ledger) report() report {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sum()
}

// sum makes the report. l.mu must be locked.
func (l *ledger) sum() report {
	r := report{
		delivered: map[int]int{}, dead: map[fate]int{}, requests: l.requests, late: slices.Clone(l.late),
	}
	slices.Sort(r.late)
	for _, e := range l.entries {
		switch {
		case !e.published:
			continue
		case e.delivered > 0:
			r.delivered[e.requests]++
		case len(e.dead) > 0:
			r.dead[fate{e.dead[0].reason, e.last.String()}]++
		default:
			r.undecided++
			if len(e.queues) == 0 {
				r.lost = append(r.lost, e.id)
			}
		}
		r.published++
	}
	return r
}

func (r report) sumDelivered() int { return sum(r.delivered) }
func (r report) sumDead() int      { return sum(r.dead) }

func sum[K comparable](counts map[K]int) (total int) {
	for _, n := range counts {
		total += n
	}
	return total
}

// String returns the table at the end of the demo.
func (r report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "delivered\n")
	for _, requests := range slices.Sorted(maps.Keys(r.delivered)) {
		what := "attempts"
		if requests == 1 {
			what = "attempt"
		}
		fmt.Fprintf(&b, row, fmt.Sprintf("%d %s", requests, what), r.delivered[requests])
	}
	fmt.Fprintf(&b, "dead-lettered\n")
	for _, f := range slices.SortedFunc(maps.Keys(r.dead), func(a, b fate) int {
		return strings.Compare(a.reason+a.answer, b.reason+b.answer)
	}) {
		fmt.Fprintf(&b, row, f.reason+", last "+f.answer, r.dead[f])
	}
	fmt.Fprintf(&b, "lateness of %d retries: p50 %v, p99 %v\n", len(r.late), percentile(r.late, 50),
		percentile(r.late, 99))
	fmt.Fprintf(&b, "\npublished %d  delivered %d  dead-lettered %d  lost %d", r.published,
		r.sumDelivered(), r.sumDead(), len(r.lost))
	if waiting := r.undecided - len(r.lost); waiting > 0 {
		fmt.Fprintf(&b, "  still in a queue %d", waiting)
	}
	return b.String()
}

const row = "  %-24s  %4d\n"

// percentile returns the smallest value that p percent do not exceed. The values must ascend.
func percentile(values []time.Duration, p float64) time.Duration {
	if len(values) == 0 {
		return 0
	}
	rank := int(math.Ceil(p / 100 * float64(len(values))))
	return values[max(rank, 1)-1].Round(100 * time.Microsecond)
}

// faults returns the contradictions between the receiver's log, the dead-letter queue and the
// plan, of every decided delivery and of their sums.
func (l *ledger) faults() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.sum()
	faults := slices.Clone(l.problems)
	add := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	for _, e := range l.entries {
		if e.delivered+len(e.dead) == 0 {
			continue
		}
		if e.delivered+len(e.dead) > 1 {
			add("%s: delivered %d times, dead-lettered %d times", e.id, e.delivered, len(e.dead))
		}
		attempts, dead := e.script.end()
		if e.requests != attempts {
			add("%s: %d attempts, expected %d", e.id, e.requests, attempts)
		}
		for _, d := range e.dead {
			if d.reason != string(dead) || d.failures != fmt.Sprint(e.requests) {
				add("%s: dead-lettered as %q after %s failures, expected %q after %d", e.id, d.reason,
					d.failures, dead, e.requests)
			}
		}
		for _, queue := range e.queues {
			add("%s: decided, and still in %s", e.id, queue)
		}
	}
	if r.sumDelivered() != l.answered {
		add("the table has %d delivered, the receiver answered 2xx %d times", r.sumDelivered(),
			l.answered)
	}
	if r.sumDead() != l.letters {
		add("the table has %d dead-lettered, the dead-letter queue has %d", r.sumDead(), l.letters)
	}
	return faults
}
