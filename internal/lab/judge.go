package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

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

// nothingIsLost: each confirmed message was handled, is a dead letter, or is on the broker, and no
// instance has ended by itself.
func nothingIsLost(h *history, r *report) {
	var gone []string
	done, dead := 0, 0
	for _, m := range slices.SortedFunc(maps.Keys(h.sent), compareIDs) {
		switch {
		case h.handled(m) > 0:
			done++
		case len(h.letters[m]) > 0:
			dead++
		case h.left[m] == "":
			gone = append(gone, "message "+m.String())
			r.suspects = append(r.suspects, m)
		}
	}
	r.row("messages", "%d confirmed, %d handled, %d dead letters, lost %d", len(h.sent), done, dead,
		len(gone))
	r.problem("of the confirmed messages are lost", gone...)
	if len(h.sent) == 0 {
		r.problem("run without a confirmed message: nothing was tried", "")
	}
	for _, l := range h.losses {
		if l.Text == lostProcess && l.Own {
			r.problem("instance ended by itself", l.Who)
		}
	}
	counts := map[faultKind]int{}
	for _, f := range h.faults {
		if f.Failed {
			r.row("not done", "%s: %s", f.Fault, f.Text)
		} else {
			counts[f.Fault]++
		}
	}
	r.row("faults", "%v", counts)
}

// nothingIsLeft: no message is left on the broker.
func nothingIsLeft(h *history, r *report) {
	var left []string
	for _, m := range slices.SortedFunc(maps.Keys(h.left), compareIDs) {
		left = append(left, fmt.Sprintf("message %s in %s", m, h.left[m]))
	}
	r.problem("messages are left", left...)
}

// attemptsFollowThePolicy: no attempt is beyond the limit, or counted without a call of the
// handler, or with another priority, and the right messages are dead letters.
func attemptsFollowThePolicy(h *history, r *report) {
	limit := len(h.Delays) + 1
	var beyond, skipped, reprioritized []string
	var latest time.Duration
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
			case ok:
				latest = max(latest, a.end.Sub(before)-h.delayBefore(a.Attempt))
			}
		}
	}
	r.row("attempts", "%d; at most %s later than their delays", len(h.attempts),
		latest.Round(time.Millisecond))
	r.problem("attempts beyond the limit", beyond...)
	r.problem("attempts after one without a call of the handler", skipped...)
	r.problem("attempts with another priority", reprioritized...)
	h.lettersFollowTheirFates(r)
}

// lettersFollowTheirFates looks for dead letters of messages that must not die, and for those with
// another reason than the fate of their message.
func (h *history) lettersFollowTheirFates(r *report) {
	var misplaced, broken []string
	crashLoops := 0
	kills := slices.ContainsFunc(h.faults, func(f event) bool { return f.Fault == killInstance })
	for _, m := range h.messages() {
		dies, permanent := h.Fates.dies(m), h.Fates.failures(m) < 0
		for _, l := range h.letters[m] {
			switch {
			case l.Failed:
				broken = append(broken, l.Text)
			case l.Text == "crash_loop" && (dies || !h.Block && kills):
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

// delayBefore returns the delay before an attempt.
func (h *history) delayBefore(number int) time.Duration {
	if number > 1 && number-2 < len(h.Delays) {
		return h.Delays[number-2]
	}
	return 0
}
