package middleware

import (
	"time"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware/header"
)

const (
	// defaultMaxAside is how long a message may be set aside.
	defaultMaxAside = 24 * time.Hour
	// shortest is the shortest delay there is: it takes the first wait queue.
	shortest = time.Millisecond
)

// Snooze asks for the message to come back after d without counting the attempt
// as a failure: the health check says no, the rate is used up, the circuit
// breaker is open. The message is set aside, which changes neither its failures
// nor its history nor what the policy sees next time; err is in the log line
// alone. A d of 0 or less means the shortest delay there is.
//
// Of nil it is nil, as with every mark: a handler that returns it has succeeded.
// See Permanent for how marks are found, and WithSnoozeFor for errors that cannot be
// marked.
//
// The message comes back when its wait queue lets it go, which may be later than
// asked; see ForPolicy of package topology. That time is compared with the limits:
// where the message would come back later than WithSnoozeLimit allows, Snooze means
// RetryAfter: the attempt has failed. Where it would come back after its own
// expiration or, having failed before, later than WithMaxAge allows, it is
// dead-lettered now.
func Snooze(err error, d time.Duration) error {
	return marked(err, mark{class: header.ClassRetryable, floor: max(d, 0), later: true})
}

// WithSnoozeLimit bounds how long Snooze may set a message aside, counted from
// when it was first set aside or republished: from then on Snooze means
// RetryAfter. It must be positive. Without it the limit is 24 hours.
func WithSnoozeLimit(limit time.Duration) Option {
	return func(s *settings) {
		if limit <= 0 {
			s.refuse("WithSnoozeLimit: %v is not positive", limit)
		}
		s.limits.maxAside = limit
	}
}

// setAside decides about a message that asked to come back later. It returns
// false where that was long enough, and the attempt has failed.
func (l limits) setAside(f failure, d *decision) (decided bool) {
	delay := min(max(f.mark.floor, shortest), backoff.MaxDelay)
	next := f.next(delay)
	if d.reason = l.tooLate(next, f.notes.FirstFailure, f.notes.Deadline); d.reason != "" {
		return true
	}
	if next.After(notAfter(f.notes.FirstSeen, f.now).Add(l.maxAside)) {
		d.overdue = true
		return false
	}
	d.aside, d.delay = true, delay
	return true
}

// recordAside returns the notes of a message that is set aside: all that tells
// of failures is left as it was.
func (f failure) recordAside(delay time.Duration) header.RetryState {
	n := f.notes
	n.FirstSeen = notAfter(n.FirstSeen, f.now)
	n.NotBefore = time.Time{}
	n.Interruptions = 0
	n.Snoozed = delay
	n.WaitingSince = f.now
	return n
}
