package backoff

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millpond-go/millpond/internal/nils"
)

// maxListed is the most distinct delays that a policy can list, because each would be a queue.
const maxListed = 1000

// Delays returns every delay that p may return, in rising order, each once and within 1 ms and
// [MaxDelay]. known is false, and delays nil, if p cannot tell or has more than 1000 delays. The
// caller owns the slice.
//
// The policies of this package leave out a first retry without a delay, because it needs no wait
// queue. So an empty slice that is known means that p never retries, or once without a delay.
//
// A jitter may return any delay. It lists a few of them, its wait steps, and draws no delay above
// the last one. Where each delay needs a queue, a drawn delay waits on the wait steps beside it.
//
// A policy takes part with a method
//
//	Delays() []time.Duration
//
// that returns nil if it cannot tell and an empty slice, not nil, if it never
// retries. It leaves out a first delay of 0. Order and duplicates do not matter. A
// type that embeds a policy and changes its Delay must change its Delays, too.
func Delays(p Policy) (delays []time.Duration, known bool) { return delaysOf(p, unbounded) }

// delaysOf is Delays for a policy within bounds.
func delaysOf(p Policy, b bounds) (delays []time.Duration, known bool) {
	if b.retries <= 0 {
		return []time.Duration{}, true
	}
	return distinct(optional[interface{ Delays() []time.Duration }](p, b).Delays())
}

// distinct returns the delays as [Delays] does. They are not known if listed is nil.
func distinct(listed []time.Duration) (delays []time.Duration, known bool) {
	if listed == nil {
		return nil, false
	}
	delays = make([]time.Duration, len(listed))
	for i, d := range listed {
		delays[i] = clamp(d)
	}
	slices.Sort(delays)
	if delays = slices.Compact(delays); len(delays) > maxListed {
		return nil, false
	}
	return delays, true
}

// neverRetries reports whether p lists that it has no delay at all.
func neverRetries(p Policy) bool {
	delays, known := Delays(p)
	return known && len(delays) == 0 && !factsOf(p).atOnce
}

// Remarks returns facts about p that its user should know, one sentence an entry,
// or nil. Remarks are no errors; middleware.NewDelayedRetry logs them.
//
// A policy takes part with a method
//
//	Remarks() []string
//
// to which a wrapper adds Remarks of the policy it wraps.
func Remarks(p Policy) []string { return remarksOf(p, unbounded) }

// remarksOf is Remarks for a policy within bounds.
func remarksOf(p Policy, b bounds) []string {
	return optional[interface{ Remarks() []string }](p, b).Remarks()
}

// MaxRetries returns the most retries that p grants, for any failure. known is
// false if p has no end, or if only a failure would tell. It does not call Delay.
//
// It knows the policies of this package. A policy of another package is unknown,
// also if it embeds a policy of this package, because its Delay may differ. So are
// a pointer to a policy, a [PolicyFunc] and the policy of [FromCenkalti]. A [Limit]
// around an unknown policy makes the number known.
//
// n does not count the retries that a caller grants itself when the Match of a
// [ByError] panics: see [MaxMatchCount].
func MaxRetries(p Policy) (n int, known bool) {
	about := factsOf(p)
	if !about.ends {
		return 0, false
	}
	return max(about.retries, 0), true
}

// MaxMatchCount returns the highest Failure.Count for which p may call the Match
// of a [ByError]. It is 0 if p contains no ByError, and [math.MaxInt] if no [Limit]
// around the ByError ends the calls. A caller that recovers from the panic of a
// Match, and then grants a retry itself, grants none above this count.
func MaxMatchCount(p Policy) int { return max(factsOf(p).matches, 0) }

// ErrNoEnd is wrapped by the error of [CheckEnd]: the policy is not known to stop
// retrying, and is not in an [Unbounded].
var ErrNoEnd = errors.New("policy is not known to stop retrying")

// Validate returns every problem of p and of the policies it wraps, as one error made by
// [errors.Join], or nil. A p that is nil, or a nil pointer or func, is an error.
//
// A policy takes part with a method
//
//	Validate() error
//
// in which a wrapper joins its own problems with Validate of the policy it wraps.
// A policy without the method is valid.
func Validate(p Policy) error {
	if nils.Is(p) {
		return fmt.Errorf("policy is %s: use backoff.None to never retry", describeNil(p))
	}
	return optional[interface{ Validate() error }](p, unbounded).Validate()
}

// CheckEnd returns nil if p is known to stop retrying, or if an [Unbounded] says
// that no end is wanted. Otherwise it returns an error that wraps [ErrNoEnd] and
// names the ways out. It does not validate: a nil p never retries, so it ends.
//
// A policy takes part with a method
//
//	CheckEnd() error
//
// that returns nil if it stops by itself. A wrapper that adds no end returns
// CheckEnd of the policy it wraps. Without the method, only a policy that lists no
// delay at all (see [Delays]) is known to stop.
func CheckEnd(p Policy) error {
	err := optional[interface{ CheckEnd() error }](p, unbounded).CheckEnd()
	if err != nil && !errors.Is(err, ErrNoEnd) {
		return fmt.Errorf("%w: %w", ErrNoEnd, err)
	}
	return err
}

// noEnd wraps ErrNoEnd for the named policy. ownWay is the way out that only this
// policy has, with a trailing comma and blank, or empty.
func noEnd(name, ownWay string) error {
	return fmt.Errorf("%s: %w: %swrap it in backoff.Limit or backoff.MaxAge, "+
		"use middleware.WithMaxAttempts or middleware.WithMaxAge, "+
		"or wrap it in backoff.Unbounded if no end is wanted", name, ErrNoEnd, ownWay)
}
