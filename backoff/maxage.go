package backoff

import (
	"fmt"
	"time"
)

// MaxAge is a policy that stops retrying messages that would grow too old: MaxAge{
// Policy: Exponential{Initial: time.Second, Factor: 2}, Age: 10 * time.Second},
// where each attempt fails at once, waits
//
//	1s 2s 4s
//
// and then stops, since another 8s would end 15s after the first failure. A retry
// at exactly Age is still made. It never adds a retry: a Policy that stops earlier
// still does.
//
// The age is Now less First. Unknown, it is 0: who calls the policy without these
// times may never see it end. It goes by the delay it returns. A longer wait that
// middleware.RetryAfter asks for is known only to middleware.WithMaxAge, which
// also gives its own reason to the dead letter.
type MaxAge struct {
	// Policy is asked for the delays. It must not be nil.
	Policy Policy
	// Age is the time from the first failure to the last retry. It must be
	// positive, 0 does not mean no limit; below 1 ms there is no retry.
	Age time.Duration
}

// Delay returns what Policy does, and no retry that would come later than Age
// after the first failure.
func (p MaxAge) Delay(f Failure) (wait time.Duration, retry bool) {
	wait, retry = Next(p.Policy, f)
	// Subtracted from Age, as the sum may overflow.
	if !retry || wait > p.Age || f.age() > p.Age-wait {
		return 0, false
	}
	return wait, true
}

// Validate returns an error for every invalid field, joined with those of
// Policy.
func (p MaxAge) Validate() error {
	found := problems{name: "backoff.MaxAge"}
	if p.Age <= 0 {
		found.add("Age %s is not positive: use Policy without backoff.MaxAge for no limit, backoff.None to never retry", p.Age)
	}
	found.inner(p.Policy)
	return found.join()
}

// CheckEnd returns nil: a MaxAge ends after Age.
func (p MaxAge) CheckEnd() error { return nil }

// Delays returns those of Policy that are not longer than Age; nil if Policy
// lists none. Of a [Linear], [Exponential] or [Fibonacci], also in a [Limit],
// [Unbounded] or jitter, and of a [DecorrelatedJitter], Age bounds the series, so
// that one without bounds of its own is listed. All count, also where the waits
// before them leave no time for some. Of a jitter with a longer delay Age itself is
// listed, too, for what it draws just below.
func (p MaxAge) Delays() []time.Duration {
	delays := []time.Duration{}
	if p.Age < minDelay {
		return delays
	}
	listed, known := Delays(p.lowered())
	if !known {
		return nil
	}
	between := factsOf(p.Policy).drawn
	for _, d := range listed {
		if d <= p.Age || between {
			delays = append(delays, min(d, p.Age))
		}
	}
	return delays
}

// lowered is Policy without the delays far above Age: what is longer than Age
// does not matter, as long as it stays longer.
func (p MaxAge) lowered() Policy {
	return lower(p.Policy, min(p.Age, MaxDelay)+1)
}

// Remarks tells if Age is shorter than every delay of Policy, and what is to be
// told of Policy within Age.
func (p MaxAge) Remarks() []string {
	if isNil(p.Policy) {
		return nil
	}
	remarks := Remarks(p.lowered())
	if neverRetries(p) && !neverRetries(p.Policy) {
		remark := fmt.Sprintf("backoff.MaxAge: Age %s is shorter than every delay of %T: there is no retry", p.Age, p.Policy)
		remarks = append([]string{remark}, remarks...)
	}
	return remarks
}

func (p MaxAge) about() facts {
	known := factsOf(p.Policy)
	known.countOnly = false
	return known
}

// neverRetries reports whether p lists that it has no delay at all.
func neverRetries(p Policy) bool {
	delays, known := Delays(p)
	return known && len(delays) == 0
}
