package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// report counts deliveries that were published, each once in one place.
type report struct {
	published int
	delivered map[int]int  // by the requests it took
	dead      map[fate]int // by what the dead-letter queue and the receiver say
	undecided int
	lost      []string // undecided, and in no queue

	requests int
	late     []time.Duration // ascending
}

// fate is why a delivery was given up, and what the receiver answered last.
type fate struct{ reason, answer string }

func (l *ledger) report() report {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sum()
}

// sum makes the report. l.mu is held.
func (l *ledger) sum() report {
	r := report{delivered: map[int]int{}, dead: map[fate]int{}, requests: l.requests,
		late: slices.Clone(l.late)}
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

// String is the table that the demo ends with.
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

// percentile returns the smallest value that p percent do not exceed. The values ascend.
func percentile(values []time.Duration, p float64) time.Duration {
	if len(values) == 0 {
		return 0
	}
	rank := int(math.Ceil(p / 100 * float64(len(values))))
	return values[max(rank, 1)-1].Round(100 * time.Microsecond)
}

// faults returns what is wrong with deliveries that are decided, and with the
// whole: the receiver's log, the dead-letter queue and the plan have to agree.
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
