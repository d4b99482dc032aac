package middleware

import (
	"time"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware/header"
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
	rules       []rule        // policies for some failures only; the first that matches wins
	maxAttempts int           // 0: as often as the policy says
	maxAge      time.Duration // 0: at any age
	maxAside    time.Duration // since the message was first seen
}

// failure is all that a decision looks at.
type failure struct {
	err  error
	mark mark
	at   place
	// inner is set where another DelayedRetry is around this one.
	inner bool
	// notes as the message brought them: without this failure.
	notes header.RetryState
	now   time.Time
	// given is Delivery.Given.
	given func(asked time.Duration) time.Duration
}

// next returns when the message is back if it asks for a delay.
func (f failure) next(delay time.Duration) time.Time {
	return f.now.Add(givenBy(f.given, delay))
}

// decision is what becomes of a failed message: another attempt after delay, or
// the dead-letter queue if there is a reason.
type decision struct {
	reason header.Reason
	delay  time.Duration
	// aside is set where the message is set aside for delay: no failure.
	aside bool
	// overdue is set where it asked to be set aside for longer than it may be.
	overdue bool
	// overBudget is set where the budget has changed the decision.
	overBudget bool
	// count and first are the failures so far and the time of the first, this
	// one included.
	count int
	first time.Time
	// faults are those of the user's code that the decision asked.
	faults []fault
}

// fault is code of the user that panicked or broke its contract.
type fault struct {
	what  string
	value any
}

// decide is a pure function, but for policies and classifiers, which ought to
// be pure themselves.
func (l limits) decide(f failure) decision {
	d := decision{
		count: min(max(f.notes.Failures, 0), header.MaxFailures-1) + 1,
		first: notAfter(f.notes.FirstFailure, f.now),
	}
	if f.mark.class == header.ClassPermanent {
		d.reason = header.ReasonPermanent
		return d
	}
	if f.mark.later {
		if l.setAside(f, &d) {
			return d
		}
	}
	if l.maxAttempts > 0 && d.count >= l.maxAttempts {
		d.reason = header.ReasonExhausted
		return d
	}

	policy := l.choose(f, &d)
	var delay time.Duration
	var retry bool
	panicked := contain(func() {
		delay, retry = backoff.Next(policy, backoff.Failure{
			Count: d.count, Err: f.err, First: d.first, Now: f.now, Last: f.notes.Delay,
		})
	})
	if panicked != nil {
		d.faults = append(d.faults, fault{"policy panicked, waiting a minute instead", panicked})
		delay, retry = panicDelay, d.count < panicFailures
	}
	if !retry {
		d.reason = header.ReasonExhausted
		return d
	}

	delay = max(delay, min(f.mark.floor, backoff.MaxDelay))
	if d.reason = l.tooLate(f.next(delay), d.first, f.notes.Deadline); d.reason == "" {
		d.delay = delay
	}
	return d
}

// tooLate says why there must be no attempt at the given time; "" if there may.
// first is the time of the first failure and deadline that of the message, each
// zero if there is none.
func (l limits) tooLate(next, first, deadline time.Time) header.Reason {
	switch {
	case l.maxAge > 0 && !first.IsZero() && next.After(first.Add(l.maxAge)):
		return header.ReasonMaxAge
	case !deadline.IsZero() && next.After(deadline):
		return header.ReasonDeadline
	}
	return ""
}

// notAfter returns t, or now where t is missing or forged to lie ahead.
func notAfter(t, now time.Time) time.Time {
	if t.IsZero() || t.After(now) {
		return now
	}
	return t
}
