package main

import (
	"fmt"
	"slices"
	"time"
)

// judge reads the events in the order of the log, and counts the mistakes.
//
// An inversion is a message that is over for the first time after the handling of a later message
// of its key has begun. A message is over when a handling of it succeeds or gives up.
type judge struct {
	fates  fates
	delays []time.Duration
	// patience is how long a message may wait after the faults, when it has nothing to wait for.
	patience time.Duration
	// block says that a dead letter blocks its key until the operator decides.
	block bool
	// confirmedAt returns when the producer's message was confirmed.
	confirmedAt func(id) (time.Time, bool)

	keys      map[int]*keyState
	running   map[string]map[uint64]*handling // of each instance that has not been killed
	disturbed map[string]time.Time            // when an instance was last frozen or cut off
	allStruck time.Time                       // when all were
	leads     map[uint64]lead                 // of each fencing token
	healed    time.Time                       // zero until the faults are over

	report report
}

// keyState is all about one key.
type keyState struct {
	over    map[int]bool
	times   map[int]int // successes of each message
	lowest  int         // of the messages that are not over
	highest event       // the begin of the latest message so far
	freed   time.Time   // when lowest became the lowest
	due     map[int]time.Time
	active  []*handling
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
	frozen    bool // its instance was frozen since
}

// report is the outcome of a run.
type report struct {
	Messages, Handled, Dead int // confirmed; over by a success; over by giving up
	Handlings, Failures     int

	Inversions []string
	// Passed are messages that began between a dead letter of their key and its release, or before
	// its replay was over.
	Passed []string
	// Released and Replayed are decisions of the operator, Blocked the letters that blocked keys.
	Blocked, Released, Replayed int

	Lost       []id
	Unfinished map[string]int // messages that are still on the broker, by queue
	Stalls     []string
	// Latest is the longest wait of a message after the faults, with nothing to wait for.
	Latest time.Duration

	// Duplicates are successes after the first of a message.
	Duplicates int
	// Overlaps are pairs of handlings of a key at the same time in two instances, and InOne in one.
	// Excused are pairs of which a fault had struck the one with the older fencing token: only the
	// token makes them harmless.
	Overlaps, InOne []string
	Excused         int
	// Zombies are ends of handlings in which the process was frozen. Overtaken are those among them
	// whose key was handled elsewhere meanwhile.
	Zombies, Overtaken int
	// Stale are handlings that began with an older fencing token than an earlier handling of the key
	// had. Late are handlings of this kind that a fault explains. Shared are fencing tokens of two
	// instances.
	Stale, Shared []string
	Late          int
	Tokens        int
	// Unexplained are dead letters that should have been handled, with their reasons. No fault
	// explains one: none strikes the same message again and again.
	Unexplained []string
	Letters     int

	Faults map[fault]int
}

func newJudge(
	f fates, delays []time.Duration, patience time.Duration, confirmedAt func(id) (time.Time, bool),
) *judge {
	return &judge{
		fates: f, delays: delays, patience: patience, confirmedAt: confirmedAt,
		keys: map[int]*keyState{}, running: map[string]map[uint64]*handling{},
		disturbed: map[string]time.Time{}, leads: map[uint64]lead{},
		report: report{Unfinished: map[string]int{}, Faults: map[fault]int{}},
	}
}

// mostListed bounds the lists of a report.
const mostListed = 20

func (j *judge) add(e event) {
	switch e.kind {
	case begun:
		j.begin(e)
	case ended:
		j.end(e)
	case struck:
		j.strike(e)
	case decided:
		j.decide(e)
	}
}

func (j *judge) key(key int) *keyState {
	k := j.keys[key]
	if k == nil {
		k = &keyState{
			over: map[int]bool{}, times: map[int]int{}, lowest: 1, due: map[int]time.Time{},
			letters: map[int]bool{}, replays: map[int]bool{},
		}
		j.keys[key] = k
	}
	return k
}

func (j *judge) begin(e event) {
	j.report.Handlings++
	k := j.key(e.msg.key)
	j.lateness(k, e)
	j.token(k, e)
	j.overlaps(k, e)
	j.passes(k, e)
	if e.msg.n > k.highest.msg.n {
		k.highest = e
	}
	h := &handling{event: e, lostTouch: j.wasStruck(e)}
	k.active = append(k.active, h)
	if j.running[e.instance] == nil {
		j.running[e.instance] = map[uint64]*handling{}
	}
	j.running[e.instance][e.call] = h
}

// lateness compares the begin with the time from which on nothing of its key had to wait.
func (j *judge) lateness(k *keyState, e event) {
	if j.healed.IsZero() || k.over[e.msg.n] {
		return
	}
	confirmed, ok := j.confirmedAt(e.msg)
	if !ok {
		return
	}
	due := latest(j.healed, confirmed, k.due[e.msg.n])
	if e.msg.n == k.lowest {
		due = latest(due, k.freed)
	}
	late := e.at.Sub(due)
	j.report.Latest = max(j.report.Latest, late)
	if late > j.patience {
		j.report.Stalls = append(j.report.Stalls, fmt.Sprintf(
			"%s: attempt %d began %s late", e.msg, e.attempt, late.Round(time.Millisecond)))
	}
}

func latest(first time.Time, others ...time.Time) time.Time {
	for _, t := range others {
		if t.After(first) {
			first = t
		}
	}
	return first
}

// token checks the fencing token of a begin.
func (j *judge) token(k *keyState, e event) {
	if e.epoch == 0 {
		return
	}
	switch first, known := j.leads[e.epoch]; {
	case !known:
		j.leads[e.epoch] = lead{e.instance, e.at}
		j.report.Tokens++
	case first.instance != e.instance:
		j.report.Shared = append(j.report.Shared, fmt.Sprintf(
			"token %d: instances %s and %s, %s", e.epoch, first.instance, e.instance, e.msg))
	}
	switch {
	case e.epoch >= k.epoch:
	case j.wasStruck(e):
		j.report.Late++
	default:
		j.report.Stale = append(j.report.Stale, fmt.Sprintf(
			"%s: begun by %s with token %d after token %d", e.msg, e.instance, e.epoch, k.epoch))
	}
	k.epoch = max(k.epoch, e.epoch)
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
func (j *judge) wasStruck(e event) bool {
	struck := latest(j.allStruck, j.disturbed[e.instance])
	first, known := j.leads[e.epoch]
	return e.at.Sub(struck) < shortly && (!known || first.since.Before(struck.Add(firstBegin)))
}

// overlaps compares a begin with the handlings of its key that have not ended. A fault must have
// struck the one whose fencing token is older. None excuses two with the same token.
func (j *judge) overlaps(k *keyState, e event) {
	for _, h := range k.active {
		excused := h.lostTouch
		if e.epoch < h.epoch {
			excused = j.wasStruck(e)
		}
		pair := fmt.Sprintf("%s: begun by %s with token %d while %s handles number %d with token %d "+
			"since %s", e.msg, e.instance, e.epoch, h.instance, h.msg.n, h.epoch,
			e.at.Sub(h.at).Round(time.Millisecond))
		switch {
		case h.instance == e.instance && (h.epoch == e.epoch || !excused):
			j.report.InOne = append(j.report.InOne, pair)
		case !excused:
			j.report.Overlaps = append(j.report.Overlaps, pair)
		default:
			j.report.Excused++
		}
	}
}

func (j *judge) end(e event) {
	k := j.key(e.msg.key)
	h := j.running[e.instance][e.call]
	if h == nil {
		return // it was killed between the mark and the kill
	}
	delete(j.running[e.instance], e.call)
	k.active = slices.DeleteFunc(k.active, func(other *handling) bool { return other == h })
	if h.frozen {
		j.report.Zombies++
		if k.highest.instance != e.instance || slices.ContainsFunc(k.active, func(o *handling) bool {
			return o.instance != e.instance
		}) {
			j.report.Overtaken++
		}
	}
	n := e.msg.n
	if e.outcome == failed {
		j.report.Failures++
		if e.attempt >= 1 && e.attempt <= len(j.delays) {
			k.due[n] = e.at.Add(j.delays[e.attempt-1])
		}
		return
	}
	if k.replays[n] {
		delete(k.replays, n)
		k.freed = e.at
	}
	if e.outcome == gaveUp {
		j.gaveUp(k, h)
	}
	if e.outcome == handled {
		k.times[n]++
		if k.times[n] > 1 {
			j.report.Duplicates++
		}
	}
	if k.over[n] {
		return
	}
	if k.highest.msg.n > n {
		j.report.Inversions = append(j.report.Inversions, fmt.Sprintf(
			"%s: over by %s at attempt %d, after number %d was begun by %s %s before", e.msg,
			e.instance, e.attempt, k.highest.msg.n, k.highest.instance,
			e.at.Sub(k.highest.at).Round(time.Millisecond)))
	}
	k.over[n] = true
	delete(k.due, n)
	for k.over[k.lowest] {
		k.lowest++
		k.freed = e.at
	}
	if e.outcome == handled {
		j.report.Handled++
	} else {
		j.report.Failures++
		j.report.Dead++
	}
}

func (j *judge) strike(e event) {
	switch e.fault {
	case killActive, gone:
		for _, h := range j.running[e.instance] {
			k := j.key(h.msg.key)
			k.active = slices.DeleteFunc(k.active, func(other *handling) bool { return other == h })
		}
		delete(j.running, e.instance)
	case healed:
		j.healed = e.at
	default:
		j.disturb(e)
	}
	if slices.Contains(faults, e.fault) {
		j.report.Faults[e.fault]++
	}
}

// disturb marks the handlings whose instance loses its connection.
func (j *judge) disturb(e event) {
	if e.instance == "" {
		j.allStruck = e.at
	} else {
		j.disturbed[e.instance] = e.at
	}
	for instance, all := range j.running {
		if e.instance != "" && e.instance != instance {
			continue
		}
		for _, h := range all {
			h.lostTouch = true
			h.frozen = h.frozen || e.fault == freezeActive
		}
	}
}

// overCount returns how many messages are over.
func (j *judge) overCount() int { return j.report.Handled + j.report.Dead }

// letter is a message in the dead-letter queue.
type letter struct {
	id
	reason string
}

// close compares the messages that were confirmed, as counted for each key, with the letters and
// the rest on the broker, after all instances have ended.
func (j *judge) close(confirmed map[int]int, letters []letter, left map[string][]id) report {
	r := &j.report
	dead, somewhere := map[id]bool{}, map[id]bool{}
	for _, m := range letters {
		dead[m.id] = true
		if j.fates.failures(m.id) <= mostFailures {
			r.Unexplained = append(r.Unexplained, fmt.Sprintf("%s: a dead letter, %s", m, m.reason))
		}
	}
	r.Letters = len(dead)
	for queue, all := range left {
		for _, m := range all {
			somewhere[m] = true
		}
		r.Unfinished[queue] += len(all)
	}
	for key, count := range confirmed {
		k := j.key(key)
		r.Messages += count
		for n := 1; n <= count; n++ {
			m := id{key, n}
			over := k.times[n] > 0 || dead[m]
			if !over && !somewhere[m] {
				r.Lost = append(r.Lost, m)
			}
		}
	}
	slices.SortFunc(r.Lost, func(a, b id) int { return (a.key-b.key)<<20 + a.n - b.n })
	return *r
}

// outOfOrder reports whether a message was handled out of its order.
func (r report) outOfOrder() bool { return len(r.Inversions) > 0 || len(r.Passed) > 0 }

// problems returns the mistakes for which a run fails.
func (r report) problems() (all []string) {
	add := func(count int, format string, args ...any) {
		if count > 0 {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	add(len(r.Inversions), "%d inversions", len(r.Inversions))
	add(len(r.Passed), "%d messages began before a dead letter of their key was released",
		len(r.Passed))
	add(len(r.Lost), "%d of the confirmed messages are lost: %v", len(r.Lost),
		r.Lost[:min(mostListed, len(r.Lost))])
	add(len(r.Stalls), "%d stalls", len(r.Stalls))
	for queue, count := range r.Unfinished {
		add(count, "%d messages are left in %s", count, queue)
	}
	add(len(r.Shared), "%d fencing tokens of two instances", len(r.Shared))
	add(len(r.Stale), "%d handlings began with an older fencing token, and no fault explains it",
		len(r.Stale))
	add(len(r.Overlaps), "%d times two instances handled a key at once, and no fault explains it",
		len(r.Overlaps))
	add(len(r.InOne), "%d times one instance handled a key twice at once", len(r.InOne))
	add(len(r.Unexplained), "%d dead letters should have been handled", len(r.Unexplained))
	if r.Messages == 0 {
		all = append(all, "no message was confirmed")
	}
	return all
}
