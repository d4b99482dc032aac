package middleware

import (
	"time"

	"github.com/millpond-go/millpond/backoff"
)

const (
	// panicDelay and panicFailures stand in for a policy that panics: giving the
	// message up would lose its retries to a programming error, and without a
	// bound a policy that always panics would never end.
	panicDelay    = time.Minute
	panicFailures = 100
)

// limits say how often, how late and until when to try.
type limits struct {
	policy      backoff.Policy
	maxAttempts int           // 0: as often as the policy says
	maxAge      time.Duration // 0: at any age
}

// failure is all that a decision looks at.
type failure struct {
	err  error
	mark mark
	// notes as the message brought them: without this failure.
	notes Notes
	now   time.Time
}

// decision is what becomes of a failed message: another attempt after delay, or
// the dead-letter queue if there is a reason.
type decision struct {
	reason Reason
	delay  time.Duration
	// count and first are the failures so far and the time of the first, this
	// one included.
	count int
	first time.Time
	// panicked is what the policy panicked with.
	panicked any
}

// decide is a pure function, but for the policy, which ought to be one.
func (l limits) decide(f failure) decision {
	d := decision{
		count: min(max(f.notes.Failures, 0), maxFailures-1) + 1,
		first: notAfter(f.notes.FirstFailure, f.now),
	}
	if f.mark.class == ClassPermanent {
		d.reason = ReasonPermanent
		return d
	}
	if l.maxAttempts > 0 && d.count >= l.maxAttempts {
		d.reason = ReasonExhausted
		return d
	}

	var delay time.Duration
	var retry bool
	d.panicked = contain(func() {
		delay, retry = backoff.Next(l.policy, backoff.Failure{
			Count: d.count, Err: f.err, First: d.first, Now: f.now, Last: f.notes.Delay,
		})
	})
	if d.panicked != nil {
		delay, retry = panicDelay, d.count < panicFailures
	}
	if !retry {
		d.reason = ReasonExhausted
		return d
	}

	delay = max(delay, min(f.mark.floor, backoff.MaxDelay))
	next := f.now.Add(delay)
	switch {
	case l.maxAge > 0 && next.After(d.first.Add(l.maxAge)):
		d.reason = ReasonMaxAge
	case !f.notes.Deadline.IsZero() && next.After(f.notes.Deadline):
		d.reason = ReasonDeadline
	default:
		d.delay = delay
	}
	return d
}

// notAfter returns t, or now where t is missing or forged to lie ahead.
func notAfter(t, now time.Time) time.Time {
	if t.IsZero() || t.After(now) {
		return now
	}
	return t
}
