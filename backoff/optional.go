package backoff

import (
	"reflect"
	"slices"
	"time"
)

// maxListed is the most distinct delays that a policy can list, because each would be a queue.
const maxListed = 1000

// Delays returns every delay that p may return, in rising order, each once and within 1 ms and
// [MaxDelay]. known is false, and delays nil, if p cannot tell or has more than 1000 delays. An
// empty slice that is known means that p never retries. The caller owns the slice.
//
// A jitter may return any delay. It lists a few of them, its wait steps, and draws no delay above
// the last one. Where each delay needs a queue, a drawn delay waits on the next longer wait step.
//
// A policy takes part with a method
//
//	Delays() []time.Duration
//
// that returns nil if it cannot tell and an empty slice, not nil, if it never
// retries. Order and duplicates do not matter. A type that embeds a policy and
// changes its Delay must change its Delays, too.
func Delays(p Policy) (delays []time.Duration, known bool) {
	if isNil(p) {
		return nil, false
	}
	lister, ok := p.(interface{ Delays() []time.Duration })
	if !ok {
		return nil, false
	}
	listed := lister.Delays()
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

// listed is Delays for the method of a wrapper: nil if p cannot tell.
func listed(p Policy) []time.Duration {
	delays, _ := Delays(p)
	return delays
}

// neverRetries reports whether p lists that it has no delay at all.
func neverRetries(p Policy) bool {
	delays, known := Delays(p)
	return known && len(delays) == 0
}

// Remarks returns facts about p that its user should know, one sentence an entry,
// or nil. Remarks are no errors; middleware.NewDelayedRetry logs them.
//
// A policy takes part with a method
//
//	Remarks() []string
//
// to which a wrapper adds Remarks of the policy it wraps.
func Remarks(p Policy) []string {
	if isNil(p) {
		return nil
	}
	if r, ok := p.(interface{ Remarks() []string }); ok {
		return r.Remarks()
	}
	return nil
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

// facts tells other policies about one of this package, before any failure.
type facts struct {
	retries   int  // the most retries, if ends
	ends      bool // retries is known
	matches   int  // the highest count for which Delay may call a Match
	countOnly bool // the delays depend on Failure.Count alone
	drawn     bool // Delay may return a delay that Delays does not list
}

// factsOf returns the facts of the method about, and none without the method.
func factsOf(p Policy) facts {
	if teller, is := own[interface{ about() facts }](p); is {
		return teller.about()
	}
	return facts{}
}

// lower returns p with the Max of the growing series in it set to limit, if it was
// more or none. The delays up to limit do not change.
func lower(p Policy, limit time.Duration) Policy {
	if series, is := own[interface{ lower(time.Duration) Policy }](p); is {
		return series.lower(limit)
	}
	return p
}

// limited returns a jitter that draws around at most this many retries, and false
// if p is no jitter.
func limited(p Policy, retries int) (Policy, bool) {
	if jitter, is := own[interface{ limited(int) (Policy, bool) }](p); is {
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
