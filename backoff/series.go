package backoff

import (
	"fmt"
	"math"
	"sort"
	"time"
)

// None is a policy that never retries: the first failure is the last.
type None struct{}

// Delay returns no retry.
func (None) Delay(Failure) (wait time.Duration, retry bool) { return 0, false }

func (None) describe() description { return describing("backoff.None", true) }

func (None) about() facts { return facts{ends: true} }

// List is a policy that names each delay: List{2 * time.Second, 5 * time.Second,
// 15 * time.Second} waits
//
//	2s 5s 15s
//
// and then stops: as many retries as entries. An empty or nil List never retries.
// The first entry may be 0: see [AtOnce]. Another entry below 1 ms, or one above
// [MaxDelay], is invalid. Do not change the
// slice after handing it over: the List uses it itself. [Delays] leaves out a first entry of 0.
type List []time.Duration

// Delay returns entry number Count, the first for a Count below 1, and no retry after the last.
func (p List) Delay(f Failure) (wait time.Duration, retry bool) {
	count := max(f.Count, 1)
	if count > len(p) {
		return 0, false
	}
	return bounded(count, p[count-1]), true
}

func (p List) describe() description {
	d, first := describing("backoff.List", true), 0
	if p.atOnce() {
		first = 1 // a first entry of 0 is valid, and needs no wait queue
	}
	for i := first; i < len(p); i++ {
		d.delay(fmt.Sprintf("entry [%d]", i), p[i])
	}
	d.series = func(b bounds) []time.Duration {
		return append([]time.Duration{}, p[first:min(len(p), max(b.retries, first))]...)
	}
	return d
}

func (p List) about() facts {
	return facts{retries: len(p), ends: true, atOnce: p.atOnce()}
}

func (p List) atOnce() bool { return len(p) > 0 && p[0] == 0 }

// Constant is a policy that always waits the same time: Constant{Interval:
// 5 * time.Second, Retries: 3} waits
//
//	5s 5s 5s
//
// and then stops.
type Constant struct {
	// Interval is the delay, from 1 ms to [MaxDelay].
	Interval time.Duration
	// Retries is the number of retries. 0 means no end, which [CheckEnd] reports;
	// a negative number is invalid.
	Retries int
}

// Delay returns Interval, and no retry if Count is above Retries.
func (p Constant) Delay(f Failure) (wait time.Duration, retry bool) {
	return step(f, p.Retries, func(int) time.Duration { return clamp(p.Interval) })
}

func (p Constant) describe() description {
	d := describing("backoff.Constant", p.Retries != 0)
	d.delay("Interval", p.Interval)
	d.retries(p.Retries)
	d.series = func(bounds) []time.Duration {
		return rising(p.Retries, func(int) time.Duration { return p.Interval })
	}
	return d
}

func (p Constant) about() facts { return seriesOf(p.Retries) }

// Linear is a policy whose delay grows by the same step each time: Linear{
// Initial: time.Second, Step: time.Second, Retries: 3} waits
//
//	1s 2s 3s
//
// and then stops. Delay n is Initial + (n-1)*Step, at most Max. The sum does not
// overflow: it stays at [MaxDelay].
//
// [Delays] lists the series if Retries or Max bounds it, or a wrapper around it. [Remarks]
// tells if it reaches MaxDelay without a Max.
type Linear struct {
	// Initial is the first delay. It must be positive and at most [MaxDelay].
	Initial time.Duration
	// Step is added each time. It must be positive and at most [MaxDelay]. For
	// equal delays use [Constant].
	Step time.Duration
	// Max caps the delays. 0 means no cap; else it must be at least Initial and at most [MaxDelay].
	Max time.Duration
	// Retries is the number of retries. 0 means no end, which [CheckEnd] reports;
	// a negative number is invalid.
	Retries int
}

// Delay returns delay number Count, the first for a Count below 1, and no retry if
// Count is above Retries.
func (p Linear) Delay(f Failure) (wait time.Duration, retry bool) {
	return step(f, p.Retries, p.at)
}

// at is delay number count, from 1.
func (p Linear) at(count int) time.Duration {
	limit := ceiling(p.Max)
	initial, step := max(p.Initial, 0), max(p.Step, 0)
	steps := time.Duration(count - 1)
	// The division keeps steps*step from overflowing.
	if initial >= limit || (step > 0 && steps > (limit-initial)/step) {
		return clamp(limit)
	}
	return clamp(initial + steps*step)
}

func (p Linear) describe() description {
	d := series{p.Max, p.Retries, p.Max > 0, p.at}.describe("backoff.Linear")
	d.delay("Initial", p.Initial)
	d.wrong(p.Step <= 0, "Step %s is not positive: use backoff.Constant for equal delays", p.Step)
	d.long("Step", p.Step)
	d.limits(p.Initial, p.Max, p.Retries)
	return d
}

func (p Linear) about() facts { return seriesOf(p.Retries) }

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
//
// [Delays] lists the series if Retries, Max or a Factor of 1 bounds it, or a wrapper around it.
// [Remarks] tells if it reaches MaxDelay without a Max.
type Exponential struct {
	// Initial is the first delay. It must be positive and at most [MaxDelay].
	Initial time.Duration
	// Factor must be a finite number of at least 1. With 1 every delay is Initial.
	// There is no default: 0 is invalid.
	Factor float64
	// Max caps the delays. 0 means no cap; else it must be at least Initial and at most [MaxDelay].
	Max time.Duration
	// Retries is the number of retries. 0 means no end, which [CheckEnd] reports;
	// a negative number is invalid.
	Retries int
}

// Delay returns delay number Count, the first for a Count below 1, and no retry if
// Count is above Retries.
func (p Exponential) Delay(f Failure) (wait time.Duration, retry bool) {
	return step(f, p.Retries, p.at)
}

// at is delay number count, from 1.
func (p Exponential) at(count int) time.Duration {
	limit := ceiling(p.Max)
	if count == 1 || p.flat() {
		// Not through float64, which is inexact from 2^53 ns (104 days).
		return clamp(min(p.Initial, limit))
	}
	return clamp(times(p.Initial, math.Pow(p.Factor, float64(count-1)), limit))
}

// flat reports whether every delay is Initial, also if Factor is invalid.
func (p Exponential) flat() bool { return !(p.Factor > 1) }

func (p Exponential) describe() description {
	d := series{p.Max, p.Retries, p.Max > 0 || p.flat(), p.at}.describe("backoff.Exponential")
	d.delay("Initial", p.Initial)
	d.wrong(!(p.Factor >= 1) || math.IsInf(p.Factor, 0), "Factor %v is not a finite number of "+
		"at least 1: use 2 to double each delay, backoff.Constant for equal delays", p.Factor)
	d.limits(p.Initial, p.Max, p.Retries)
	return d
}

func (p Exponential) about() facts { return seriesOf(p.Retries) }

// Fibonacci is a policy whose delay is the sum of the two before it: Fibonacci{
// Initial: time.Second, Retries: 5} waits
//
//	1s 2s 3s 5s 8s
//
// and then stops. Delay n is Initial times number n of the series 1 2 3 5 8 …, which has its 1 only
// once, at most Max. It is exact and does not overflow: it stays at [MaxDelay].
//
// [Delays] lists the series if Retries or Max bounds it, or a wrapper around it. [Remarks]
// tells if it reaches MaxDelay without a Max.
type Fibonacci struct {
	// Initial is the first delay. It must be positive and at most [MaxDelay].
	Initial time.Duration
	// Max caps the delays. 0 means no cap; else it must be at least Initial and at most [MaxDelay].
	Max time.Duration
	// Retries is the number of retries. 0 means no end, which [CheckEnd] reports;
	// a negative number is invalid.
	Retries int
}

// Delay returns delay number Count, the first for a Count below 1, and no retry if
// Count is above Retries.
func (p Fibonacci) Delay(f Failure) (wait time.Duration, retry bool) {
	return step(f, p.Retries, p.at)
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

func (p Fibonacci) describe() description {
	d := series{p.Max, p.Retries, p.Max > 0, p.at}.describe("backoff.Fibonacci")
	d.delay("Initial", p.Initial)
	d.limits(p.Initial, p.Max, p.Retries)
	return d
}

func (p Fibonacci) about() facts { return seriesOf(p.Retries) }

// step returns delay number f.Count of a series with a Retries field.
func step(f Failure, retries int, at func(count int) time.Duration) (time.Duration, bool) {
	count := max(f.Count, 1)
	// 0 retries are no end, fewer (invalid) are none at all.
	if retries != 0 && count > retries {
		return 0, false
	}
	return at(count), true
}

// seriesOf returns the facts of a series with a Retries field.
func seriesOf(retries int) facts {
	return facts{retries: retries, ends: retries > 0}
}

// series is the common part of the policies whose delays grow, before any failure.
type series struct {
	max     time.Duration // the field Max
	retries int           // the field Retries
	bounded bool          // the delays stop growing, also without Retries
	at      func(count int) time.Duration
}

func (s series) describe(name string) description {
	d := describing(name, s.retries != 0)
	d.series = func(b bounds) []time.Duration {
		s := s.within(b)
		if s.retries == 0 && !s.bounded {
			return nil
		}
		return rising(s.retries, s.at)
	}
	d.remark = func(b bounds) string { return s.within(bounds{b.longest, unlimited}).saturation() }
	return d
}

// within is the series with the lower Max and the fewer retries of b. [Delays] asks for no list
// with 0 retries or less, and remarks do not change for them.
func (s series) within(b bounds) series {
	if at := s.at; b.longest > 0 {
		s.at = func(count int) time.Duration { return clamp(min(at(count), b.longest)) }
		s.max, s.bounded = b.longest, true
	}
	if 0 < b.retries && b.retries < unlimited && (s.retries == 0 || b.retries < s.retries) {
		s.retries = b.retries
	}
	return s
}

// saturation remarks that the series reaches MaxDelay though no Max says so, because a wait of
// ten years is hardly wanted.
func (s series) saturation() string {
	if s.max != 0 || s.retries <= 0 || s.at(s.retries) < MaxDelay {
		return ""
	}
	return fmt.Sprintf(": with Retries %d its delay grows to ten years "+
		"(backoff.MaxDelay); set Max to cap it", s.retries)
}

// rising lists the values of a series that never falls, at(1) to at(retries), of which 0 means
// no end. It stops after more than maxListed values.
//
// It jumps from each value to the next greater value. So a series that stays at its
// cap for a billion retries costs no more than a short one.
func rising(retries int, at func(count int) time.Duration) []time.Duration {
	delays, last := []time.Duration{}, retries
	if retries == 0 || retries == math.MaxInt {
		last = math.MaxInt - 1 // count does not overflow
	}
	for count := 1; count <= last && len(delays) <= maxListed; {
		current := at(count)
		delays = append(delays, current)
		count += 1 + sort.Search(last-count, func(i int) bool { return at(count+1+i) > current })
	}
	return delays
}
