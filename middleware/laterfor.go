package middleware

import (
	"slices"
	"time"
)

// laterRule takes some errors for Snooze.
type laterRule struct {
	match func(err error) bool
	delay time.Duration
}

// WithSnoozeFor takes errors that are one of errs, in the sense of errors.Is, as if
// they were marked with [Snooze] and d: the message comes back after d, and no
// attempt is spent. It is for code that cannot mark its errors, such as a circuit
// breaker between DelayedRetry and the handler:
//
//	middleware.WithSnoozeFor(30*time.Second, gobreaker.ErrOpenState, gobreaker.ErrTooManyRequests)
//
// A mark on the error comes first, then what WithSnoozeFor names, in the order it
// was given, then the classifiers. WithSnoozeLimit bounds it as it bounds Snooze. A d
// that is not positive is an error, and so are no errs or a nil one. Without it
// only the mark Snooze spends no attempt.
func WithSnoozeFor(d time.Duration, errs ...error) Option {
	return func(s *settings) {
		if d <= 0 {
			s.refuse("WithSnoozeFor: %v is not positive", d)
		}
		if len(errs) == 0 {
			s.refuse("WithSnoozeFor: no errors are named")
		}
		if i := slices.Index(errs, nil); i >= 0 {
			s.refuse("WithSnoozeFor: error %d is nil", i)
		}
		s.classes.later = append(s.classes.later, laterRule{match: isOneOf(errs), delay: d})
	}
}
