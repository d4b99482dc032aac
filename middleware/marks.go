package middleware

import (
	"net/http"
	"slices"
	"strings"
	"time"

	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware/header"
)

// Permanent marks err as permanent: no attempt can succeed, and the message is dead-lettered
// at once. The result has the text of err and unwraps to it. Permanent(nil) is nil.
//
// A mark counts more than every classifier. Marks are found through %w, errors.Join and
// multierrors: the error tree is walked depth first, as errors.As does, and the first mark
// wins. So the outermost mark wins over the marks that it wraps, and the first of joined
// errors over the later errors.
func Permanent(err error) error { return marked(err, mark{class: header.ClassPermanent}) }

// Retryable marks err as retryable, against classifiers and the default class. The policy
// still decides on the delay, and whether an attempt is left. Retryable(nil) is nil. See
// Permanent for how marks are found.
func Retryable(err error) error { return marked(err, mark{class: header.ClassRetryable}) }

// RetryAfter marks err as retryable, but not before d has passed: the delay is the policy's
// or d, whichever is longer. The policy still decides whether an attempt is left. A negative d
// is 0. RetryAfter(nil, d) is nil. See Permanent for how marks are found.
func RetryAfter(err error, d time.Duration) error {
	return marked(err, mark{class: header.ClassRetryable, floor: max(d, 0)})
}

// RetryAfterHeader marks err as RetryAfter does, with the delay that the Retry-After header of
// an HTTP response asks for. An err with the mark Snooze becomes a Snooze for that delay. limit
// is the longest delay, because a server may ask for years; without a positive limit it is
// backoff.MaxDelay. The result is err itself if there is no Retry-After that RFC 9110 allows:
//
//   - whole seconds, "120", of any number of digits, without sign or fraction
//   - a date, "Fri, 31 Dec 2027 23:59:59 GMT", in one of the three forms of HTTP. It is
//     compared with the Date of the same response, because two clocks may differ. Without a
//     readable Date the clock here counts. A date in the past asks for 0.
//
// The first of several Retry-After headers counts. RetryAfterHeader of a nil error is nil.
//
//	if resp.StatusCode == http.StatusTooManyRequests {
//		err = middleware.RetryAfterHeader(err, resp.Header, time.Hour)
//	}
func RetryAfterHeader(err error, header http.Header, limit time.Duration) error {
	asked, found := parseRetryAfter(header, time.Now)
	if !found {
		return err
	}
	if limit > 0 {
		asked = min(asked, limit)
	}
	var before mark
	_ = contain(func() { before, _ = markOf(err) })
	if before.snooze {
		return Snooze(err, asked)
	}
	return RetryAfter(err, asked)
}

// Snooze asks for the message to come back after d without counting the attempt as a
// failure: the health check says no, the rate is used up, the circuit breaker is open. The
// failures and the history of the message stay as they are, and the policy learns nothing of
// it; only the log line has err. A d of 0 or less means the shortest delay. Snooze(nil, d) is
// nil: a handler that returns it has succeeded.
//
// The message comes back when its wait queue releases it, which may be later than asked; see
// topology.ForPolicy. The limits count that time. If it is later than WithSnoozeLimit allows,
// Snooze means RetryAfter: the attempt has failed. If it is after the message's own
// expiration or, after an earlier failure, later than WithMaxAge allows, the message is
// dead-lettered now.
//
// See Permanent for how marks are found, and WithSnoozeFor for errors that cannot be marked.
func Snooze(err error, d time.Duration) error { return marked(err, snoozeFor(d)) }

// mark is the statement of an error about itself.
type mark struct {
	class  header.Class
	floor  time.Duration // the delay is no shorter
	snooze bool          // not a failure
}

func snoozeFor(d time.Duration) mark {
	return mark{class: header.ClassRetryable, floor: max(d, 0), snooze: true}
}

// snoozeRule takes errors that match for Snooze.
type snoozeRule struct {
	match func(err error) bool
	mark  mark
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

// parseRetryAfter returns a delay from 0 to backoff.MaxDelay; see RetryAfterHeader.
func parseRetryAfter(
	header http.Header, now func() time.Time,
) (delay time.Duration, found bool) {
	value := strings.TrimSpace(header.Get("Retry-After"))
	if delay, found = parseSeconds(value); found {
		return delay, true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	since, err := http.ParseTime(header.Get("Date"))
	if err != nil {
		since = now()
	}
	return min(max(at.Sub(since), 0), backoff.MaxDelay), true
}

// parseSeconds reads digits alone. A number that is too large means the longest delay.
func parseSeconds(digits string) (time.Duration, bool) {
	var seconds time.Duration
	for i := range len(digits) {
		if digits[i] < '0' || digits[i] > '9' {
			return 0, false
		}
		seconds = min(10*seconds+time.Duration(digits[i]-'0'), backoff.MaxDelay/time.Second)
	}
	return seconds * time.Second, digits != ""
}

// maxTree bounds how much of an error's tree is searched: an error that wraps itself would
// keep a handler's goroutine for ever.
const maxTree = 10_000

// walk calls visit for err and everything it wraps, depth first, until visit returns false. A
// chain, the most frequent tree, costs no memory.
func walk(err error, visit func(error) bool) {
	var pending []error
	for seen := 0; seen < maxTree; seen++ {
		if err == nil {
			if len(pending) == 0 {
				return
			}
			last := len(pending) - 1
			err, pending = pending[last], pending[:last]
			continue
		}
		if !visit(err) {
			return
		}
		var several []error
		several, err = wrappedBy(err)
		for _, one := range slices.Backward(several) {
			pending = append(pending, one)
		}
	}
}

// wrappedBy returns the errors directly below err: several, or one.
func wrappedBy(err error) (several []error, one error) {
	switch e := err.(type) {
	case interface{ WrappedErrors() []error }: // hashicorp's multierror
		return e.WrappedErrors(), nil
	case interface{ Unwrap() []error }:
		return e.Unwrap(), nil
	case interface{ Unwrap() error }:
		return nil, e.Unwrap()
	case wmiddleware.RecoveredPanicError:
		if value, ok := e.V.(error); ok {
			return nil, value
		}
	}
	return nil, nil
}

// as is errors.As for err alone, without the errors that it wraps.
func as[T error](err error) (found T, ok bool) {
	if e, ok := err.(T); ok {
		return e, true
	}
	x, ok := err.(interface{ As(target any) bool })
	if !ok {
		return found, false
	}
	target := new(T) // on the heap, and only here
	ok = x.As(target)
	return *target, ok
}
