package chaos

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Why a message was handled, or dead-lettered, once more.
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

// Count is how many extra runs or dead letters the faults explain, and how many they do not.
type Count struct{ Explained, Unexplained int }

const (
	// together is how far apart the ends of one process and of its connections are seen.
	together = 300 * time.Millisecond
	// settling is for how long after its end a node's fault still explains what the broker does twice:
	// leaders are elected, and what was on its way is sent again.
	settling = 15 * time.Second
	// slack is for clocks and for the steps between an act and its line in a log.
	slack = time.Second
)

// evidence is what may explain copies.
type evidence struct {
	losses []Loss // by At
	faults []Struck
	timer  time.Duration
}

// window is a time in which something must have happened to be an explanation.
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
var ofNodes = []Kind{KillNode, KillMajority, Minority, FreezeNode, RestartNode}

// silence returns the beginning of the first fault in force that keeps bytes from a connection.
func (e *evidence) silence(at time.Time) (began time.Time, silent bool) {
	for _, f := range e.faults {
		silences := f.Fault.Kind == Blackhole || f.Fault.Kind == RaiseAlarm ||
			slices.Contains(ofNodes, f.Fault.Kind)
		if silences && f.inForce(window{at, at}) && (!silent || f.Begun.Before(began)) {
			began, silent = f.Begun, true
		}
	}
	return began, silent
}

func (s Struck) inForce(w window) bool { return w.overlaps(s.Begun, s.End.Add(settling)) }

// lost counts the times at which one of the consumers has lost its process or what, in w.
func (e *evidence) lost(consumers map[string]bool, what Lost, w window) int {
	last := map[string]time.Time{}
	times := 0
	for _, l := range e.losses {
		if !consumers[l.Consumer] || l.What != what && l.What != LostProcess ||
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

// nodes counts how often faults of nodes may have made the broker send one copy again in w: at the
// beginning of a fault, at its end, and after every dead-letter timer in between.
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

// copies compares how often a message was handled and dead-lettered with what the faults explain.
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

// attempt counts the extra runs of one attempt. A run of the attempt before may publish one copy,
// and a copy may be run once; a copy that was set aside stands for the one that it was made from.
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

// dead counts the extra dead letters. Those of the crash guard come from no failure of a handler.
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

// add counts times extra runs of an attempt, or dead letters for number 0, of which as many as
// explained are explained.
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

// nonces returns the copies that were run, or of those the ones that were set aside, each with the
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

// unflagged is how many runs had a copy that had been run before, and that the broker did not call
// redelivered.
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

// during is the time in which runs were handed over, the last copy at end.
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

// consumers are all that have lost something.
func (e *evidence) consumers() map[string]bool {
	names := map[string]bool{}
	for _, l := range e.losses {
		names[l.Consumer] = true
	}
	return names
}

// delayBefore is how long a message waits for an attempt.
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
