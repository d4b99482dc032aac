package backoff

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// ByError is a policy that lets the error choose another policy:
//
//	backoff.ByError{
//		Cases: []backoff.Case{
//			{Match: backoff.As[net.Error](), Policy: backoff.List{time.Second, time.Second}},
//			{Match: backoff.Is(errRateLimited), Policy: backoff.List{time.Minute, time.Hour}},
//			{Match: backoff.Is(errLocked), Policy: backoff.Fibonacci{Initial: time.Second, Retries: 8}},
//		},
//		Default: backoff.None{}, // to the dead-letter queue
//	}
//
// The first case that matches wins. Only the last error counts. The chosen policy
// sees the failure unchanged: Count is the number of all failures of the message,
// of any error. A message that has failed three times on the network, and then with
// errLocked, waits the fourth delay of that series, 5s.
//
// [Delays] lists the delays of every case and of Default, if each lists its own. [Validate],
// [CheckEnd] and [Remarks] name the case by its index from 0. They call no Match.
//
// middleware.LastAttempt shows the policy an error of no known kind, so that
// Default decides: with None there, it is true on every attempt.
type ByError struct {
	// Cases are tried in this order. Without any, Default always decides. Do not
	// change the slice after handing it over: the ByError uses it itself.
	Cases []Case
	// Default decides where no case matches, and where there is no error. It must
	// not be nil: use [None] to never retry an error without a case.
	Default Policy
}

// Case is a policy for the errors that match.
type Case struct {
	// Match reports whether the case is meant for err, which is not nil but may wrap others: see [Is]
	// and [As]. It must not be nil; a nil Match never matches. It is called from many goroutines at
	// once, and should depend on nothing but err. Its panics pass through Delay;
	// middleware.DelayedRetry contains them and waits a minute, so that no message is lost.
	Match func(err error) bool
	// Policy decides where Match is true. It must not be nil: use [None] to never retry such errors.
	Policy Policy
}

// Delay returns the result of the first case whose Match is true for Err, or else of Default.
func (p ByError) Delay(f Failure) (wait time.Duration, retry bool) {
	for _, c := range p.Cases {
		if f.Err != nil && c.Match != nil && c.Match(f.Err) {
			return Next(c.Policy, f)
		}
	}
	return Next(p.Default, f)
}

func (p ByError) describe() description {
	parts := make([]part, 0, len(p.Cases)+1)
	for i, c := range p.Cases {
		in := part{policy: c.Policy, where: fmt.Sprintf("backoff.ByError: case [%d]: ", i)}
		if c.Match == nil {
			in.wrong = errors.New(in.where + "Match is nil: use backoff.Is with an error, backoff.As " +
				"or a func of your own")
		}
		parts = append(parts, in)
	}
	parts = append(parts, part{policy: p.Default, where: "backoff.ByError: Default: "})
	d := describing("backoff.ByError", false, parts...)
	d.within = func(bounds) bounds { return unbounded }
	return d
}

// about counts a ByError without cases like any other.
func (p ByError) about() facts {
	known := factsOf(p.Default)
	for _, c := range p.Cases {
		one := factsOf(c.Policy)
		known.retries, known.ends = max(known.retries, one.retries), known.ends && one.ends
		known.drawn, known.atOnce = known.drawn || one.drawn, known.atOnce || one.atOnce
	}
	known.matches = math.MaxInt
	return known
}

// Is returns a Match for a [Case] that is true for target and for every error that
// wraps it, in the sense of [errors.Is]. For a nil target, a sentinel that was
// never set, it returns nil, which [Validate] reports.
func Is(target error) func(err error) bool {
	if target == nil {
		return nil
	}
	return func(err error) bool { return errors.Is(err, target) }
}

// As returns a Match for a [Case] that is true for every error that is a T or
// wraps a T, in the sense of [errors.As]. T is the type of an error as functions
// return it, often a pointer, or an interface such as net.Error.
func As[T error]() func(err error) bool {
	return func(err error) bool {
		var target T
		return errors.As(err, &target)
	}
}
