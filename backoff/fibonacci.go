package backoff

import "time"

// Fibonacci is a policy whose delay is the sum of the two before it: Fibonacci{
// Initial: time.Second, Retries: 5} waits
//
//	1s 2s 3s 5s 8s
//
// and then stops. Delay n is Initial times number n of the series 1 2 3 5 8 …,
// which has its 1 only once, at most Max. It is exact and does not overflow: it
// stays at [MaxDelay].
type Fibonacci struct {
	// Initial is the first delay. It must be positive and at most [MaxDelay].
	Initial time.Duration
	// Max caps the delays. 0 means no cap; else it must be at least Initial and
	// at most [MaxDelay].
	Max time.Duration
	// Retries is the number of retries. 0 means no end, which [CheckEnd]
	// reports; a negative number is invalid.
	Retries int
}

// Delay returns delay number Count, the first for a Count below 1, and no retry
// if Count is above Retries.
func (p Fibonacci) Delay(f Failure) (wait time.Duration, retry bool) {
	if exhausted(f.Count, p.Retries) {
		return 0, false
	}
	return p.at(max(f.Count, 1)), true
}

// at is delay number count, from 1. It takes fewer than 90 steps, however great
// count is: by then even a nanosecond has grown to MaxDelay.
func (p Fibonacci) at(count int) time.Duration {
	limit := ceiling(p.Max)
	last, current := p.Initial, min(p.Initial, limit)
	// An Initial of 0 or less, which is invalid, does not grow.
	for n := 1; n < count && 0 < current && current < limit; n++ {
		// Both are at most MaxDelay, so that the sum does not overflow.
		last, current = current, min(last+current, limit)
	}
	return clamp(current)
}

// Validate returns an error for every invalid field.
func (p Fibonacci) Validate() error {
	found := problems{name: "backoff.Fibonacci"}
	found.delay("Initial", p.Initial)
	found.limit(p.Max, p.Initial)
	found.retries(p.Retries)
	return found.join()
}

// CheckEnd returns an error that wraps [ErrNoEnd] if Retries is 0.
func (p Fibonacci) CheckEnd() error { return checkRetries("backoff.Fibonacci", p.Retries) }

// Delays returns the series if Retries or Max bounds it, else nil.
func (p Fibonacci) Delays() []time.Duration {
	if p.Retries == 0 && p.Max <= 0 {
		return nil
	}
	return distinct(p.Retries, p.at)
}

// Remarks tells if the series runs into [MaxDelay] without a Max.
func (p Fibonacci) Remarks() []string {
	return saturation("backoff.Fibonacci", p.Max, p.Retries, p.at)
}

func (p Fibonacci) about() facts { return seriesOf(p.Retries) }

func (p Fibonacci) lower(limit time.Duration) Policy {
	p.Max = min(ceiling(p.Max), limit)
	return p
}
