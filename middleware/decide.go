package middleware

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/attached"
	"github.com/millpond-go/millpond/internal/clock"
	"github.com/millpond-go/millpond/internal/excerpt"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/middleware/header"
)

const (
	// panicDelay and panicFailures stand in for a policy that panics: giving the message up
	// would lose its retries to a programming error, and a policy that always panics would
	// never end without a bound.
	panicDelay    = time.Minute
	panicFailures = 100
	// shortest is the shortest delay there is: it takes the first wait queue.
	shortest = time.Millisecond
)

// limits say how often, how late and until when to try.
type limits struct {
	policy      backoff.Policy
	retries     int           // the most that policy grants; negative: not known
	rules       []rule        // policies for some failures only; the first match wins
	maxAttempts int           // 0: as often as the policy says
	maxAge      time.Duration // 0: at any age
	maxSnooze   time.Duration // since the message was first seen
}

// failure is everything that a decision looks at.
type failure struct {
	err   error
	mark  mark
	at    place
	inner bool              // another DelayedRetry is around this one
	state header.RetryState // as the message brought it: without this failure
	now   time.Time
	given func(asked time.Duration) time.Duration // Delivery.Given
}

// next returns when the message is back if it asks for a delay.
func (f *failure) next(delay time.Duration) time.Time {
	return f.now.Add(givenBy(f.given, delay))
}

// outcome is the decision about a message: another attempt after delay or, with a reason, the
// dead-letter queue.
type outcome struct {
	reason     header.Reason
	delay      time.Duration
	snoozed    bool // the message waits for delay without a failure
	overdue    bool // it asked for a snooze, but may not snooze any longer
	overBudget bool // the budget has changed the decision
	// count and first are the failures so far and the time of the first, this one included.
	count  int
	first  time.Time
	faults []fault

	state header.RetryState // travels with the copy
	class header.Class      // of the failure; empty if there is none
	now   time.Time
	given time.Duration // how long the message waits, which may be longer than delay
	why   error         // the handler is not called; nil if it was
}

// fault is code of the user that panicked or broke its contract while it was asked.
type fault struct {
	what  string
	value any
}

// decide is a pure function, apart from policies and classifiers, which should be pure, too.
func (l limits) decide(f failure) outcome {
	o := outcome{
		count: min(max(f.state.Failures, 0), keys.MaxFailures-1) + 1,
		first: clock.NotAfter(f.state.FirstFailure, f.now),
	}
	if f.mark.class == header.ClassPermanent {
		o.reason = header.ReasonPermanent
		return o
	}
	if f.mark.snooze && l.snooze(&f, &o) {
		return o
	}
	if l.maxAttempts > 0 && o.count >= l.maxAttempts {
		o.reason = header.ReasonExhausted
		return o
	}

	policy := l.choose(&f, &o)
	var delay time.Duration
	var retry bool
	panicked := contain(func() {
		delay, retry = backoff.Next(policy, backoff.Failure{
			Count: o.count, Err: f.err, First: o.first, Now: f.now, Last: f.state.Delay,
		})
	})
	if panicked != nil {
		o.faults = append(o.faults, fault{"policy panicked, waiting a minute instead", panicked})
		delay, retry = panicDelay, o.count < panicFailures
	}
	if !retry {
		o.reason = header.ReasonExhausted
		return o
	}
	delay = max(delay, min(f.mark.floor, backoff.MaxDelay))
	if o.reason = l.tooLate(f.next(delay), o.first, f.state.Deadline); o.reason == "" {
		o.delay = delay
	}
	return o
}

// snooze decides about a message that asked to come back later. It returns false if the
// message has snoozed for long enough, and the attempt counts as a failure.
func (l limits) snooze(f *failure, o *outcome) (decided bool) {
	delay := min(max(f.mark.floor, shortest), backoff.MaxDelay)
	next := f.next(delay)
	if o.reason = l.tooLate(next, f.state.FirstFailure, f.state.Deadline); o.reason != "" {
		return true
	}
	if next.After(clock.NotAfter(f.state.FirstSeen, f.now).Add(l.maxSnooze)) {
		o.overdue = true
		return false
	}
	o.snoozed, o.delay = true, delay
	return true
}

// tooLate says why there must be no attempt at the given time; empty if there may. first is
// the time of the first failure and deadline the message's, each zero if there is none.
func (l limits) tooLate(next, first, deadline time.Time) header.Reason {
	switch {
	case l.maxAge > 0 && !first.IsZero() && next.After(first.Add(l.maxAge)):
		return header.ReasonMaxAge
	case !deadline.IsZero() && next.After(deadline):
		return header.ReasonDeadline
	}
	return ""
}

// rule is a policy for some failures only.
type rule struct {
	Selector
	policy  backoff.Policy
	retries int // as in limits
}

// place is where a message is handled.
type place = attached.Place

// matches reports whether the rule may apply at the place; the error decides the rest.
func (r *rule) matches(at place) bool {
	return anyOr(r.Handler, at.Handler) && anyOr(r.Queue, at.Queue) && anyOr(r.Topic, at.Topic)
}

// covers reports whether the rule matches everything that the selector matches.
func (r *rule) covers(s Selector) bool {
	return r.Error == nil && r.matches(place{Handler: s.Handler, Queue: s.Queue, Topic: s.Topic})
}

func anyOr(want, got string) bool { return want == "" || want == got }

// choose returns the policy for a failure, and adds to o the faults of classifiers.
func (l limits) choose(f *failure, o *outcome) backoff.Policy {
	for i := range l.rules {
		rule := &l.rules[i]
		if !rule.matches(f.at) {
			continue
		}
		matched := rule.Error == nil
		if !matched {
			if value := contain(func() { _, matched = rule.Error.Classify(f.err) }); value != nil {
				what := fmt.Sprintf("classifier of WithPolicyFor %d panicked", i+1)
				o.faults = append(o.faults, fault{what, value})
				continue
			}
		}
		if matched {
			return rule.policy
		}
	}
	return l.policy
}

func (l limits) policies() []backoff.Policy {
	all := []backoff.Policy{l.policy}
	for _, rule := range l.rules {
		all = append(all, rule.policy)
	}
	return all
}

// Logged for a message that arrives past its limit.
var (
	errPastLimit = errors.New("message arrived past its limit: the policy was shortened while it " +
		"waited, or another consumer of the queue has a longer one: give all consumers the same policy " +
		"and limits; with native.Strategy a process may have ended in its last attempt; else its count " +
		"is forged")
	errPastDeadline = errors.New("message arrived past its deadline: " +
		"its own expiration ended while it waited")
)

// past says why a message that comes back must not be handled; empty if it must be.
//
// A count is past its limit if no policy that may have been asked at this place grants a
// retry after so many failures. The error is gone, and with it the choice of the policy, so
// the most patient policy counts. WithMaxAge does not count: the attempt was promised in
// time, and the message is not to blame for the absence of its consumer. The deadline does
// count, because the sender has no use for the message after it.
func (l *limits) past(
	n *header.RetryState, at place, inner bool, now func() time.Time,
) header.Reason {
	// Of two DelayedRetry around a handler either may have granted the retry, and the policy
	// of the other one says nothing about it.
	if n.Failures > 0 && n.Inner == inner {
		if l.maxAttempts > 0 && n.Failures >= l.maxAttempts {
			return header.ReasonExhausted
		}
		if most := l.mostRetries(at); most >= 0 && n.Failures > most {
			return header.ReasonExhausted
		}
	}
	if !n.Deadline.IsZero() && now().After(n.Deadline) {
		return header.ReasonDeadline
	}
	return ""
}

// mostRetries returns the most retries that a policy may grant at the place; negative if that
// is not known.
func (l *limits) mostRetries(at place) int {
	most := 0
	for i := range l.rules {
		rule := &l.rules[i]
		if !rule.matches(at) {
			continue
		}
		if rule.retries < 0 {
			return rule.retries
		}
		most = max(most, rule.retries)
		if rule.Error == nil { // no later rule is ever reached
			return most
		}
	}
	if l.retries < 0 {
		return l.retries
	}
	return max(most, l.retries)
}

// countRetries asks each policy once, because past asks for the numbers before each handler.
func (l *limits) countRetries() {
	l.retries = retriesOf(l.policy)
	for i := range l.rules {
		l.rules[i].retries = retriesOf(l.rules[i].policy)
	}
}

// retriesOf returns the most retries that a DelayedRetry grants with the policy; negative if
// that is not known. While the Match of a backoff.ByError panics, DelayedRetry grants retries
// by itself.
func retriesOf(policy backoff.Policy) int {
	most, known := backoff.MaxRetries(policy)
	if !known {
		return -1
	}
	return max(most, min(backoff.MaxMatchCount(policy), panicFailures-1))
}

// deadLetter is the outcome of a message that arrived past its limit.
func (a *attempt) deadLetter(reason header.Reason) *outcome {
	o := &outcome{reason: reason, why: errPastLimit, state: a.d.State, now: a.r.now().UTC()}
	if reason == header.ReasonDeadline {
		o.why = errPastDeadline
	}
	o.state.Failures = min(o.state.Failures, keys.MaxFailures)
	o.state.NotBefore, o.state.Snoozed = time.Time{}, 0
	o.state.Reason, o.state.DeadAt = reason, o.now
	o.state.Handler = message.HandlerNameFromCtx(a.ctx)
	if o.state.Error == "" { // its last attempt left none: a process ended, or the count is forged
		o.state.Error = excerpt.Of(o.why.Error(), keys.MaxErrorBytes)
	}
	return o
}
