package chaos

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Struck is a fault that has happened.
type Struck struct {
	Fault      Fault
	What       string // its target
	Begun, End time.Time
	Err        error // set if it could not be done
}

// History has all observations of a run.
type History struct {
	Fates    Fates
	Sent     []Sent
	Attempts []Attempt
	Letters  []Letter
	Faults   []Struck
	Losses   []Loss
	Timer    time.Duration // the broker's dead-letter timer
	Broken   []string      // dead letters that could not be understood
	Missing  []string      // queues of other services without their message
}

// Report has the fates of the messages, and the mistakes.
type Report struct {
	Messages, Handled, Dead int
	// Lost are confirmed and neither handled nor dead letters.
	Lost []int

	// Again counts extra runs and dead letters by their reason. Unexplained lists the ones that no
	// fault explains.
	Again       map[string]Count
	Unexplained []string
	unexplained []int // the messages
	// HandledAgain and DeadAgain count the times that a message ended again. Both counts messages that
	// ended both ways.
	HandledAgain, DeadAgain, Both int

	// Beyond are attempts past the limit, and Skipped are attempts without a call of a handler:
	// "message 7: attempt 6".
	Beyond, Skipped []string
	// Misplaced are wrong dead letters, by their reason. crash_loop is not among them, because
	// frequent kills may cause it.
	Misplaced  []string
	CrashLoops int
	Broken     []string
	// Reprioritized are attempts that saw another priority than the producer gave.
	Reprioritized []string
	// Missing are queues of other services without their message.
	Missing []string

	// Faults counts the faults that struck, by kind. Failed lists the faults that could not be done.
	Faults map[Kind]int
	Failed []string
	// Recovery is the longest time from the end of a fault until a message that was published after it
	// was handled.
	Recovery      time.Duration
	RecoveredFrom Fault
	// Latest is the longest time by which a retry was later than its delay, and LatestRetry is that
	// retry.
	Latest      time.Duration
	LatestRetry string
}

// Check compares the confirmed messages with the observations.
func Check(h History) Report {
	r := Report{
		Messages: len(h.Sent), Again: map[string]Count{}, Faults: map[Kind]int{}, Broken: h.Broken,
		Missing: h.Missing,
	}
	attempts := map[int][]Attempt{}
	for _, a := range h.Attempts {
		attempts[a.N] = append(attempts[a.N], a)
		if want := h.Fates.Priority(a.N); a.Priority != want {
			r.Reprioritized = append(r.Reprioritized,
				fmt.Sprintf("message %d: attempt %d: %d, not %d", a.N, a.Attempt, a.Priority, want))
		}
	}
	letters := map[int][]Letter{}
	for _, l := range h.Letters {
		letters[l.N] = append(letters[l.N], l)
	}
	for _, s := range h.Sent {
		if !isHandled(attempts[s.N]) && len(letters[s.N]) == 0 {
			r.Lost = append(r.Lost, s.N)
		}
	}
	slices.Sort(r.Lost)
	evidence := newEvidence(h)
	for _, n := range slices.Sorted(maps.Keys(attempts)) {
		byNumber := r.attempts(n, attempts[n])
		(&copies{&r, evidence, n, byNumber, letters[n]}).count()
		r.end(h.Fates, n, attempts[n], letters[n])
	}
	for _, n := range slices.Sorted(maps.Keys(letters)) {
		if attempts[n] == nil {
			r.end(h.Fates, n, nil, letters[n])
		}
	}
	for _, f := range h.Faults {
		if f.Err != nil {
			first, _, _ := strings.Cut(f.Err.Error(), "\n") // the lines of rabbitmqctl are in the log
			r.Failed = append(r.Failed, fmt.Sprintf("%s: %s", f.Fault, first))
			continue
		}
		r.Faults[f.Fault.Kind]++
	}
	r.recovery(h, attempts)
	return r
}

func isHandled(attempts []Attempt) bool {
	return slices.ContainsFunc(attempts, func(a Attempt) bool { return a.Outcome == Handled })
}

// attempts looks for wrong attempts, and returns all attempts by their number.
func (r *Report) attempts(n int, all []Attempt) map[int][]Attempt {
	slices.SortStableFunc(all, func(a, b Attempt) int { return a.At.Compare(b.At) })
	byNumber := map[int][]Attempt{}
	for _, a := range all {
		byNumber[a.Attempt] = append(byNumber[a.Attempt], a)
	}
	for _, number := range slices.Sorted(maps.Keys(byNumber)) {
		if number > Limit {
			r.Beyond = append(r.Beyond, fmt.Sprintf("message %d: attempt %d", n, number))
		}
		if number > 1 && byNumber[number-1] == nil {
			r.Skipped = append(r.Skipped, fmt.Sprintf("message %d: attempt %d", n, number-1))
		}
		if before := byNumber[number-1]; before != nil && number <= Limit {
			if late := byNumber[number][0].At.Sub(before[0].At) - Delays[number-2]; late > r.Latest {
				r.Latest, r.LatestRetry = late, fmt.Sprintf("message %d: attempt %d", n, number)
			}
		}
	}
	return byNumber
}

// end counts how a message ended.
func (r *Report) end(fates Fates, n int, attempts []Attempt, letters []Letter) {
	handled := 0
	for _, a := range attempts {
		if a.Outcome == Handled {
			handled++
		}
	}
	if handled > 0 {
		r.Handled++
		r.HandledAgain += handled - 1
	}
	if len(letters) == 0 {
		return
	}
	r.Dead++
	r.DeadAgain += len(letters) - 1
	if handled > 0 {
		r.Both++
	}
	for _, l := range letters {
		switch {
		case l.Reason == "crash_loop":
			r.CrashLoops++
		case !fates.Dies(n), (l.Reason == "permanent") != (fates.Failures(n) < 0):
			r.Misplaced = append(r.Misplaced, fmt.Sprintf("message %d: %s", n, l.Reason))
		}
	}
}

func (r *Report) recovery(h History, attempts map[int][]Attempt) {
	type end struct{ sent, handled time.Time }
	var ends []end
	for _, s := range h.Sent {
		for _, a := range attempts[s.N] {
			if a.Outcome == Handled {
				ends = append(ends, end{s.At, a.At})
				break
			}
		}
	}
	slices.SortFunc(ends, func(a, b end) int {
		return a.handled.Compare(b.handled)
	})
	for _, f := range h.Faults {
		for _, e := range ends {
			if f.Err == nil && e.sent.After(f.End) {
				if took := e.handled.Sub(f.End); took > r.Recovery {
					r.Recovery, r.RecoveredFrom = took, f.Fault
				}
				break
			}
		}
	}
}

// Duplicates returns the number of extra runs and dead letters.
func (r Report) Duplicates() Count {
	var total Count
	for _, c := range r.Again {
		total.Explained += c.Explained
		total.Unexplained += c.Unexplained
	}
	return total
}

// Err returns nil if all is as promised. Otherwise it lists the broken promises.
func (r Report) Err() error {
	var problems []error
	add := func(problem string, of []string) {
		if len(of) > 0 {
			problems = append(problems, fmt.Errorf("%d %s: %s", len(of), problem, some(of)))
		}
	}
	if r.Messages == 0 {
		problems = append(problems, errors.New("no message was confirmed: nothing was tried"))
	}
	lost := make([]string, len(r.Lost))
	for i, n := range r.Lost {
		lost[i] = fmt.Sprint(n)
	}
	add("of the confirmed messages are lost", lost)
	add("attempts beyond the limit", r.Beyond)
	add("attempts counted without a call of the handler", r.Skipped)
	add("times a message was handled or dead-lettered more often than its faults explain",
		r.Unexplained)
	add("attempts with another priority", r.Reprioritized)
	add("queues of other services without their message", r.Missing)
	add("dead letters that should not be", r.Misplaced)
	add("dead letters that cannot be understood", r.Broken)
	return errors.Join(problems...)
}

// some joins the first few.
func some(all []string) string {
	const shown = 10
	if len(all) > shown {
		all = append(slices.Clone(all[:shown]), "…")
	}
	return strings.Join(all, ", ")
}

// String returns the report as text, one subject a line.
func (r Report) String() string {
	var b strings.Builder
	row := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "  %-12s %s\n", name, fmt.Sprintf(format, args...))
	}
	row("messages", "%d confirmed, %d handled, %d dead letters", r.Messages, r.Handled, r.Dead)
	row("lost", "%d", len(r.Lost))
	again := r.Duplicates()
	row("made again",
		"%d explained, %d unexplained; %d messages handled again, %d dead-lettered again, %d both",
		again.Explained, again.Unexplained, r.HandledAgain, r.DeadAgain, r.Both)
	for _, why := range slices.Sorted(maps.Keys(r.Again)) {
		row("", "%s: %d explained, %d unexplained", why, r.Again[why].Explained, r.Again[why].Unexplained)
	}
	row("attempts", "%d beyond the limit, %d counted without a call", len(r.Beyond), len(r.Skipped))
	row("misplaced", "%d dead letters, and %d by the crash guard", len(r.Misplaced), r.CrashLoops)
	total := 0
	for _, times := range r.Faults {
		total += times
	}
	row("faults", "%d%s", total, byName(r.Faults))
	for _, f := range r.Failed {
		row("", "not done: %s", f)
	}
	if r.Recovery > 0 {
		row("recovery", "%s at the longest, after %s", r.Recovery.Round(time.Millisecond),
			r.RecoveredFrom)
	}
	if r.Latest > 0 {
		row("lateness", "%s more than its delay at the most (%s)", r.Latest.Round(time.Millisecond),
			r.LatestRetry)
	}
	return b.String()
}

// byName lists counts: " (a 1, b 2)".
func byName[K ~string](counts map[K]int) string {
	if len(counts) == 0 {
		return ""
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, counts[name]))
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

// Row returns the report as a row of the table in docs/chaos.md.
func (r Report) Row(seed uint64, strategy, version string, minutes float64) string {
	kills, again := r.Faults[KillNode]+2*r.Faults[KillMajority], r.Duplicates()
	return fmt.Sprintf("| %s | %d | `%s` | %.1f | %d | %d | %d | %d | %d |"+
		" %d | %d | %d | %d | %d | %.0f s | %.0f s |",
		version, seed, strategy, minutes, r.Messages, kills, r.Faults[FreezeNode], r.Faults[Minority],
		r.Faults[DelayConfirms],
		r.Faults[KillConsumer], len(r.Lost), again.Explained, again.Unexplained,
		len(r.Beyond)+len(r.Skipped), r.Recovery.Seconds(), r.Latest.Seconds())
}
