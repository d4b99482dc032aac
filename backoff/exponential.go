package backoff

import (
	"fmt"
	"math"
	"time"
)

// Exponential is a policy whose delay is multiplied each time: Exponential{
// Initial: time.Second, Factor: 2, Retries: 4} waits
//
//	1s 2s 4s 8s
//
// and then stops; with Factor: 10, Max: 500 * time.Second, Retries: 5 it waits
//
//	1s 10s 100s 500s 500s
//
// Delay n is Initial * Factor^(n-1), rounded to the nanosecond, at most Max. It
// does not overflow: it stays at [MaxDelay]. Nothing is random.
type Exponential struct {
	// Initial is the first delay. It must be positive and at most [MaxDelay].
	Initial time.Duration
	// Factor must be a finite number of at least 1. With 1 every delay is
	// Initial. There is no default: 0 is invalid.
	Factor float64
	// Max caps the delays. 0 means no cap; else it must be at least Initial and
	// at most [MaxDelay].
	Max time.Duration
	// Retries is the number of retries. 0 means no end, which [CheckEnd]
	// reports; a negative number is invalid.
	Retries int
}

// Delay returns delay number Count, the first for a Count below 1, and no retry
// if Count is above Retries.
func (p Exponential) Delay(f Failure) (wait time.Duration, retry bool) {
	if exhausted(f.Count, p.Retries) {
		return 0, false
	}
	return p.at(max(f.Count, 1)), true
}

// at is delay number count, from 1.
func (p Exponential) at(count int) time.Duration {
	limit := ceiling(p.Max)
	if count == 1 || p.flat() {
		// Not through float64, which is inexact from 2^53 ns (104 days).
		return clamp(min(p.Initial, limit))
	}
	exact := float64(p.Initial) * math.Pow(p.Factor, float64(count-1))
	// Compared as floats before the conversion, which is undefined outside
	// int64. Not "exact >= limit": it may be NaN if fields are invalid.
	if !(exact < float64(limit)) {
		return clamp(limit)
	}
	return clamp(min(time.Duration(math.Round(max(exact, 0))), limit))
}

// flat reports whether every delay is Initial, also if Factor is invalid.
func (p Exponential) flat() bool { return !(p.Factor > 1) }

// Validate returns an error for every invalid field.
func (p Exponential) Validate() error {
	found := problems{name: "backoff.Exponential"}
	found.delay("Initial", p.Initial)
	if !(p.Factor >= 1) || math.IsInf(p.Factor, 0) {
		found.add("Factor %v is not a finite number of at least 1: use 2 to double each delay, backoff.Constant for equal delays", p.Factor)
	}
	found.limit(p.Max, p.Initial)
	found.retries(p.Retries)
	return found.join()
}

// CheckEnd returns an error that wraps [ErrNoEnd] if Retries is 0.
func (p Exponential) CheckEnd() error { return checkRetries("backoff.Exponential", p.Retries) }

// Delays returns the series if Retries, Max or a Factor of 1 bounds it and it
// has at most 1000 distinct delays, else nil.
func (p Exponential) Delays() []time.Duration {
	if p.Retries == 0 && p.Max <= 0 && !p.flat() {
		return nil
	}
	return distinct(p.Retries, p.at)
}

// Remarks tells if the series runs into [MaxDelay] without a Max.
func (p Exponential) Remarks() []string {
	return saturation("backoff.Exponential", p.Max, p.Retries, p.at)
}

// saturation is the remark on a growing series that ends at MaxDelay though no
// Max says so: nobody waits ten years on purpose.
func saturation(name string, limit time.Duration, retries int, at func(count int) time.Duration) []string {
	if limit != 0 || retries <= 0 || at(retries) < MaxDelay {
		return nil
	}
	return []string{fmt.Sprintf("%s: with Retries %d its delay grows to ten years (backoff.MaxDelay); set Max to cap it", name, retries)}
}

func (p Exponential) about() facts { return seriesOf(p.Retries) }

func (p Exponential) lower(limit time.Duration) Policy {
	p.Max = min(ceiling(p.Max), limit)
	return p
}
