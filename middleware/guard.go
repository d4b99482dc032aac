package middleware

import (
	"context"
	"errors"
	"time"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware/header"
)

// Logged for a message that is not handled any more.
var (
	errPastLimit = errors.New("message arrived past its limit: give all consumers of a queue the same policy and limits, " +
		"or somebody has forged its count")
	errPastDeadline = errors.New("message arrived past its deadline: its own expiration ended while it waited")
)

// refuse dead-letters a message that is past its limit when it arrives, so that
// no handler sees it. It returns false if the message is to be handled.
func (r *DelayedRetry) refuse(ctx context.Context, d *Delivery) (refused bool, err error) {
	var at place
	if len(r.limits.rules) > 0 { // asking the context costs more than all the rest
		at = placeOf(ctx, d)
	}
	reason := r.limits.past(&d.State, at, r.isInner(d), r.now)
	if reason == "" {
		return false, nil
	}
	return true, orNack(d.msg, func() error {
		d.attempt.told = true
		now := r.now().UTC()
		why := errPastLimit
		if reason == header.ReasonDeadline {
			why = errPastDeadline
		}
		log := r.newReport(ctx, d, why, why.Error())
		log.refused(reason, &d.State)
		notes := d.State
		notes.Failures = min(notes.Failures, header.MaxFailures)
		notes.NotBefore, notes.Snoozed = time.Time{}, 0
		notes.Reason, notes.DeadAt, notes.Handler = reason, now, log.at.handler
		return r.handOver(ctx, d, log, &transfer{notes: notes, now: now})
	})
}

// isInner reports whether another DelayedRetry is around r.
func (r *DelayedRetry) isInner(d *Delivery) bool { return d.outer != r }

// past says why a message that came back must not be handled; "" if it must.
//
// A count is past its limit where no policy that may have been asked at this
// place grants a retry after so many failures. Which one was asked is not known,
// for the error is gone: the most patient one counts. WithMaxAge does not: the
// attempt was promised in time, and that its consumer was away is not the
// message's fault. The deadline does: it is the sender's, and says that nobody
// waits for the message any more.
func (l limits) past(n *header.RetryState, at place, inner bool, now func() time.Time) header.Reason {
	// Of two DelayedRetry around a handler either may have granted the retry, and
	// the other one's policy says nothing about it.
	if n.Failures > 0 && n.Inner == inner {
		if l.maxAttempts > 0 && n.Failures >= l.maxAttempts {
			return header.ReasonExhausted
		}
		if most, known := l.mostRetries(at); known && n.Failures > most {
			return header.ReasonExhausted
		}
	}
	if !n.Deadline.IsZero() && now().After(n.Deadline) {
		return header.ReasonDeadline
	}
	return ""
}

// mostRetries returns the most retries that a policy may grant at the place;
// false if that is not known.
func (l limits) mostRetries(at place) (int, bool) {
	most := 0
	for _, rule := range l.rules {
		if !rule.matches(at) {
			continue
		}
		retries, known := mostRetries(rule.policy)
		if !known {
			return 0, false
		}
		most = max(most, retries)
		if rule.Error == nil { // no later rule is ever reached
			return most, true
		}
	}
	retries, known := mostRetries(l.policy)
	return max(most, retries), known
}

// mostRetries returns the most retries that a policy grants, whatever the
// failure; false if that is not known.
//
// No policy is asked: it would answer for an error and a time that are gone. Nor
// can a method tell, for a type that embeds a policy and changes its Delay would
// inherit it. So the types of package backoff are named here; every other policy
// is without a limit, unless it is in a Limit or there is a WithMaxAttempts.
func mostRetries(policy backoff.Policy) (retries int, known bool) {
	switch p := policy.(type) {
	case backoff.None:
		return 0, true
	case backoff.List:
		return len(p), true
	case backoff.Constant:
		return p.Retries, p.Retries > 0
	case backoff.Linear:
		return p.Retries, p.Retries > 0
	case backoff.Exponential:
		return p.Retries, p.Retries > 0
	case backoff.Fibonacci:
		return p.Retries, p.Retries > 0
	case backoff.DecorrelatedJitter:
		return p.Retries, p.Retries > 0
	case backoff.FullJitter:
		return mostRetries(p.Policy)
	case backoff.EqualJitter:
		return mostRetries(p.Policy)
	case backoff.BoundedJitter:
		return mostRetries(p.Policy)
	case backoff.Limit: // ends whatever is in it
		if retries, known = mostRetries(p.Policy); known {
			return min(retries, p.Retries), true
		}
		return p.Retries, true
	case backoff.Cap:
		return mostRetries(p.Policy)
	case backoff.MaxAge:
		return mostRetries(p.Policy)
	case backoff.Unbounded:
		return mostRetries(p.Policy)
	case backoff.ByError:
		return mostOfCases(p)
	default:
		return 0, false
	}
}

// mostOfCases is mostRetries for any error.
func mostOfCases(p backoff.ByError) (retries int, known bool) {
	most, known := mostRetries(p.Default)
	for _, c := range p.Cases {
		retries, ends := mostRetries(c.Policy)
		most, known = max(most, retries), known && ends
	}
	return max(most, panicFailures-1), known // those granted while a Match panics
}
