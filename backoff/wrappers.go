package backoff

import (
	"fmt"
	"time"
)

// Limit is a policy that allows at most Retries retries of another: Limit{
// Policy: Constant{Interval: 5 * time.Second}, Retries: 2} waits
//
//	5s 5s
//
// and then stops. It never adds a retry: a Policy that stops earlier still does.
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

// Validate returns an error for every invalid field, and the errors of Policy.
func (p Limit) Validate() error {
	found := problems{name: "backoff.Limit"}
	if p.Retries < 0 {
		found.add("Retries %d is negative: use 0 to never retry", p.Retries)
	}
	found.inner(p.Policy)
	return found.join()
}

// CheckEnd returns nil: a Limit ends after Retries.
func (p Limit) CheckEnd() error { return nil }

// Delays returns the delays of the first Retries failures if Policy is from this
// package, depends on Count alone, and Retries is at most 1000. Else it returns
// every delay that Policy lists, of which some may not occur, or nil if Policy
// lists none. A jitter and an [Adaptive] list their wait steps as if the Limit were inside them.
func (p Limit) Delays() []time.Duration {
	if within, is := limited(p.Policy, p.Retries); is {
		return listed(within)
	}
	if p.Retries > maxListed || (p.Retries > 0 && !factsOf(p.Policy).countOnly) {
		return listed(p.Policy)
	}
	delays := []time.Duration{}
	for count := 1; count <= p.Retries; count++ {
		wait, retry := Next(p.Policy, Failure{Count: count})
		if !retry {
			break
		}
		if wait > 0 {
			delays = append(delays, wait)
		}
	}
	return delays
}

// Remarks returns the remarks on Policy that are true under the Limit.
func (p Limit) Remarks() []string {
	within, _ := limited(p.Policy, p.Retries)
	return Remarks(within)
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

func (p Limit) lower(limit time.Duration) Policy {
	p.Policy = lower(p.Policy, limit)
	return p
}

// Cap is a policy that has the delays of another, but none above Max: Cap{Policy:
// List{time.Second, time.Minute, time.Hour}, Max: 5 * time.Minute} waits
//
//	1s 1m 5m
//
// and then stops. It changes neither the number of retries nor whether they end. It does not
// shorten a wait that middleware.RetryAfter asks for, because that comes after the policy. A policy
// of your own that reads such a wait from the error is cut.
type Cap struct {
	// Policy gives the delays. It must not be nil.
	Policy Policy
	// Max is the longest delay. It must be positive (0 does not mean no cap here)
	// and at most [MaxDelay]; below 1 ms it means 1 ms.
	Max time.Duration
}

// Delay returns the result of Policy, but no wait above Max.
func (p Cap) Delay(f Failure) (wait time.Duration, retry bool) {
	if wait, retry = Next(p.Policy, f); !retry {
		return 0, false
	}
	return p.cut(wait), true
}

func (p Cap) cut(d time.Duration) time.Duration {
	if d == 0 {
		return 0
	}
	return clamp(min(d, ceiling(p.Max)))
}

// Validate returns an error for every invalid field, and the errors of Policy.
func (p Cap) Validate() error {
	found := problems{name: "backoff.Cap"}
	if p.Max <= 0 {
		found.add("Max %s is not positive: use Policy without backoff.Cap for no cap", p.Max)
	}
	found.long("Max", p.Max)
	found.inner(p.Policy)
	return found.join()
}

// CheckEnd returns CheckEnd of Policy: a Cap adds no end.
func (p Cap) CheckEnd() error { return CheckEnd(p.Policy) }

// Delays returns the delays of Policy, each at most Max, or nil if Policy lists none. Max also
// bounds a growing series without a Max, so that it is listed: [Linear], [Exponential], [Fibonacci]
// and [DecorrelatedJitter], alone or in a [Limit], an [Unbounded], an [Adaptive] or a jitter.
func (p Cap) Delays() []time.Duration {
	delays := listed(lower(p.Policy, ceiling(p.Max)))
	for i, d := range delays {
		delays[i] = p.cut(d)
	}
	return delays
}

// Remarks returns the remarks on Policy that are true under Max.
func (p Cap) Remarks() []string { return Remarks(lower(p.Policy, ceiling(p.Max))) }

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

// Validate returns an error for every invalid field, and the errors of Policy.
func (p MaxAge) Validate() error {
	found := problems{name: "backoff.MaxAge"}
	if p.Age <= 0 {
		found.add("Age %s is not positive: use Policy without backoff.MaxAge for no limit, "+
			"backoff.None to never retry", p.Age)
	}
	found.inner(p.Policy)
	return found.join()
}

// CheckEnd returns nil: a MaxAge ends after Age.
func (p MaxAge) CheckEnd() error { return nil }

// Delays returns the delays of Policy that are not longer than Age, or nil if
// Policy lists none. Age also bounds the series that Max of a [Cap] bounds.
//
// Every such delay counts, also if the waits before it leave no time for it. A jitter with a longer
// delay also lists Age itself, because it may draw a delay just below.
func (p MaxAge) Delays() []time.Duration {
	delays := []time.Duration{}
	if p.Age < minDelay {
		return delays
	}
	all, known := Delays(p.lowered())
	if !known {
		return nil
	}
	between := factsOf(p.Policy).drawn
	for _, d := range all {
		if d <= p.Age || between {
			delays = append(delays, min(d, p.Age))
		}
	}
	return delays
}

// lowered is Policy without the delays far above Age. A delay longer than Age does
// not matter, as long as it stays longer.
func (p MaxAge) lowered() Policy { return lower(p.Policy, min(p.Age, MaxDelay)+1) }

// Remarks tells if Age is shorter than every delay of Policy, and the remarks on
// Policy that are true within Age.
func (p MaxAge) Remarks() []string {
	if isNil(p.Policy) {
		return nil
	}
	remarks := Remarks(p.lowered())
	if neverRetries(p) && !neverRetries(p.Policy) {
		remarks = append([]string{fmt.Sprintf("backoff.MaxAge: Age %s is shorter than every delay "+
			"of %T: there is no retry", p.Age, p.Policy)}, remarks...)
	}
	return remarks
}

func (p MaxAge) about() facts {
	known := factsOf(p.Policy)
	known.countOnly = false
	return known
}

// Unbounded is a policy that has the delays of another, and says that no end is
// wanted: Unbounded{Policy: Constant{Interval: time.Minute}} waits
//
//	1m 1m 1m …
//
// until the message succeeds. It changes no delay and adds no retry. It only makes
// [CheckEnd] accept the policy.
type Unbounded struct {
	// Policy gives the delays. It must not be nil.
	Policy Policy
}

// Delay returns the result of Policy.
func (p Unbounded) Delay(f Failure) (wait time.Duration, retry bool) { return Next(p.Policy, f) }

// Validate returns an error if Policy is nil, else the errors of Policy.
func (p Unbounded) Validate() error {
	found := problems{name: "backoff.Unbounded"}
	found.inner(p.Policy)
	return found.join()
}

// CheckEnd returns nil, because no end is wanted.
func (p Unbounded) CheckEnd() error { return nil }

// Delays returns the delays of Policy.
func (p Unbounded) Delays() []time.Duration { return listed(p.Policy) }

// Remarks tells that a failing message is retried without end, or that Unbounded adds nothing
// because Policy passes [CheckEnd] by itself; and the remarks on Policy.
func (p Unbounded) Remarks() []string {
	if isNil(p.Policy) {
		return nil
	}
	remark := "backoff.Unbounded: the policy has no end; " +
		"a message that keeps failing is retried until something else stops it"
	if CheckEnd(p.Policy) == nil {
		remark = fmt.Sprintf("backoff.Unbounded adds nothing to %T, "+
			"which ends by itself or already says that it does not", p.Policy)
	}
	return append([]string{remark}, Remarks(p.Policy)...)
}

func (p Unbounded) about() facts { return factsOf(p.Policy) }

func (p Unbounded) lower(limit time.Duration) Policy {
	p.Policy = lower(p.Policy, limit)
	return p
}
