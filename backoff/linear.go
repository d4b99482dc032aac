package backoff

import "time"

// Linear is a policy whose delay grows by the same step each time: Linear{
// Initial: time.Second, Step: time.Second, Retries: 3} waits
//
//	1s 2s 3s
//
// and then stops. Delay n is Initial + (n-1)*Step, at most Max. The sum does
// not overflow: it stays at [MaxDelay].
type Linear struct {
	// Initial is the first delay. It must be positive and at most [MaxDelay].
	Initial time.Duration
	// Step is added each time. It must be positive and at most [MaxDelay];
	// without a step, use [Constant].
	Step time.Duration
	// Max caps the delays. 0 means no cap; else it must be at least Initial and
	// at most [MaxDelay].
	Max time.Duration
	// Retries is the number of retries. 0 means no end, which [CheckEnd]
	// reports; a negative number is invalid.
	Retries int
}

// Delay returns delay number Count, the first for a Count below 1, and no retry
// if Count is above Retries.
func (p Linear) Delay(f Failure) (wait time.Duration, retry bool) {
	if exhausted(f.Count, p.Retries) {
		return 0, false
	}
	return p.at(max(f.Count, 1)), true
}

// at is delay number count, from 1.
func (p Linear) at(count int) time.Duration {
	limit := ceiling(p.Max)
	initial, step := max(p.Initial, 0), max(p.Step, 0)
	steps := time.Duration(count - 1)
	// Dividing keeps steps*step from overflowing.
	if initial >= limit || (step > 0 && steps > (limit-initial)/step) {
		return clamp(limit)
	}
	return clamp(initial + steps*step)
}

// Validate returns an error for every invalid field.
func (p Linear) Validate() error {
	found := problems{name: "backoff.Linear"}
	found.delay("Initial", p.Initial)
	if p.Step <= 0 {
		found.add("Step %s is not positive: use backoff.Constant for equal delays", p.Step)
	}
	found.long("Step", p.Step)
	found.limit(p.Max, p.Initial)
	found.retries(p.Retries)
	return found.join()
}

// CheckEnd returns an error that wraps [ErrNoEnd] if Retries is 0.
func (p Linear) CheckEnd() error { return checkRetries("backoff.Linear", p.Retries) }

// Delays returns the series if Retries or Max bounds it and it has at most 1000
// distinct delays, else nil.
func (p Linear) Delays() []time.Duration {
	if p.Retries == 0 && p.Max <= 0 {
		return nil
	}
	return distinct(p.Retries, p.at)
}

// Remarks tells if the series runs into [MaxDelay] without a Max.
func (p Linear) Remarks() []string {
	return saturation("backoff.Linear", p.Max, p.Retries, p.at)
}

func (p Linear) about() facts { return seriesOf(p.Retries) }

func (p Linear) lower(limit time.Duration) Policy {
	p.Max = min(ceiling(p.Max), limit)
	return p
}
