package backoff

import (
	"reflect"
	"time"
)

// MaxRetries returns the most retries that p grants, whatever the failure. known
// is false if p has no end, or if the number cannot be told without a failure.
// It does not call Delay.
//
// It knows the policies of this package. A policy of another package is unknown,
// also one that embeds a policy of this package, because its Delay may differ. A
// [Limit] around an unknown policy makes the number known. A pointer to a policy,
// a [PolicyFunc] and the policy of [FromCenkalti] are unknown, too.
//
// n does not count retries that a caller grants when the Match of a [ByError]
// panics: see [MaxMatchCount].
func MaxRetries(p Policy) (n int, known bool) {
	about := factsOf(p)
	if !about.ends {
		return 0, false
	}
	return max(about.retries, 0), true
}

// MaxMatchCount returns the highest Failure.Count for which p may call the Match
// of a [ByError]: 0 if p contains no ByError, and [math.MaxInt] if no [Limit]
// around the ByError ends the calls. A caller that recovers from a panic of a
// Match, and then grants a retry itself, can grant none above this count.
func MaxMatchCount(p Policy) int { return max(factsOf(p).matches, 0) }

// facts tells the other policies about one of this package, before any failure.
type facts struct {
	retries   int  // the most retries, if ends
	ends      bool // retries is known
	matches   int  // the highest count for which Delay may call a Match
	countOnly bool // the delays depend on Failure.Count alone
	drawn     bool // Delay may return delays between those that Delays lists
}

// factsOf returns nothing known for a policy that has no method about.
func factsOf(p Policy) facts {
	if teller, is := own[interface{ about() facts }](p); is {
		return teller.about()
	}
	return facts{}
}

// seriesOf returns the facts of a series with a Retries field.
func seriesOf(retries int) facts {
	return facts{retries: retries, ends: retries > 0, countOnly: true}
}

// lower returns p with the Max of the growing series in it set to limit, if it was
// more or none. The delays up to limit do not change.
func lower(p Policy, limit time.Duration) Policy {
	if series, is := own[interface {
		lower(limit time.Duration) Policy
	}](p); is {
		return series.lower(limit)
	}
	return p
}

// limited returns a jitter that draws around at most this many retries, and false
// if p is no jitter.
func limited(p Policy, retries int) (Policy, bool) {
	if jitter, is := own[interface {
		limited(retries int) (Policy, bool)
	}](p); is {
		return jitter.limited(retries)
	}
	return p, false
}

// own returns p as a T if this package defines its type. A user's type that embeds
// a policy inherits its methods, also the unexported ones, but may change Delay.
func own[T any](p Policy) (t T, is bool) {
	if p == nil || reflect.TypeOf(p).PkgPath() != reflect.TypeFor[None]().PkgPath() {
		return t, false
	}
	t, is = p.(T)
	return t, is
}
