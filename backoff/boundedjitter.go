package backoff

import (
	"math"
	"math/rand/v2"
	"time"
)

// BoundedJitter is a policy that makes the delay of another longer by any part up
// to a bound, and never shorter: BoundedJitter{Policy: Exponential{Initial:
// time.Second, Factor: 2, Retries: 4}, Extra: 0.2} waits
//
//	1s…1.2s 2s…2.4s 4s…4.8s 8s…9.6s
//
// and then stops. The delay is drawn anew each time, all are equally likely, in
// whole milliseconds. Use it where the delay is a promise, such as a rate limit,
// and only the herd is unwanted. It does not overflow: it stays at [MaxDelay].
//
// It is the jitter of wait.Jitter in k8s.io/apimachinery: between the delay and
// delay + Extra * delay.
//
// Where each delay needs a wait queue of its own, on topology.PerQueue and
// topology.Shared, a drawn delay waits on the next longer wait step: see WaitSteps.
type BoundedJitter struct {
	// Policy is asked for the shortest delay. It must not be nil.
	Policy Policy
	// Extra is the longest extension, as a part of the delay: 0.2 is a fifth. It
	// must be positive and finite; 0 is invalid, for there is no default.
	Extra float64
	// WaitSteps is the number of wait queues over which a delay is spread, evenly:
	// with 4 and an Extra of 0.2, a delay of 2s waits 2.1s 2.2s 2.3s or 2.4s. It
	// must be from 2 to 100; 0 means 4. Delays that share a wait step share its queue.
	WaitSteps int

	random *rand.Rand
}

// Delay returns a wait between that of Policy and Extra more.
func (p BoundedJitter) Delay(f Failure) (wait time.Duration, retry bool) { return p.jitter().delay(f) }

// Validate returns an error for every invalid field, joined with those of
// Policy.
func (p BoundedJitter) Validate() error {
	found := problems{name: "backoff.BoundedJitter"}
	if !(p.Extra > 0) || math.IsInf(p.Extra, 0) {
		found.add("Extra %v is not positive and finite: use 0.2 for up to a fifth more, Policy without backoff.BoundedJitter for no jitter", p.Extra)
	}
	return p.jitter().validate(&found)
}

// CheckEnd returns that of Policy.
func (p BoundedJitter) CheckEnd() error { return CheckEnd(p.Policy) }

// Delays returns the wait steps of every delay of Policy: 1.05s 1.1s 1.15s 1.2s for 1s
// and an Extra of 0.2; nil if Policy lists none. Every delay lies under the
// longest.
func (p BoundedJitter) Delays() []time.Duration { return p.jitter().delays() }

// Remarks returns those on Policy.
func (p BoundedJitter) Remarks() []string { return Remarks(p.Policy) }

func (p BoundedJitter) jitter() jitter {
	return jitter{policy: p.Policy, rungs: p.WaitSteps, random: p.random, around: func(d time.Duration) (low, high time.Duration) {
		return d, p.extended(d)
	}}
}

// extended is the longest delay drawn for d, also if Extra is invalid.
func (p BoundedJitter) extended(d time.Duration) time.Duration {
	if !(p.Extra > 0) {
		return d
	}
	// Compared as floats before the conversion, which is undefined outside int64.
	extra := math.Round(float64(d) * p.Extra)
	if !(extra < float64(MaxDelay-d)) {
		return MaxDelay
	}
	return d + time.Duration(extra)
}

func (p BoundedJitter) about() facts { return p.jitter().about() }

func (p BoundedJitter) lower(limit time.Duration) Policy {
	p.Policy = lower(p.Policy, limit)
	return p
}

func (p BoundedJitter) limited(retries int) (Policy, bool) {
	p.Policy = Limit{Policy: p.Policy, Retries: retries}
	return p, true
}
