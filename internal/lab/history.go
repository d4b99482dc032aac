package main

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// history has all observations of a run. It takes in one event after the other, so that the run
// and the judge know the same.
type history struct {
	settings
	events   []event // in the order of the log
	sent     map[id]time.Time
	over     map[id]bool      // messages that are handled, or dead letters
	attempts []attempt        // that have ended
	runs     map[id][]attempt // the same by message
	letters  map[id][]event   // by message
	faults   []event          // that are over
	losses   []event

	open   map[call]event       // handlings that have begun and not ended
	began  map[string]time.Time // the last handling of each line
	active string               // the instance that began a handling last
	moved  time.Time            // when a message moved last

	left   map[id]string  // the queues of messages that are on the broker at the end
	tokens map[string]int // other messages, by queue
}

// call names a handling.
type call struct {
	who string
	n   uint64
}

// attempt is one call of a handler, from its begin to its end.
type attempt struct {
	event
	end     time.Time
	outcome outcome
}

func newHistory(s settings, events []event) *history {
	h := &history{
		settings: s, sent: map[id]time.Time{}, over: map[id]bool{}, runs: map[id][]attempt{},
		letters: map[id][]event{}, open: map[call]event{}, began: map[string]time.Time{},
		moved: time.Now(),
	}
	for _, e := range events {
		h.add(e)
	}
	return h
}

func (h *history) add(e event) {
	h.events = append(h.events, e)
	who, line, _ := strings.Cut(e.Who, "/")
	switch e.Kind {
	case sent:
		h.sent[e.id] = e.At
	case begun:
		h.open[call{e.Who, e.Call}] = e
		h.active, h.began[line] = who, e.At
	case ended:
		begin, ok := h.open[call{e.Who, e.Call}]
		if !ok {
			return
		}
		delete(h.open, call{e.Who, e.Call})
		a := attempt{begin, e.At, e.Outcome}
		h.attempts, h.runs[e.id] = append(h.attempts, a), append(h.runs[e.id], a)
		if e.Outcome == handled || h.Block && e.Outcome == gaveUp {
			h.over[e.id] = true
		}
	case letter:
		h.letters[e.id], h.over[e.id] = append(h.letters[e.id], e), true
	case over:
		h.faults = append(h.faults, e)
		return
	case lost:
		e.Began = e.At
		h.losses = append(h.losses, e)
		return
	case gone:
		if e.Text = lostProcess; e.Own {
			e.Began = e.At
		}
		h.losses = append(h.losses, e)
		maps.DeleteFunc(h.open, func(c call, _ event) bool { return instanceOf(c.who) == e.Who })
		return
	default:
		return
	}
	h.moved = time.Now()
}

// messages returns all messages that a handler has had or that are dead letters, in their order.
func (h *history) messages() []id {
	all := map[id]bool{}
	for m := range h.runs {
		all[m] = true
	}
	for m := range h.letters {
		all[m] = true
	}
	return slices.SortedFunc(maps.Keys(all), compareIDs)
}

func compareIDs(a, b id) int { return (a.Key-b.Key)<<32 + a.N - b.N }

// handled counts the handlings of a message that succeeded.
func (h *history) handled(m id) (times int) {
	for _, a := range h.runs[m] {
		if a.outcome == handled {
			times++
		}
	}
	return times
}

// missing counts the confirmed messages that are not over.
func (h *history) missing() (missing int) {
	for m := range h.sent {
		if !h.over[m] {
			missing++
		}
	}
	return missing
}

// free reports whether an instance that consumes a line has a free handler. With a single active
// consumer that is the instance that began last.
func (h *history) free(line string, running []string) bool {
	busy := map[string]int{}
	for c := range h.open {
		busy[c.who]++
	}
	return slices.ContainsFunc(running, func(name string) bool {
		return name != "" && busy[identity(name, line)] < h.Concurrency &&
			(line != keyStrategy || name == h.active)
	})
}
