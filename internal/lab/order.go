package main

import (
	"fmt"
	"time"
)

// orderJudge reads the events in the order of the log. An inversion is a message that is over for
// the first time after the handling of a later message of its key has begun. A message is over
// when a handling of it succeeds or gives up. Messages without a confirm have no place in it.
type orderJudge struct {
	*history
	keys      map[int]*keyState
	running   map[call]*handling   // of the instances that have not ended
	disturbed map[string]time.Time // when an instance was last frozen or cut off; "": all were
	leads     map[uint64]lead      // of each fencing token
	healed    time.Time            // zero until the faults are over

	// The findings. passed are messages that began between a dead letter of their key and its
	// release, or before its replay was over. stalls are messages that waited for longer than the
	// bound after the faults, with nothing to wait for. overlaps are handlings of a key at the same
	// time in two instances, and inOne in one. stale are handlings that began with an older fencing
	// token than an earlier handling of the key had. shared are fencing tokens of two instances.
	inversions, passed, stalls, overlaps, inOne, stale, shared []string
	// excused are overlaps and stale handlings that a fault explains: only the token makes them
	// harmless.
	excused int
	longest time.Duration // the longest wait after the faults, with nothing to wait for
}

// keyState is all about one key.
type keyState struct {
	over    map[int]bool
	lowest  int       // of the messages that are not over
	highest event     // the begin of the latest message so far
	freed   time.Time // when lowest became the lowest
	due     map[int]time.Time
	active  map[call]*handling
	epoch   uint64 // the highest
	// letters block the key until the operator decides. replays have been replayed since, and are
	// not over again. No later message may begin for the first time.
	letters, replays map[int]bool
}

// lead is the first begin with a fencing token.
type lead struct {
	instance string
	since    time.Time
}

// handling has begun and not ended.
type handling struct {
	event
	lostTouch bool // a fault explains that another instance handles the key meanwhile
}

// keysKeepTheirOrder: no message of a key is handled before an earlier one was handled or given up,
// nor, with Block, before the letter of an earlier one was released.
func keysKeepTheirOrder(h *history, r *report) {
	j := h.order()
	r.row("order", "%d inversions, %d overlaps that a fault explains", len(j.inversions), j.excused)
	r.row("longest wait", "%s after the faults", j.longest.Round(time.Millisecond))
	r.problem("inversions", j.inversions...)
	r.problem("messages began before a dead letter of their key was released", j.passed...)
	r.problem("fencing tokens of two instances", j.shared...)
	r.problem("handlings began with an older fencing token, and no fault explains it", j.stale...)
	r.problem("times two instances handled a key at once, and no fault explains it", j.overlaps...)
	r.problem("times one instance handled a key twice at once", j.inOne...)
	r.problem("stalls after the faults", j.stalls...)
	var undone []string
	for _, f := range h.faults {
		if f.Failed { // it would excuse what it did not cause
			undone = append(undone, string(f.Fault)+": "+f.Text)
		}
	}
	r.problem("faults could not be done", undone...)
}

// order judges the order of the events.
func (h *history) order() *orderJudge {
	j := &orderJudge{
		history: h, keys: map[int]*keyState{}, running: map[call]*handling{},
		disturbed: map[string]time.Time{}, leads: map[uint64]lead{},
	}
	for _, e := range h.events {
		e.Who = instanceOf(e.Who)
		switch e.Kind {
		case begun:
			j.begin(e)
		case ended:
			j.end(e)
		case struck, over:
			j.disturb(e)
		case gone:
			j.gone(e.Who)
		case healed:
			j.healed = e.At
		case decided:
			j.decide(e)
		}
	}
	return j
}

func (j *orderJudge) key(key int) *keyState {
	k := j.keys[key]
	if k == nil {
		k = &keyState{
			over: map[int]bool{}, lowest: 1, due: map[int]time.Time{}, active: map[call]*handling{},
			letters: map[int]bool{}, replays: map[int]bool{},
		}
		j.keys[key] = k
	}
	return k
}

// isOver reports whether a message is over, or has no place in the order.
func (j *orderJudge) isOver(m id) bool {
	_, confirmed := j.sent[m]
	return !confirmed || j.key(m.Key).over[m.N]
}

func (j *orderJudge) begin(e event) {
	k := j.key(e.Key)
	j.lateness(k, e)
	j.token(k, e)
	j.overlap(k, e)
	j.passes(k, e)
	if e.N > k.highest.N {
		k.highest = e
	}
	h := &handling{event: e, lostTouch: j.wasStruck(e)}
	k.active[call{e.Who, e.Call}], j.running[call{e.Who, e.Call}] = h, h
}

// lateness compares the begin with the time from which on nothing of its key had to wait.
func (j *orderJudge) lateness(k *keyState, e event) {
	if j.healed.IsZero() || j.isOver(e.id) {
		return
	}
	due := latest(j.healed, j.sent[e.id], k.due[e.N])
	for j.isOver(id{e.Key, k.lowest}) && k.lowest < e.N { // those without a confirm
		k.lowest++
	}
	if e.N == k.lowest {
		due = latest(due, k.freed)
	}
	late := e.At.Sub(due)
	j.longest = max(j.longest, late)
	if late > j.Bound {
		j.stalls = append(j.stalls, fmt.Sprintf("%s: attempt %d began %s late", e.id, e.Attempt,
			late.Round(time.Millisecond)))
	}
}

// token checks the fencing token of a begin.
func (j *orderJudge) token(k *keyState, e event) {
	if e.Epoch == 0 {
		return
	}
	first, known := j.leads[e.Epoch]
	if !known {
		j.leads[e.Epoch] = lead{e.Who, e.At}
	} else if first.instance != e.Who {
		j.shared = append(j.shared, fmt.Sprintf("token %d: instances %s and %s, %s", e.Epoch,
			first.instance, e.Who, e.id))
	}
	switch {
	case e.Epoch >= k.epoch:
	case j.wasStruck(e):
		j.excused++
	default:
		j.stale = append(j.stale, fmt.Sprintf("%s: begun by %s with token %d after token %d", e.id,
			e.Who, e.Epoch, k.epoch))
	}
	k.epoch = max(k.epoch, e.Epoch)
}

const (
	// shortly bounds how long after a fault its instance may begin messages although another one
	// leads: the lease of three seconds, and two seconds of a busy machine.
	shortly = 5 * time.Second
	// firstBegin bounds the time between a takeover and the first begin.
	firstBegin = time.Second
)

// wasStruck reports whether a fault explains that the instance of a begin does not know that it has
// lost the lead: the fault has struck shortly before, and not before the instance took the lead.
func (j *orderJudge) wasStruck(e event) bool {
	struck := latest(j.disturbed[""], j.disturbed[e.Who])
	first, known := j.leads[e.Epoch]
	return e.At.Sub(struck) < shortly && (!known || first.since.Before(struck.Add(firstBegin)))
}

// overlap compares a begin with the handlings of its key that have not ended. A fault must have
// struck the one whose fencing token is older. None excuses two with the same token.
func (j *orderJudge) overlap(k *keyState, e event) {
	for _, h := range k.active {
		excused := h.lostTouch
		if e.Epoch < h.Epoch {
			excused = j.wasStruck(e)
		}
		pair := fmt.Sprintf("%s: begun by %s with token %d while %s handles number %d with token %d "+
			"since %s", e.id, e.Who, e.Epoch, h.Who, h.N, h.Epoch,
			e.At.Sub(h.At).Round(time.Millisecond))
		switch {
		case h.Who == e.Who && (h.Epoch == e.Epoch || !excused):
			j.inOne = append(j.inOne, pair)
		case !excused:
			j.overlaps = append(j.overlaps, pair)
		default:
			j.excused++
		}
	}
}

// passes compares a begin with the dead letters of its key. A message that was over before may
// begin again: its ack was lost.
func (j *orderJudge) passes(k *keyState, e event) {
	if j.isOver(e.id) {
		return
	}
	for state, letters := range map[string]map[int]bool{
		"blocked": k.letters, "was replayed and not over": k.replays,
	} {
		for n := range letters {
			if e.N > n {
				j.passed = append(j.passed, fmt.Sprintf(
					"%s: begun by %s while the dead letter of number %d %s", e.id, e.Who, n, state))
			}
		}
	}
}

func (j *orderJudge) end(e event) {
	k, h := j.key(e.Key), j.running[call{e.Who, e.Call}]
	if h == nil {
		return // it was killed between the mark and the kill
	}
	delete(j.running, call{e.Who, e.Call})
	delete(k.active, call{e.Who, e.Call})
	if e.Outcome == failed {
		k.due[e.N] = e.At.Add(j.delayBefore(e.Attempt + 1))
		return
	}
	if k.replays[e.N] {
		delete(k.replays, e.N)
		k.freed = e.At
	}
	// An instance that has lost its connection may not have written its letter: then the message
	// comes again, unless it was over before.
	if e.Outcome == gaveUp && j.Block && (!k.over[e.N] || !h.lostTouch) {
		k.letters[e.N] = true
	}
	if j.isOver(e.id) {
		return
	}
	if k.highest.N > e.N {
		j.inversions = append(j.inversions, fmt.Sprintf(
			"%s: over by %s at attempt %d, after number %d was begun by %s %s before", e.id, e.Who,
			e.Attempt, k.highest.N, k.highest.Who, e.At.Sub(k.highest.At).Round(time.Millisecond)))
	}
	k.over[e.N] = true
	delete(k.due, e.N)
	for k.over[k.lowest] {
		k.lowest++
		k.freed = e.At
	}
}

// decide takes a decision of the operator. One about a letter that was decided before repeats it.
func (j *orderJudge) decide(e event) {
	k := j.key(e.Key)
	k.freed = e.At
	if e.Outcome == released {
		delete(k.replays, e.N)
	}
	if k.letters[e.N] && e.Outcome == replayed {
		k.replays[e.N] = true
	}
	delete(k.letters, e.N)
}

// undecided returns how many dead letters block their keys, or were replayed and are not over.
func (j *orderJudge) undecided() (count int) {
	for _, k := range j.keys {
		count += len(k.letters) + len(k.replays)
	}
	return count
}

func (j *orderJudge) gone(instance string) {
	for c, h := range j.running {
		if c.who == instance {
			delete(j.running, c)
			delete(j.key(h.Key).active, c)
		}
	}
}

// disturb marks the handlings whose instance loses its connection. At the end of a fault, too: a
// frozen process goes on.
func (j *orderJudge) disturb(e event) {
	if e.Fault == killInstance && e.Kind == struck {
		j.gone(e.Who)
		return
	}
	j.disturbed[e.Who] = e.At
	for c, h := range j.running {
		h.lostTouch = h.lostTouch || e.Who == "" || e.Who == c.who
	}
}
