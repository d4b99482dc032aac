package backoff

import "time"

// Constant is a policy that always waits the same time: Constant{Interval:
// 5 * time.Second, Retries: 3} waits
//
//	5s 5s 5s
//
// and then stops.
type Constant struct {
	// Interval is the delay. It must be positive and at most [MaxDelay]; below
	// 1 ms it means 1 ms.
	Interval time.Duration
	// Retries is the number of retries. 0 means no end, which [CheckEnd]
	// reports; a negative number is invalid.
	Retries int
}

// Delay returns Interval, and no retry if Count is above Retries.
func (p Constant) Delay(f Failure) (wait time.Duration, retry bool) {
	if exhausted(f.Count, p.Retries) {
		return 0, false
	}
	return clamp(p.Interval), true
}

// Validate returns an error for every invalid field.
func (p Constant) Validate() error {
	found := problems{name: "backoff.Constant"}
	found.delay("Interval", p.Interval)
	found.retries(p.Retries)
	return found.join()
}

// CheckEnd returns an error that wraps [ErrNoEnd] if Retries is 0.
func (p Constant) CheckEnd() error { return checkRetries("backoff.Constant", p.Retries) }

// Delays returns Interval.
func (p Constant) Delays() []time.Duration {
	if p.Retries < 0 {
		return []time.Duration{}
	}
	return []time.Duration{p.Interval}
}

func (p Constant) about() facts { return seriesOf(p.Retries) }
