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

func (None) describe() description { return description{ends: true} }

func (None) about() facts { return facts{ends: true, countOnly: true} }

// List is a policy that names each delay: List{2 * time.Second, 5 * time.Second,
// 15 * time.Second} waits
//
//	2s 5s 15s
//
// and then stops: as many retries as entries. An empty or nil List never retries.
// The first entry may be 0: see [AtOnce]. An entry below 1 ms means 1 ms; another
// entry of 0, a negative one, or one above [MaxDelay], is invalid. Do not change the
// slice after handing it over: the List uses it itself.
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
	return description{
		name: "backoff.List",
		ends: true,
		check: func(found *problems) {
			for i, d := range p {
				if i > 0 || d != 0 {
					found.delay(fmt.Sprintf("entry [%d]", i), d)
				}
			}
		},
		list: func(b bounds) []time.Duration {
			delays := append([]time.Duration{}, p[:min(len(p), b.retries)]...)
			if p.atOnce() {
				delays = delays[1:]
			}
			return delays
		},
	}
}

func (p List) about() facts {
	return facts{retries: len(p), ends: true, countOnly: true, atOnce: p.atOnce()}
}

func (p List) atOnce() bool { return len(p) > 0 && p[0] == 0 }

// Constant is a policy that always waits the same time: Constant{Interval:
// 5 * time.Second, Retries: 3} waits
//
//	5s 5s 5s
//
// and then stops.
type Constant struct {
	// Interval is the delay. It must be positive and at most [MaxDelay]; below 1 ms it means 1 ms.
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
	return description{
		name: "backoff.Constant",
		ends: p.Retries != 0,
		check: func(found *problems) {
			found.delay("Interval", p.Interval)
			found.retries(p.Retries)
		},
		list: func(bounds) []time.Duration {
			return rising(p.Retries, true, func(int) time.Duration { return p.Interval })
		},
	}
}

func (p Constant) about() facts { return seriesOf(p.Retries) }

// Linear is a policy whose delay grows by the same step each time: Linear{
// Initial: time.Second, Step: time.Second, Retries: 3} waits
//
//	1s 2s 3s
//
// and then stops. Delay n is Initial + (n-1)*Step, at most Max. The sum does not
// overflow: it stays at [MaxDelay].
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
	own := func(found *problems) {
		if p.Step <= 0 {
			found.add("Step %s is not positive: use backoff.Constant for equal delays", p.Step)
		}
		found.long("Step", p.Step)
	}
	return series{p.Initial, p.Max, p.Retries, p.Max > 0, p.at}.describe("backoff.Linear", own)
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
	exact := float64(p.Initial) * math.Pow(p.Factor, float64(count-1))
	// Compared as floats before the conversion, which is undefined outside int64.
	// Not "exact >= limit": exact may be NaN if fields are invalid.
	if !(exact < float64(limit)) {
		return clamp(limit)
	}
	return clamp(min(time.Duration(math.Round(max(exact, 0))), limit))
}

// flat reports whether every delay is Initial, also if Factor is invalid.
func (p Exponential) flat() bool { return !(p.Factor > 1) }

func (p Exponential) describe() description {
	own := func(found *problems) {
		if !(p.Factor >= 1) || math.IsInf(p.Factor, 0) {
			found.add("Factor %v is not a finite number of at least 1: "+
				"use 2 to double each delay, backoff.Constant for equal delays", p.Factor)
		}
	}
	bounded := p.Max > 0 || p.flat()
	return series{p.Initial, p.Max, p.Retries, bounded, p.at}.describe("backoff.Exponential", own)
}

func (p Exponential) about() facts { return seriesOf(p.Retries) }

// Fibonacci is a policy whose delay is the sum of the two before it: Fibonacci{
// Initial: time.Second, Retries: 5} waits
//
//	1s 2s 3s 5s 8s
//
// and then stops. Delay n is Initial times number n of the series 1 2 3 5 8 …, which has its 1 only
// once, at most Max. It is exact and does not overflow: it stays at [MaxDelay].
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
	own := func(*problems) {}
	return series{p.Initial, p.Max, p.Retries, p.Max > 0, p.at}.describe("backoff.Fibonacci", own)
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
	return facts{retries: retries, ends: retries > 0, countOnly: true}
}

// series is the common part of the policies whose delays grow, before any failure.
type series struct {
	initial, max time.Duration // the fields Initial and Max
	retries      int           // the field Retries
	bounded      bool          // the delays stop growing, also without Retries
	at           func(count int) time.Duration
}

// describe describes the series. The policy's own fields are checked after Initial.
func (s series) describe(name string, own func(found *problems)) description {
	return description{
		name: name,
		ends: s.retries != 0,
		check: func(found *problems) {
			found.delay("Initial", s.initial)
			own(found)
			found.limit(s.max, s.initial)
			found.retries(s.retries)
		},
		list: func(b bounds) []time.Duration {
			s := s.within(b)
			return rising(s.retries, s.bounded, s.at)
		},
		remarks: func(b bounds) []string {
			return s.within(bounds{longest: b.longest, retries: unlimited}).saturation(name)
		},
	}
}

// within is the series with the lower Max and the fewer retries of b. Retries of 0 or less, with
// which [Delays] asks for no list, do not count.
func (s series) within(b bounds) series {
	if b.longest > 0 {
		at := s.at
		s.at = func(count int) time.Duration { return clamp(min(at(count), b.longest)) }
		s.max, s.bounded = b.longest, true
	}
	if 0 < b.retries && b.retries < unlimited && (s.retries == 0 || b.retries < s.retries) {
		s.retries = b.retries
	}
	return s
}

// saturation remarks that the series reaches MaxDelay though no Max says so, because a wait of ten
// years is hardly wanted.
func (s series) saturation(name string) []string {
	if s.max != 0 || s.retries <= 0 || s.at(s.retries) < MaxDelay {
		return nil
	}
	return []string{fmt.Sprintf("%s: with Retries %d its delay grows to ten years "+
		"(backoff.MaxDelay); set Max to cap it", name, s.retries)}
}

// rising lists the values of a series that never falls, at(1) to at(retries). If
// retries is 0 the series must be bounded by another field. rising returns nil
// if it is not, or if there are more than maxListed values.
//
// It jumps from each value to the next greater value. So a series that stays at its
// cap for a billion retries costs no more than a short one.
func rising(retries int, bounded bool, at func(count int) time.Duration) []time.Duration {
	delays, last := []time.Duration{}, retries
	switch {
	case retries < 0:
		return delays
	case retries == 0 && !bounded:
		return nil
	case retries == 0:
		last = math.MaxInt
	}
	for count := 1; len(delays) <= maxListed; {
		current := at(count)
		delays = append(delays, current)
		rest := last - count
		skip := sort.Search(rest, func(i int) bool { return at(count+1+i) > current })
		if skip == rest {
			return delays
		}
		count += skip + 1
	}
	return nil
}
