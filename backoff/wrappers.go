package backoff

import (
	"fmt"
	"time"

	"github.com/millpond-go/millpond/internal/nils"
)

// Limit is a policy that allows at most Retries retries of another: Limit{
// Policy: Constant{Interval: 5 * time.Second}, Retries: 2} waits
//
//	5s 5s
//
// and then stops. It never adds a retry: a Policy that stops earlier still does.
//
// [Delays] lists the delays of the first Retries failures, also of a jitter or an [Adaptive] in
// it. But of a [ByError], a [MaxAge] or a policy of another package, and if Retries is above
// 1000 and no jitter is in it, it lists every delay, of which some may not occur.
type Limit struct {
	// Policy gives the delays. It must not be nil.
	Policy Policy
	// Retries is the number of retries. 0 means none, unlike in [Constant], [Linear], [Exponential]
	// and [Fibonacci]; a negative number is invalid and means none.
	Retries int
}

// Delay returns the result of Policy, and no retry if Count is above Retries.
func (p Limit) Delay(f Failure) (wait time.Duration, retry bool) {
	if max(f.Count, 1) > p.Retries {
		return 0, false
	}
	return Next(p.Policy, f)
}

func (p Limit) describe() description {
	d := describing("backoff.Limit", true, part{policy: p.Policy})
	d.wrong(p.Retries < 0, "Retries %d is negative: use 0 to never retry", p.Retries)
	d.within = func(b bounds) bounds {
		if p.Retries <= maxListed || factsOf(p.Policy).drawn {
			b.retries = min(b.retries, p.Retries)
		}
		return b
	}
	return d
}

func (p Limit) about() facts {
	known := factsOf(p.Policy)
	if !known.ends {
		known.retries = p.Retries
	}
	known.retries, known.ends = min(known.retries, p.Retries), true
	known.matches = min(known.matches, p.Retries)
	known.atOnce = known.atOnce && p.Retries > 0
	return known
}

// Cap is a policy that has the delays of another, but none above Max: Cap{Policy:
// List{time.Second, time.Minute, time.Hour}, Max: 5 * time.Minute} waits
//
//	1s 1m 5m
//
// and then stops. It changes neither the number of retries nor whether they end. It does not
// shorten a wait that middleware.RetryAfter asks for, because that comes after the policy. A policy
// of your own that reads such a wait from the error is cut.
//
// Max also bounds a growing series without a Max, so that [Delays] lists it: [Linear],
// [Exponential], [Fibonacci] and [DecorrelatedJitter], alone or in a [Limit], an [AtOnce], an
// [Unbounded], an [Adaptive] or a jitter. [Remarks] tells only facts that are true under Max.
type Cap struct {
	// Policy gives the delays. It must not be nil.
	Policy Policy
	// Max is the longest delay, from 1 ms to [MaxDelay]; 0 does not mean no cap here.
	Max time.Duration
}

// Delay returns the result of Policy, but no wait above Max.
func (p Cap) Delay(f Failure) (wait time.Duration, retry bool) {
	wait, retry = Next(p.Policy, f)
	return p.cut(wait), retry
}

func (p Cap) cut(d time.Duration) time.Duration {
	if d == 0 {
		return 0
	}
	return clamp(min(d, ceiling(p.Max)))
}

func (p Cap) describe() description {
	d := describing("backoff.Cap", false, part{policy: p.Policy})
	d.wrong(p.Max <= 0, "Max %s is not positive: use Policy without backoff.Cap for no cap", p.Max)
	d.long("Max", p.Max)
	d.within = func(b bounds) bounds { return bounds{ceiling(p.Max), b.retries} }
	d.each = func(delay time.Duration) []time.Duration { return []time.Duration{p.cut(delay)} }
	return d
}

func (p Cap) about() facts { return factsOf(p.Policy) }

// MaxAge is a policy that stops retrying messages that would grow too old: MaxAge{
// Policy: Exponential{Initial: time.Second, Factor: 2}, Age: 10 * time.Second},
// where each attempt fails at once, waits
//
//	1s 2s 4s
//
// and then stops, because another 8s would end 15s after the first failure. A retry at exactly Age
// is still made. MaxAge never adds a retry: a Policy that stops earlier still does.
//
// The age is Failure.Now less First. If these times are unknown it is 0, and the retries may never
// end. MaxAge knows only the delay it returns. A longer wait that middleware.RetryAfter asks for is
// known only to middleware.WithMaxAge, which also gives its own reason to the dead letter.
//
// [Delays] lists the delays that are not longer than Age, also if the waits before leave no
// time for one. A jitter with a longer delay lists Age, too, because it may draw a delay just
// below. Age also bounds the series that Max of a [Cap] bounds. [Remarks] tells if Age is
// shorter than every delay.
type MaxAge struct {
	// Policy gives the delays. It must not be nil.
	Policy Policy
	// Age is the time from the first failure to the last retry. It must be
	// positive, 0 does not mean no limit; below 1 ms there is no retry.
	Age time.Duration
}

// Delay returns the result of Policy, and no retry that would come later than Age
// after the first failure.
func (p MaxAge) Delay(f Failure) (wait time.Duration, retry bool) {
	wait, retry = Next(p.Policy, f)
	// Subtracted from Age, because the sum may overflow.
	if !retry || max(wait, minDelay) > p.Age || f.age() > p.Age-wait {
		return 0, false
	}
	return wait, true
}

func (p MaxAge) describe() description {
	d := describing("backoff.MaxAge", true, part{policy: p.Policy})
	d.wrong(p.Age <= 0, "Age %s is not positive: use Policy without backoff.MaxAge for no limit, "+
		"backoff.None to never retry", p.Age)
	d.within = func(bounds) bounds {
		if p.Age < minDelay {
			return bounds{minDelay, 0}
		}
		// A delay longer than Age does not matter, as long as it stays longer.
		return bounds{min(p.Age, MaxDelay) + 1, unlimited}
	}
	d.each = func(delay time.Duration) []time.Duration {
		if delay > p.Age && !factsOf(p.Policy).drawn {
			return nil
		}
		return []time.Duration{min(delay, p.Age)} // a jitter may draw a delay just below Age
	}
	d.remark = func(bounds) string {
		if nils.Is(p.Policy) || !neverRetries(p) || neverRetries(p.Policy) {
			return ""
		}
		return fmt.Sprintf(": Age %s is shorter than every delay of %T: there is no retry",
			p.Age, p.Policy)
	}
	return d
}

func (p MaxAge) about() facts { return factsOf(p.Policy) }

// Unbounded is a policy that has the delays of another, and says that no end is
// wanted: Unbounded{Policy: Constant{Interval: time.Minute}} waits
//
//	1m 1m 1m …
//
// until the message succeeds. It changes no delay and adds no retry. It only makes [CheckEnd]
// accept the policy. [Remarks] tells that a failing message is retried without end, or that
// Unbounded adds nothing because Policy passes CheckEnd by itself.
type Unbounded struct {
	// Policy gives the delays. It must not be nil.
	Policy Policy
}

// Delay returns the result of Policy.
func (p Unbounded) Delay(f Failure) (wait time.Duration, retry bool) { return Next(p.Policy, f) }

func (p Unbounded) describe() description {
	d := describing("backoff.Unbounded", true, part{policy: p.Policy})
	d.remark = func(bounds) string {
		switch {
		case nils.Is(p.Policy):
			return ""
		case CheckEnd(p.Policy) == nil:
			return fmt.Sprintf(" adds nothing to %T, "+
				"which ends by itself or already says that it does not", p.Policy)
		}
		return ": the policy has no end; " +
			"a message that keeps failing is retried until something else stops it"
	}
	return d
}

func (p Unbounded) about() facts { return factsOf(p.Policy) }
