package backoff

import (
	"math/rand/v2"
	"time"
)

// DecorrelatedJitter is a policy whose delay is drawn between Initial and three
// times the delay before: DecorrelatedJitter{Initial: time.Second, Max:
// 20 * time.Second, Retries: 4} waits
//
//	1s…3s 1s…9s 1s…20s 1s…20s
//
// or less, as the delays before were shorter than they might have been, and then
// stops. All delays in between are equally likely, in whole milliseconds. It
// grows like a series and needs no other policy to draw around.
//
// It is the "decorrelated jitter" of https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/:
// min(cap, random_between(base, sleep * 3)), but that Max cuts the range and not
// what was drawn from it, so that no delays pile up at Max.
//
// The delay before is Failure.Last, which may be one that middleware.RetryAfter
// asked for. Without it, at the first failure and for who calls the policy
// without it, or if it is below Initial, it is taken as Initial. However long it
// was, delay n is at most Initial * 3^n. It does not overflow: it stays at
// [MaxDelay].
//
// Where each delay needs a wait queue of its own, on topology.PerQueue and
// topology.Shared, a drawn delay waits on the next longer wait step: see WaitSteps.
type DecorrelatedJitter struct {
	// Initial is the shortest delay. It must be positive and at most [MaxDelay].
	Initial time.Duration
	// Max caps the delays. 0 means no cap; else it must be at least Initial and
	// at most [MaxDelay].
	Max time.Duration
	// Retries is the number of retries. 0 means no end, which [CheckEnd]
	// reports; a negative number is invalid.
	Retries int
	// WaitSteps is the number of wait queues over which each step of the growing
	// bound is spread, evenly: with 4 and an Initial of 1s, a delay up to 3s waits
	// 1.5s 2s 2.5s or 3s, one up to 9s also 4.5s 6s 7.5s or 9s. It must be from 2
	// to 100; 0 means 4.
	WaitSteps int

	random *rand.Rand
}

// Delay returns a wait between Initial and three times Last, and no retry if
// Count is above Retries.
func (p DecorrelatedJitter) Delay(f Failure) (wait time.Duration, retry bool) {
	if exhausted(f.Count, p.Retries) {
		return 0, false
	}
	low := p.shortest()
	last := min(max(f.Last, low), MaxDelay) // three of them do not overflow
	return draw(p.random, low, min(3*last, p.bound(max(f.Count, 1)))), true
}

func (p DecorrelatedJitter) shortest() time.Duration { return clamp(min(p.Initial, ceiling(p.Max))) }

// bound is the longest delay after count failures, from 1.
func (p DecorrelatedJitter) bound(count int) time.Duration {
	tripling := Exponential{Initial: p.Initial, Factor: 3, Max: p.Max}
	return tripling.at(min(count, 1000) + 1)
}

// Validate returns an error for every invalid field.
func (p DecorrelatedJitter) Validate() error {
	found := problems{name: "backoff.DecorrelatedJitter"}
	found.delay("Initial", p.Initial)
	found.limit(p.Max, p.Initial)
	found.retries(p.Retries)
	found.rungs(p.WaitSteps)
	return found.join()
}

// CheckEnd returns an error that wraps [ErrNoEnd] if Retries is 0.
func (p DecorrelatedJitter) CheckEnd() error {
	return checkRetries("backoff.DecorrelatedJitter", p.Retries)
}

// Delays returns the wait steps of every step from Initial to the longest delay if
// Retries or Max bounds it, else nil. Every delay lies under the longest.
func (p DecorrelatedJitter) Delays() []time.Duration {
	if p.Retries == 0 && p.Max <= 0 {
		return nil
	}
	delays := []time.Duration{}
	low := p.shortest()
	for _, high := range distinct(p.Retries, p.bound) {
		delays = append(delays, spread(low, high, p.WaitSteps)...)
		low = high
	}
	return delays
}

// Remarks tells if the delays may reach [MaxDelay] without a Max.
func (p DecorrelatedJitter) Remarks() []string {
	return saturation("backoff.DecorrelatedJitter", p.Max, p.Retries, p.bound)
}

func (p DecorrelatedJitter) about() facts {
	return facts{retries: p.Retries, ends: p.Retries > 0, drawn: true}
}

func (p DecorrelatedJitter) lower(limit time.Duration) Policy {
	p.Max = min(ceiling(p.Max), limit)
	return p
}

func (p DecorrelatedJitter) limited(retries int) (Policy, bool) {
	if p.Retries == 0 || p.Retries > retries {
		p.Retries = retries
	}
	return p, retries > 0
}
