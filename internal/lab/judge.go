package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// history has all observations of a run.
type history struct {
	settings
	events   []event // in the order of the log
	sent     map[id]time.Time
	attempts []attempt        // that have ended
	runs     map[id][]attempt // the same by message, each by time
	letters  map[id][]event   // by message
	faults   []event          // that are over
	losses   []event
	left     map[string][]id // messages on the broker at the end, by queue
	tokens   map[string]int  // other messages, by queue
	missing  []string        // queues of other services without their message
}

// attempt is one call of a handler, from its begin to its end.
type attempt struct {
	event
	end     time.Time
	outcome outcome
}

// history returns the observations so far. mu is held, or the run is over.
func (r *run) history() *history {
	h := newHistory(r.settings, r.events)
	h.left, h.tokens, h.missing = r.left, r.tokens, r.missing
	return h
}

func newHistory(s settings, events []event) *history {
	h := &history{
		settings: s, events: events, sent: map[id]time.Time{}, runs: map[id][]attempt{},
		letters: map[id][]event{},
	}
	type call struct {
		who string
		n   uint64
	}
	open := map[call]event{}
	names := map[string][]string{} // of each instance with its lines
	for _, e := range events {
		switch e.Kind {
		case sent:
			h.sent[e.id] = e.At
		case begun:
			open[call{e.Who, e.Call}] = e
		case ended:
			begin, ok := open[call{e.Who, e.Call}]
			if !ok {
				continue
			}
			delete(open, call{e.Who, e.Call})
			h.attempts = append(h.attempts, attempt{begin, e.At, e.Outcome})
			if name := instanceOf(e.Who); !slices.Contains(names[name], e.Who) {
				names[name] = append(names[name], e.Who)
			}
		case letter:
			h.letters[e.id] = append(h.letters[e.id], e)
		case over:
			h.faults = append(h.faults, e)
		case lost:
			e.Began = e.At
			h.losses = append(h.losses, e)
		case gone:
			for _, who := range names[e.Who] {
				e.Who, e.Text = who, lostProcess
				h.losses = append(h.losses, e)
			}
		}
	}
	for _, a := range h.attempts {
		h.runs[a.id] = append(h.runs[a.id], a)
	}
	for _, runs := range h.runs {
		slices.SortStableFunc(runs, func(a, b attempt) int { return a.end.Compare(b.end) })
	}
	return h
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

func (h *history) handled(m id) (times int) {
	for _, a := range h.runs[m] {
		if a.outcome == handled {
			times++
		}
	}
	return times
}

// rule is an invariant. It compares a history, and writes figures and problems to the report.
type rule func(h *history, r *report)

// report has the figures of a run, and the mistakes.
type report struct {
	rows     []string
	problems []string
	suspects []id   // messages with a problem
	kept     string // the folder with the log, if something is wrong
}

func judge(h *history, rules []rule) *report {
	r := &report{}
	for _, check := range rules {
		check(h, r)
	}
	return r
}

func (r *report) row(name, format string, args ...any) {
	r.rows = append(r.rows, fmt.Sprintf("  %-20s %s", name, fmt.Sprintf(format, args...)))
}

// problem adds a problem, unless there are no cases of it.
func (r *report) problem(what string, cases ...string) {
	const shown = 10
	if len(cases) == 0 {
		return
	}
	list := strings.Join(cases[:min(shown, len(cases))], "\n    ")
	if len(cases) > shown {
		list += "\n    …"
	}
	r.problems = append(r.problems, fmt.Sprintf("%d %s:\n    %s", len(cases), what, list))
}

// err returns nil if all is as promised. Otherwise it lists the broken promises.
func (r *report) err() error {
	if len(r.problems) == 0 {
		return nil
	}
	return errors.New(strings.Join(r.problems, "\n"))
}

func (r *report) String() string { return strings.Join(r.rows, "\n") + "\n" }

// nothingIsLost: each confirmed message was handled, or is a dead letter. Messages of other
// services are in their places.
func nothingIsLost(h *history, r *report) {
	somewhere := map[id]bool{}
	for _, all := range h.left {
		for _, m := range all {
			somewhere[m] = true
		}
	}
	var gone []id
	done, dead := 0, 0
	for m := range h.sent {
		switch {
		case h.handled(m) > 0:
			done++
		case len(h.letters[m]) > 0:
			dead++
		case !somewhere[m]:
			gone = append(gone, m)
		}
	}
	slices.SortFunc(gone, compareIDs)
	var lines []string
	for _, m := range gone {
		lines = append(lines, "message "+m.String())
	}
	r.suspects = append(r.suspects, gone...)
	r.row("messages", "%d confirmed, %d handled, %d dead letters, lost %d", len(h.sent), done, dead,
		len(gone))
	r.problem("of the confirmed messages are lost", lines...)
	r.problem("queues of other services without their message", h.missing...)
	if len(h.sent) == 0 {
		r.problem("run without a confirmed message: nothing was tried", "")
	}
	counts := map[faultKind]int{}
	var undone []string
	total := 0
	for _, f := range h.faults {
		if f.Failed {
			undone = append(undone, fmt.Sprintf("%s: %s", f.Fault, f.Text))
			continue
		}
		counts[f.Fault]++
		total++
	}
	r.row("faults", "%d%s", total, byName(counts))
	for _, f := range undone {
		r.row("", "not done: %s", f)
	}
}

// byName lists counts: " (a 1, b 2)".
func byName[K ~string, V any](counts map[K]V) string {
	if len(counts) == 0 {
		return ""
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprint(name, " ", counts[name]))
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

// nothingIsLeft: no message is left on the broker.
func nothingIsLeft(h *history, r *report) {
	for queue, all := range h.left {
		var lines []string
		for _, m := range all {
			lines = append(lines, "message "+m.String())
		}
		r.problem("messages are left in "+queue, lines...)
	}
}

// attemptsFollowThePolicy: no attempt is beyond the limit, or counted without a call of the
// handler, or with another priority, and the right messages are dead letters.
func attemptsFollowThePolicy(h *history, r *report) {
	limit := len(h.Delays) + 1
	var beyond, skipped, reprioritized []string
	var latest time.Duration
	var latestRetry string
	for _, m := range h.messages() {
		first := map[int]time.Time{} // the end of the first run of each attempt
		for _, a := range h.runs[m] {
			name := fmt.Sprintf("message %s: attempt %d", m, a.Attempt)
			if want := h.Fates.priority(m); a.Priority != want {
				reprioritized = append(reprioritized, fmt.Sprintf("%s: %d, not %d", name, a.Priority, want))
			}
			if _, known := first[a.Attempt]; known {
				continue
			}
			first[a.Attempt] = a.end
			before, ok := first[a.Attempt-1]
			switch {
			case a.Attempt > limit && !h.Block:
				beyond = append(beyond, name)
			case a.Attempt > 1 && !ok:
				skipped = append(skipped, name)
			case ok && a.Attempt-2 < len(h.Delays):
				if late := a.end.Sub(before) - h.Delays[a.Attempt-2]; late > latest {
					latest, latestRetry = late, name
				}
			}
		}
	}
	r.row("attempts", "%d; %d beyond the limit, %d counted without a call", len(h.attempts),
		len(beyond), len(skipped))
	r.row("lateness", "%s more than its delay at the most (%s)", latest.Round(time.Millisecond),
		latestRetry)
	r.problem("attempts beyond the limit", beyond...)
	r.problem("attempts after one without a call of the handler", skipped...)
	r.problem("attempts with another priority", reprioritized...)
	h.lettersFollowTheirFates(r)
	h.recovery(r)
}

// lettersFollowTheirFates looks for dead letters of messages that must not die, and for those with
// another reason than the fate of their message.
func (h *history) lettersFollowTheirFates(r *report) {
	var misplaced, broken []string
	crashLoops := 0
	for _, m := range h.messages() {
		dies, permanent := h.Fates.dies(m), h.Fates.failures(m) < 0
		for _, l := range h.letters[m] {
			switch {
			case l.Failed:
				broken = append(broken, l.Text)
			case l.Text == "crash_loop" && dies || l.Text == "crash_loop" && !h.Block && h.kills():
				crashLoops++ // frequent kills may cause it
			case !dies || (l.Text == "permanent") != permanent:
				misplaced = append(misplaced, fmt.Sprintf("message %s: %s", m, l.Text))
			}
		}
	}
	r.row("dead letters", "%d misplaced, %d by the crash guard", len(misplaced), crashLoops)
	r.problem("dead letters that should not be", misplaced...)
	r.problem("dead letters that cannot be understood", broken...)
}

// kills reports whether instances were killed again and again.
func (h *history) kills() bool {
	return slices.ContainsFunc(h.faults, func(f event) bool { return f.Fault == killInstance })
}

// recovery finds the longest time from the end of a fault until a message that was published after
// it was handled.
func (h *history) recovery(r *report) {
	var longest time.Duration
	var from faultKind
	for _, f := range h.faults {
		i := slices.IndexFunc(h.attempts, func(a attempt) bool {
			at, ok := h.sent[a.id]
			return ok && a.outcome == handled && at.After(f.At)
		})
		if i < 0 || f.Failed {
			continue
		}
		if took := h.attempts[i].end.Sub(f.At); took > longest {
			longest, from = took, f.Fault
		}
	}
	r.row("recovery", "%s at the longest, after %s", longest.Round(time.Millisecond), from)
}
