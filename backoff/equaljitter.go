package backoff

import (
	"math/rand/v2"
	"time"
)

// EqualJitter is a policy that waits half the delay of another and any time up
// to the other half: EqualJitter{Policy: Exponential{Initial: time.Second,
// Factor: 2, Retries: 4}} waits
//
//	500ms…1s 1s…2s 2s…4s 4s…8s
//
// and then stops. The delay is drawn anew each time, all are equally likely, in
// whole milliseconds and never under 1 ms. Use it where a retry must not come at
// once, as it may with [FullJitter].
//
// It is the "equal jitter" of https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/:
// temp/2 + random_between(0, temp/2) with temp = min(cap, base * 2^attempt).
//
// Where each delay needs a wait queue of its own, on topology.PerQueue and
// topology.Shared, a drawn delay waits on the next longer wait step: see WaitSteps.
type EqualJitter struct {
	// Policy is asked for the longest delay. It must not be nil.
	Policy Policy
	// WaitSteps is the number of wait queues over which a delay is spread, evenly:
	// with 4, a delay of 2s waits 1.25s 1.5s 1.75s or 2s. It must be from 2 to 100;
	// 0 means 4. Delays that share a wait step share its queue.
	WaitSteps int

	random *rand.Rand
}

// Delay returns a wait between half of that of Policy and all of it.
func (p EqualJitter) Delay(f Failure) (wait time.Duration, retry bool) { return p.jitter().delay(f) }

// Validate returns an error for every invalid field, joined with those of
// Policy.
func (p EqualJitter) Validate() error {
	return p.jitter().validate(&problems{name: "backoff.EqualJitter"})
}

// CheckEnd returns that of Policy.
func (p EqualJitter) CheckEnd() error { return CheckEnd(p.Policy) }

// Delays returns the wait steps of every delay of Policy: 625ms 750ms 875ms 1s 1.25s
// 1.5s 1.75s 2s for 1s and 2s; nil if Policy lists none. Every delay lies under
// the longest.
func (p EqualJitter) Delays() []time.Duration { return p.jitter().delays() }

// Remarks returns those on Policy.
func (p EqualJitter) Remarks() []string { return Remarks(p.Policy) }

func (p EqualJitter) jitter() jitter {
	return jitter{policy: p.Policy, rungs: p.WaitSteps, random: p.random, around: func(d time.Duration) (low, high time.Duration) {
		return d / 2, d
	}}
}

func (p EqualJitter) about() facts { return p.jitter().about() }

func (p EqualJitter) lower(limit time.Duration) Policy {
	p.Policy = lower(p.Policy, limit)
	return p
}

func (p EqualJitter) limited(retries int) (Policy, bool) {
	p.Policy = Limit{Policy: p.Policy, Retries: retries}
	return p, true
}
