package backoff

import (
	"fmt"
	"time"
)

// Unbounded is a policy that has the delays of another, and says that it is meant
// to have no end: Unbounded{Policy: Constant{Interval: time.Minute}} waits
//
//	1m 1m 1m …
//
// until the message succeeds. It changes no delay and adds no retry; it only
// makes [CheckEnd] accept the policy.
type Unbounded struct {
	// Policy is asked for the delays. It must not be nil.
	Policy Policy
}

// Delay returns what Policy does.
func (p Unbounded) Delay(f Failure) (wait time.Duration, retry bool) {
	return Next(p.Policy, f)
}

// Validate returns an error if Policy is nil, else those of Policy.
func (p Unbounded) Validate() error {
	found := problems{name: "backoff.Unbounded"}
	found.inner(p.Policy)
	return found.join()
}

// CheckEnd returns nil: having no end is what was asked for.
func (p Unbounded) CheckEnd() error { return nil }

// Delays returns those of Policy.
func (p Unbounded) Delays() []time.Duration {
	delays, _ := Delays(p.Policy)
	return delays
}

// Remarks tells that a failing message is retried for ever or, if Policy passes
// [CheckEnd] without it, that Unbounded adds nothing; and what is to be told of
// Policy.
func (p Unbounded) Remarks() []string {
	if isNil(p.Policy) {
		return nil
	}
	remark := "backoff.Unbounded: the policy has no end; a message that keeps failing is retried until something else stops it"
	if CheckEnd(p.Policy) == nil {
		remark = fmt.Sprintf("backoff.Unbounded adds nothing to %T, which ends by itself or says already that it does not", p.Policy)
	}
	return append([]string{remark}, Remarks(p.Policy)...)
}

func (p Unbounded) about() facts { return factsOf(p.Policy) }

func (p Unbounded) lower(limit time.Duration) Policy {
	p.Policy = lower(p.Policy, limit)
	return p
}
