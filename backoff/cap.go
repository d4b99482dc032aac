package backoff

import "time"

// Cap is a policy that has the delays of another, but none above Max: Cap{Policy:
// List{time.Second, time.Minute, time.Hour}, Max: 5 * time.Minute} waits
//
//	1s 1m 5m
//
// and then stops. It changes neither the number of retries nor whether they end.
// Nor does it shorten a wait that middleware.RetryAfter asks for, which comes
// after the policy; a policy of your own that reads such a wait from the error
// is cut.
type Cap struct {
	// Policy is asked for the delays. It must not be nil.
	Policy Policy
	// Max is the longest delay. It must be positive, here 0 does not mean no cap,
	// and at most [MaxDelay]; below 1 ms it means 1 ms.
	Max time.Duration
}

// Delay returns what Policy does, but no wait above Max.
func (p Cap) Delay(f Failure) (wait time.Duration, retry bool) {
	wait, retry = Next(p.Policy, f)
	if !retry {
		return 0, false
	}
	return p.cut(wait), true
}

func (p Cap) cut(d time.Duration) time.Duration { return clamp(min(d, ceiling(p.Max))) }

// Validate returns an error for every invalid field, joined with those of
// Policy.
func (p Cap) Validate() error {
	found := problems{name: "backoff.Cap"}
	if p.Max <= 0 {
		found.add("Max %s is not positive: use Policy without backoff.Cap for no cap", p.Max)
	}
	found.long("Max", p.Max)
	found.inner(p.Policy)
	return found.join()
}

// CheckEnd returns that of Policy: a Cap adds no end.
func (p Cap) CheckEnd() error { return CheckEnd(p.Policy) }

// Delays returns those of Policy, each at most Max; nil if Policy lists none. Of
// a [Linear], [Exponential] or [Fibonacci], also in a [Limit], [Unbounded] or
// jitter, and of a [DecorrelatedJitter], Max bounds the series, so that one without
// bounds of its own is listed.
func (p Cap) Delays() []time.Duration {
	delays, _ := Delays(lower(p.Policy, ceiling(p.Max)))
	for i, d := range delays {
		delays[i] = p.cut(d)
	}
	return delays
}

// Remarks returns those on Policy that hold under Max.
func (p Cap) Remarks() []string { return Remarks(lower(p.Policy, ceiling(p.Max))) }

func (p Cap) about() facts { return factsOf(p.Policy) }
