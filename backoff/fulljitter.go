package backoff

import (
	"math/rand/v2"
	"time"
)

// FullJitter is a policy that waits any time up to the delay of another, so that
// what failed together does not come back together: FullJitter{Policy:
// Exponential{Initial: time.Second, Factor: 2, Retries: 4}} waits
//
//	0…1s 0…2s 0…4s 0…8s
//
// and then stops. The delay is drawn anew each time, all are equally likely, in
// whole milliseconds and never under 1 ms. On average it is half of the other
// policy's: of all jitters this one spreads best and waits least.
//
// It is the "full jitter" of https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/:
// random_between(0, min(cap, base * 2^attempt)).
//
// Where each delay needs a wait queue of its own, on topology.PerQueue and
// topology.Shared, a drawn delay waits on the next longer wait step: see WaitSteps.
type FullJitter struct {
	// Policy is asked for the longest delay. It must not be nil.
	Policy Policy
	// WaitSteps is the number of wait queues over which a delay is spread, evenly:
	// with 4, a delay of 2s waits 500ms 1s 1.5s or 2s. It must be from 2 to 100; 0
	// means 4. Delays that share a wait step share its queue.
	WaitSteps int

	random *rand.Rand
}

// Delay returns a wait between 1 ms and that of Policy.
func (p FullJitter) Delay(f Failure) (wait time.Duration, retry bool) { return p.jitter().delay(f) }

// Validate returns an error for every invalid field, joined with those of
// Policy.
func (p FullJitter) Validate() error {
	return p.jitter().validate(&problems{name: "backoff.FullJitter"})
}

// CheckEnd returns that of Policy.
func (p FullJitter) CheckEnd() error { return CheckEnd(p.Policy) }

// Delays returns the wait steps of every delay of Policy: 250ms 500ms 750ms 1s 1.5s 2s
// for 1s and 2s; nil if Policy lists none. Every delay lies under the longest.
func (p FullJitter) Delays() []time.Duration { return p.jitter().delays() }

// Remarks returns those on Policy.
func (p FullJitter) Remarks() []string { return Remarks(p.Policy) }

func (p FullJitter) jitter() jitter {
	return jitter{policy: p.Policy, rungs: p.WaitSteps, random: p.random, around: func(d time.Duration) (low, high time.Duration) {
		return 0, d
	}}
}

func (p FullJitter) about() facts { return p.jitter().about() }

func (p FullJitter) lower(limit time.Duration) Policy {
	p.Policy = lower(p.Policy, limit)
	return p
}

func (p FullJitter) limited(retries int) (Policy, bool) {
	p.Policy = Limit{Policy: p.Policy, Retries: retries}
	return p, true
}
