package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Reasons for which a message was handled or dead-lettered again.
const (
	// redeliveredAgain: the broker delivered a copy again after a handler had it.
	redeliveredAgain = "redelivered by the broker"
	// sentTwice: at-least-once dead-lettering sent the waiting copy twice (F18).
	sentTwice = "returned twice by the broker"
	// twoCopies: an instance published the copy for the attempt twice.
	twoCopies = "handed over twice"
	// twoLetters: an instance published the dead letter twice.
	twoLetters = "dead-lettered twice"
	// followsAgain: the attempt before was made again, so there are as many copies for this one.
	followsAgain = "follows from an attempt made again"
)

// faultsExplainCopies: without a fault every attempt runs once. Each extra run or dead letter has
// an event of its own that explains it.
func faultsExplainCopies(h *history, r *report) {
	c := &copies{h: h, evidence: newEvidence(h), explained: map[string]int{}, not: map[string]int{}}
	handledAgain, deadAgain := 0, 0
	for _, m := range h.messages() {
		c.m = m
		byNumber := map[int][]attempt{}
		for _, a := range h.runs[m] {
			byNumber[a.Attempt] = append(byNumber[a.Attempt], a)
		}
		for _, number := range slices.Sorted(maps.Keys(byNumber)) {
			c.attempt(number, byNumber[number], byNumber[number-1])
		}
		// The dead letters of the crash guard come from no failure of a handler.
		var letters []attempt
		for _, l := range h.letters[m] {
			if l.Text != "crash_loop" {
				letters = append(letters, attempt{event: l})
			}
		}
		if len(letters) > 0 {
			c.attempt(deadLetter, letters, slices.DeleteFunc(slices.Clone(h.runs[m]),
				func(a attempt) bool { return a.outcome != gaveUp }))
		}
		handledAgain += max(0, h.handled(m)-1)
		deadAgain += max(0, len(h.letters[m])-1)
	}
	r.row("made again", "%d messages handled again, %d dead-lettered again", handledAgain, deadAgain)
	for _, why := range slices.Sorted(maps.Keys(c.explained)) {
		r.row("", "%s: %d explained, %d unexplained", why, c.explained[why], c.not[why])
	}
	r.suspects = append(r.suspects, c.suspects...)
	r.problem("times a message was handled or dead-lettered more often than its faults explain",
		c.unexplained...)
}

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
	losses []event // by At
	faults []event
	timer  time.Duration
}

// window is the time in which an event must lie to explain a copy.
type window struct{ from, to time.Time }

func (w window) overlaps(from, to time.Time) bool { return !from.After(w.to) && !to.Before(w.from) }

// since returns w, beginning a delay after the first end of runs if that is earlier.
func (w window) since(runs []attempt, delay time.Duration) window {
	for _, run := range runs {
		w.from = earliest(w.from, run.end.Add(delay-slack))
	}
	return w
}

func newEvidence(h *history) *evidence {
	e := &evidence{faults: h.faults, timer: cmp.Or(h.Timer, deadLetterTimer)}
	for _, l := range h.losses {
		silence, silent := e.silence(l.At)
		if l.Own && !silent {
			continue // the client's own doing
		}
		if silent && l.Text != lostProcess && silence.Before(l.Began) {
			l.Began = silence // one side may have noticed long before the other
		}
		e.losses = append(e.losses, l)
	}
	slices.SortStableFunc(e.losses, func(a, b event) int { return a.At.Compare(b.At) })
	return e
}

// silencing are the faults that keep bytes from a connection.
var silencing = slices.Concat(ofNodes, []faultKind{
	silenceNode, silenceInstance, freezeInstance, raiseAlarm,
})

// silence returns the beginning of the first fault in force that keeps bytes from a connection.
func (e *evidence) silence(at time.Time) (began time.Time, silent bool) {
	for _, f := range e.faults {
		if slices.Contains(silencing, f.Fault) && inForce(f, window{at, at}) &&
			(!silent || f.Began.Before(began)) {
			began, silent = f.Began, true
		}
	}
	return began, silent
}

func inForce(f event, w window) bool { return w.overlaps(f.Began, f.At.Add(settling)) }

// lost counts the times in w at which one of the consumers, or any if there are none, lost its
// process or thing. The ends of a process and of its connections are one loss.
func (e *evidence) lost(consumers map[string]bool, thing string, w window) (times int) {
	last := map[string]time.Time{}
	for _, l := range e.losses {
		if consumers != nil && !consumers[l.Who] || l.Text != thing && l.Text != lostProcess ||
			!w.overlaps(l.Began, l.At) {
			continue
		}
		name := instanceOf(l.Who)
		if before, ok := last[name]; !ok || l.At.Sub(before) > together {
			times++
		}
		last[name] = l.At
	}
	return times
}

// nodes counts the times in w at which a node's fault may have made the broker send a copy again:
// at the beginning of the fault, at its end, and after every dead-letter timer in between.
func (e *evidence) nodes(w window) (times int) {
	for _, f := range e.faults {
		if slices.Contains(ofNodes, f.Fault) && inForce(f, w) {
			times += 2 + int(f.At.Sub(f.Began)/e.timer)
		}
	}
	return times
}

// copies compares the runs and dead letters of one message after the other with the events that
// explain them.
type copies struct {
	*evidence
	h              *history
	m              id
	explained, not map[string]int // extra runs and dead letters by their reason
	unexplained    []string
	suspects       []id
}

// deadLetter stands for the number of an attempt.
const deadLetter = 0

// attempt counts the extra runs of one attempt. Each run of the attempt before may publish one
// copy, and each copy may be run once. A snoozed copy stands for the copy that it was made from.
// Dead letters are counted like runs, after the runs that gave up.
func (c *copies) attempt(number int, runs, before []attempt) {
	sources := max(len(before), 1)
	plain, aside := nonces(runs, false), nonces(runs, true)
	all := max(len(plain), min(len(plain)+len(aside), sources)) // copies that one run each is due to

	extra := max(0, len(plain)-sources)
	c.add(followsAgain, number, all-1-extra, all-1-extra)
	if extra > 0 {
		// The last copy was published its delay before it was run at the earliest.
		last := runs[0].At
		for _, first := range plain {
			last = latest(last, first)
		}
		why := twoCopies
		if number == deadLetter {
			why = twoLetters
		}
		c.add(why, number, extra, c.lost(consumersOf(before), lostPublishing,
			during(before, last.Add(-c.h.delayBefore(number)))))
	}
	if again := len(runs) - all; again > 0 && number != deadLetter {
		w := window{runs[0].At, runs[0].At}
		for _, run := range runs {
			w.from = earliest(w.from, run.At.Add(-slack))
			w.to = latest(w.to, run.At.Add(slack))
		}
		explained := c.lost(consumersOf(runs), lostConsuming, w)
		if len(aside) > 0 { // by any consumer, which may have published twice
			explained += c.lost(nil, lostPublishing, w)
		}
		// A copy that a fault kept from returning is sent again when the dead-letter timer ends. So the
		// fault may lie anywhere between its due time and its last run.
		sent := min(again, unflagged(runs))
		due := w.since(before, c.h.delayBefore(number))
		c.add(sentTwice, number, sent, explained+c.nodes(due))
		explained += c.nodes(w)
		c.add(redeliveredAgain, number, again-sent, max(0, explained-sent))
	}
}

// add counts extra runs of an attempt. It counts at most explained of them as explained.
func (c *copies) add(why string, number, times, explained int) {
	if times <= 0 {
		return
	}
	explained = min(times, explained)
	c.explained[why] += explained
	c.not[why] += times - explained
	if times > explained {
		c.unexplained = append(c.unexplained, fmt.Sprintf(
			"message %s: attempt %d %s: %d times, %d explained", c.m, number, why, times, explained))
		c.suspects = append(c.suspects, c.m)
	}
}

// nonces returns the copies that were run, either the snoozed ones or the others, each with the
// beginning of its first run.
func nonces(runs []attempt, aside bool) map[string]time.Time {
	first := map[string]time.Time{}
	for _, run := range runs {
		if before, ok := first[run.Copy]; run.Aside == aside && (!ok || run.At.Before(before)) {
			first[run.Copy] = run.At
		}
	}
	return first
}

// unflagged counts runs of a copy that had been run before, without the broker's mark of a
// redelivery.
func unflagged(runs []attempt) (times int) {
	seen := map[string]bool{}
	for _, run := range runs {
		if seen[run.Copy] && !run.Redelivered {
			times++
		}
		seen[run.Copy] = true
	}
	return times
}

// during returns the time in which runs were handed over, the last copy at end.
func during(runs []attempt, end time.Time) window {
	return window{end, end.Add(slack)}.since(runs, 0)
}

// consumersOf returns the consumers of runs, and their instances.
func consumersOf(runs []attempt) map[string]bool {
	names := map[string]bool{}
	for _, run := range runs {
		names[run.Who], names[instanceOf(run.Who)] = true, true
	}
	return names
}

func latest(first time.Time, others ...time.Time) time.Time {
	for _, t := range others {
		if t.After(first) {
			first = t
		}
	}
	return first
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
