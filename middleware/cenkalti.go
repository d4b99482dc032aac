package middleware

import (
	backoff4 "github.com/cenkalti/backoff/v4"
	backoff5 "github.com/cenkalti/backoff/v5"

	"github.com/millpond-go/millpond/middleware/header"
)

// cenkaltiMark reads the errors of cenkalti/backoff as marks: *PermanentError of v4 and v5 is
// permanent, *RetryAfterError of v5 is like RetryAfter.
//
// Watermill's own Retry uses v5 and removes *PermanentError from the error that it returns.
// Inside DelayedRetry the mark must be Permanent, or the error is retried.
func cenkaltiMark(err error) (mark, bool) {
	if _, ok := as[*backoff4.PermanentError](err); ok {
		return mark{class: header.ClassPermanent}, true
	}
	if _, ok := as[*backoff5.PermanentError](err); ok {
		return mark{class: header.ClassPermanent}, true
	}
	if e, ok := as[*backoff5.RetryAfterError](err); ok {
		return mark{class: header.ClassRetryable, floor: max(e.Duration, 0)}, true
	}
	return mark{}, false
}
