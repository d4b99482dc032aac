package chaos

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Struck is a fault that has happened.
type Struck struct {
	Fault      Fault
	What       string // what it hit
	Begun, End time.Time
	Err        error // why it could not be done
}

// History is all that was seen of a run.
type History struct {
	Fates    Fates
	Sent     []Sent
	Attempts []Attempt
	Letters  []Letter
	Faults   []Struck
	Losses   []Loss
	Timer    time.Duration // after how long the broker sends again what it could not dead-letter
	Broken   []string      // dead letters that could not be understood
}

// Report is what became of the messages.
type Report struct {
	Messages, Handled, Dead int
	// Lost are confirmed and neither handled nor dead letters.
	Lost []int

	// Again is how many extra runs and dead letters there were, by why, and Unexplained says which of
	// them no fault explains.
	Again       map[string]Count
	Unexplained []string
	unexplained []int // the messages
	// HandledAgain and DeadAgain are how many times a message ended once more; Both ended both ways.
	HandledAgain, DeadAgain, Both int

	// Beyond are attempts past the limit, and Skipped attempts that no handler was called for:
	// "message 7: attempt 6".
	Beyond, Skipped []string
	// Misplaced are dead letters that should not be, by their reason, but for crash_loop, which
	// frequent kills may cause.
	Misplaced  []string
	CrashLoops int
	Broken     []string

	// Faults are those that struck, by kind; Failed those that could not be done.
	Faults map[Kind]int
	Failed []string
	// Recovery is the longest time from the end of a fault until a message published after it was
	// handled.
	Recovery      time.Duration
	RecoveredFrom Fault
	// Latest is how much longer than its delay a retry took at the most, and LatestRetry which that
	// was.
	Latest      time.Duration
	LatestRetry string
}

// Check compares what was confirmed with what was seen.
func Check(h History) Report {
	r := Report{Messages: len(h.Sent), Again: map[string]Count{}, Faults: map[Kind]int{},
		Broken: h.Broken}
	attempts := map[int][]Attempt{}
	for _, a := range h.Attempts {
		attempts[a.N] = append(attempts[a.N], a)
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
			r.Failed = append(r.Failed, fmt.Sprintf("%s: %v", f.Fault, f.Err))
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

// attempts looks for attempts that should not be, and returns them by their number.
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
		return cmp.Compare(a.handled.UnixNano(),
			b.handled.UnixNano())
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

// Duplicates is how many attempts and dead letters were made again.
func (r Report) Duplicates() Count {
	var total Count
	for _, c := range r.Again {
		total.Explained += c.Explained
		total.Unexplained += c.Unexplained
	}
	return total
}

// Err is nil if all is as promised; otherwise it says what is not.
func (r Report) Err() error {
	var problems []error
	add := func(what string, which []string) {
		if len(which) > 0 {
			problems = append(problems, fmt.Errorf("%d %s: %s", len(which), what, some(which)))
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
	add("dead letters that should not be", r.Misplaced)
	add("dead letters that cannot be understood", r.Broken)
	return errors.Join(problems...)
}

// some shows the first few.
func some(all []string) string {
	const shown = 10
	text := ""
	for i, one := range all {
		if i == shown {
			return text + ", …"
		}
		if i > 0 {
			text += ", "
		}
		text += one
	}
	return text
}
