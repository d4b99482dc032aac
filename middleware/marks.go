package middleware

import (
	"time"

	"github.com/millpond-go/millpond/middleware/header"
)

// Permanent marks err as permanent: no attempt can succeed, and the message is
// dead-lettered at once. The result reads like err and unwraps to it. Of nil it
// is nil.
//
// Marks come before every classifier. They are found through %w, errors.Join
// and multierrors: the error tree is walked depth first, as errors.As does, and
// the first mark wins. So the outermost mark wins over those it wraps, and the
// first of joined errors over the later ones.
func Permanent(err error) error { return marked(err, mark{class: header.ClassPermanent}) }

// Retryable marks err as retryable, whatever the classifiers or the default
// class say. The policy still decides when, and whether there is an attempt
// left. Of nil it is nil. See Permanent for how marks are found.
func Retryable(err error) error { return marked(err, mark{class: header.ClassRetryable}) }

// RetryAfter marks err as retryable, not before d has passed: the delay is the
// policy's or d, whichever is longer. The policy still decides whether there is
// an attempt left. A negative d is 0. Of nil it is nil. See Permanent for how
// marks are found.
func RetryAfter(err error, d time.Duration) error {
	return marked(err, mark{class: header.ClassRetryable, floor: max(d, 0)})
}

// mark is what an error says about itself.
type mark struct {
	class header.Class
	floor time.Duration // the delay is no shorter
	later bool          // not a failure: see Snooze
}

type markedError struct {
	error
	mark mark
}

func (e *markedError) Unwrap() error { return e.error }

func marked(err error, m mark) error {
	if err == nil {
		return nil
	}
	return &markedError{error: err, mark: m}
}

// markOf returns the first mark in the tree of err.
func markOf(err error) (found mark, ok bool) {
	walk(err, func(err error) bool {
		if e, is := as[*markedError](err); is {
			found, ok = e.mark, true
		} else {
			found, ok = cenkaltiMark(err)
		}
		return !ok
	})
	return found, ok
}
