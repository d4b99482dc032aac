package chaos

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Reasons for which a message was handled or dead-lettered again.
const (
	// Redelivered: the broker delivered a copy again after a handler had it.
	Redelivered = "redelivered by the broker"
	// SentTwice: at-least-once dead-lettering sent the waiting copy twice (F18).
	SentTwice = "returned twice by the broker"
	// TwoCopies: a consumer published the copy for the attempt twice.
	TwoCopies = "handed over twice"
	// TwoLetters: a consumer published the dead letter twice.
	TwoLetters = "dead-lettered twice"
	// Follows: the attempt before was made again, so there are as many copies for this one.
	Follows = "follows from an attempt made again"
)

// Count has the numbers of extra runs or dead letters that the faults explain, or do not explain.
type Count struct{ Explained, Unexplained int }

const (
	// together is the time between the observed ends of one process and of its connections.
	together = 300 * time.Millisecond
	// settling is the time after its end during which a node's fault still explains duplicates:
	// leaders are elected, and messages on their way are sent again.
	settling = 15 * time.Second
	// slack allows for clocks, and for the steps between an act and its line in a log.
	slack = time.Second
)

// evidence has the events that may explain copies.
type evidence struct {
	losses []Loss // by At
	faults []Struck
	timer  time.Duration
}

// window is the time in which an event must lie to explain a copy.
type window struct{ from, to time.Time }

func (w window) overlaps(from, to time.Time) bool { return !from.After(w.to) && !to.Before(w.from) }

func newEvidence(h History) *evidence {
	e := &evidence{faults: h.Faults, timer: h.Timer}
	for _, l := range h.Losses {
		silence, silent := e.silence(l.At)
		if l.Own && !silent {
			continue // the client's own doing
		}
		if silent && l.What != LostProcess && silence.Before(l.Began) {
			l.Began = silence // one side may have noticed long before the other
		}
		e.losses = append(e.losses, l)
	}
	slices.SortStableFunc(e.losses, func(a, b Loss) int { return a.At.Compare(b.At) })
	return e
}

// ofNodes are the faults that end or halt nodes.
var ofNodes = []Kind{KillNode, KillMajority, Minority, FreezeNode, PauseNode, RestartNode}

// silence returns the beginning of the first fault in force that keeps bytes from a connection.
func (e *evidence) silence(at time.Time) (began time.Time, silent bool) {
	for _, f := range e.faults {
		silences := f.Fault.Kind == Blackhole || f.Fault.Kind == RaiseAlarm ||
			f.Fault.Kind == DiskAlarm ||
			slices.Contains(ofNodes, f.Fault.Kind)
		if silences && f.inForce(window{at, at}) && (!silent || f.Begun.Before(began)) {
			began, silent = f.Begun, true
		}
	}
	return began, silent
}

func (s Struck) inForce(w window) bool { return w.overlaps(s.Begun, s.End.Add(settling)) }

// lost counts the times in w at which one of the consumers lost its process or thing.
func (e *evidence) lost(consumers map[string]bool, thing Lost, w window) int {
	last := map[string]time.Time{}
	times := 0
	for _, l := range e.losses {
		if !consumers[l.Consumer] || l.What != thing && l.What != LostProcess ||
			!w.overlaps(l.Began, l.At) {
			continue
		}
		if before, ok := last[l.Consumer]; !ok || l.At.Sub(before) > together {
			times++
		}
		last[l.Consumer] = l.At
	}
	return times
}

// nodes counts the times in w at which a node's fault may have made the broker send a copy again:
// at the beginning of the fault, at its end, and after every dead-letter timer in between.
func (e *evidence) nodes(w window) int {
	times := 0
	for _, f := range e.faults {
		if slices.Contains(ofNodes, f.Fault.Kind) && f.inForce(w) {
			times += 2
			if e.timer > 0 {
				times += int(f.End.Sub(f.Begun) / e.timer)
			}
		}
	}
	return times
}

// copies compares the runs and dead letters of a message with the events that explain them.
type copies struct {
	report   *Report
	evidence *evidence
	n        int
	runs     map[int][]Attempt // by number, each by time
	letters  []Letter
}

// count counts the extra runs of every attempt, and the extra dead letters.
func (c *copies) count() {
	for _, number := range slices.Sorted(maps.Keys(c.runs)) {
		c.attempt(number)
	}
	c.dead()
}

// attempt counts the extra runs of one attempt. Each run of the attempt before may publish one
// copy, and each copy may be run once. A snoozed copy stands for the copy that it was made from.
func (c *copies) attempt(number int) {
	runs, before := c.runs[number], c.runs[number-1]
	sources := max(len(before), 1)
	plain, aside := nonces(runs, false), nonces(runs, true)
	all := max(len(plain), min(len(plain)+len(aside), sources)) // copies that one run each is due to

	extra := max(0, len(plain)-sources)
	c.add(Follows, number, all-1-extra, all-1-extra)
	if extra > 0 {
		// The last copy was published its delay before it was run at the earliest.
		last := runs[0].Began
		for _, first := range plain {
			last = latest(last, first)
		}
		if number > 1 {
			last = last.Add(-delayBefore(number))
		}
		c.add(TwoCopies, number, extra, c.evidence.lost(consumersOf(before), LostPublishing,
			during(before, last)))
	}
	if again := len(runs) - all; again > 0 {
		w := window{runs[0].Began, runs[0].Began}
		for _, run := range runs {
			w.from = earliest(w.from, run.Began.Add(-slack))
			w.to = latest(w.to, run.Began.Add(slack))
		}
		nodes := c.evidence.nodes(w)
		explained := nodes + c.evidence.lost(consumersOf(runs), LostConsuming, w)
		if len(aside) > 0 { // by any consumer, which may have published twice
			explained += c.evidence.lost(c.evidence.consumers(), LostPublishing, w)
		}
		sent := min(again, unflagged(runs))
		c.add(SentTwice, number, sent, explained)
		c.add(Redelivered, number, again-sent, max(0, explained-sent))
	}
}

// dead counts the extra dead letters. It leaves out the dead letters of the crash guard, which come
// from no failure of a handler.
func (c *copies) dead() {
	var last []Attempt
	for _, runs := range c.runs {
		for _, run := range runs {
			if run.Outcome == Permanent || run.Outcome != Handled && run.Attempt >= Limit {
				last = append(last, run)
			}
		}
	}
	letters := slices.DeleteFunc(slices.Clone(c.letters),
		func(l Letter) bool { return l.Reason == "crash_loop" })
	sources := max(len(last), 1)
	extra := max(0, len(letters)-sources)
	c.add(Follows, 0, max(0, len(letters)-1-extra), max(0, len(letters)-1-extra))
	if extra > 0 {
		end := letters[0].At
		for _, l := range letters {
			end = latest(end, l.At)
		}
		c.add(TwoLetters, 0, extra, c.evidence.lost(consumersOf(last), LostPublishing, during(last, end)))
	}
}

// add counts extra runs of an attempt, or extra dead letters if number is 0. It counts at most
// explained of them as explained.
func (c *copies) add(why string, number, times, explained int) {
	if times <= 0 {
		return
	}
	explained = min(times, explained)
	count := c.report.Again[why]
	count.Explained += explained
	count.Unexplained += times - explained
	c.report.Again[why] = count
	if times > explained {
		what := "dead letter"
		if number > 0 {
			what = fmt.Sprint("attempt ", number)
		}
		c.report.Unexplained = append(c.report.Unexplained,
			fmt.Sprintf("message %d: %s %s: %d times, %d explained", c.n, what, why, times, explained))
		if !slices.Contains(c.report.unexplained, c.n) {
			c.report.unexplained = append(c.report.unexplained, c.n)
		}
	}
}

// nonces returns the copies that were run, either the snoozed ones or the others, each with the
// beginning of its first run.
func nonces(runs []Attempt, aside bool) map[string]time.Time {
	first := map[string]time.Time{}
	for _, run := range runs {
		if before, ok := first[run.Nonce]; run.Aside == aside && (!ok || run.Began.Before(before)) {
			first[run.Nonce] = run.Began
		}
	}
	return first
}

// unflagged counts runs of a copy that had been run before, without the broker's mark of a
// redelivery.
func unflagged(runs []Attempt) int {
	seen := map[string]bool{}
	times := 0
	for _, run := range runs {
		if seen[run.Nonce] && !run.Redelivered {
			times++
		}
		seen[run.Nonce] = true
	}
	return times
}

// during returns the time in which runs were handed over, the last copy at end.
func during(runs []Attempt, end time.Time) window {
	w := window{end, end.Add(slack)}
	for _, run := range runs {
		w.from = earliest(w.from, run.At.Add(-slack))
	}
	return w
}

func consumersOf(runs []Attempt) map[string]bool {
	names := map[string]bool{}
	for _, run := range runs {
		names[run.Consumer] = true
	}
	return names
}

// consumers returns the consumers that have lost anything.
func (e *evidence) consumers() map[string]bool {
	names := map[string]bool{}
	for _, l := range e.losses {
		names[l.Consumer] = true
	}
	return names
}

// delayBefore returns the delay before an attempt.
func delayBefore(number int) time.Duration {
	if number-2 < len(Delays) {
		return Delays[number-2]
	}
	return 0
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
