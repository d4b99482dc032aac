package backoff

import (
	"cmp"
	"math"
	"math/rand/v2"
	"time"
)

const (
	// defaultSteps is the number of wait steps of a delay where WaitSteps is 0.
	defaultSteps = 4
	// maxSteps bounds WaitSteps, because each is a queue.
	maxSteps = 100

	fewerSteps = "WaitSteps sets the number for each delay"
)

// FullJitter is a policy that waits any time up to the delay of another, so that
// messages that failed together do not come back together: FullJitter{Policy:
// Exponential{Initial: time.Second, Factor: 2, Retries: 4}} waits
//
//	0…1s 0…2s 0…4s 0…8s
//
// and then stops. These four retries need ten wait queues on topology.PerQueue and topology.Shared,
// because a drawn delay needs a wait step near it: see WaitSteps.
//
// Each delay is drawn anew, in whole milliseconds and never under 1 ms; all are equally likely. The
// average is half the delay of Policy: of all jitters this one spreads best and waits least. It is
// the "full jitter" of https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/:
// random_between(0, min(cap, base * 2^attempt)).
//
// [Delays] lists the wait steps of every delay of Policy: 250ms 500ms 750ms 1s 1.5s 2s for 1s
// and 2s. No delay is above the longest. [Remarks] tells their number, and warns of a Seed.
type FullJitter struct {
	// Policy gives the longest delay. It must not be nil.
	Policy Policy
	// WaitSteps is the number of wait queues over which a delay is spread, evenly:
	// with 4, a delay of 2s waits 500ms 1s 1.5s or 2s. Delays that share a wait step
	// share its queue. It must be from 2 to 100; 0 means 4.
	WaitSteps int
	// Seed makes the delays repeatable in tests: all messages with the same Seed and
	// Failure.Count get the same delay. 0 draws at random.
	Seed uint64
}

// Delay returns a wait between 1 ms and the delay of Policy.
func (p FullJitter) Delay(f Failure) (wait time.Duration, retry bool) { return p.jitter().delay(f) }

func (p FullJitter) describe() description { return p.jitter().describe("backoff.FullJitter") }

func (p FullJitter) about() facts { return p.jitter().about() }

func (p FullJitter) jitter() jitter { return jitter{p.Policy, p.WaitSteps, p.Seed, 0, 0} }

// EqualJitter is a policy that waits half the delay of another and any time up to the other half:
// EqualJitter{Policy: Exponential{Initial: time.Second, Factor: 2, Retries: 4}} waits
//
//	500ms…1s 1s…2s 2s…4s 4s…8s
//
// and then stops. These four retries need 16 wait queues on topology.PerQueue and topology.Shared,
// because a drawn delay needs a wait step near it: see WaitSteps.
//
// Each delay is drawn anew, in whole milliseconds and never under 1 ms; all are equally likely. Use
// it where a retry must not come at once, as it may with [FullJitter]. It is the "equal jitter" of
// https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/: temp/2 +
// random_between(0, temp/2) with temp = min(cap, base * 2^attempt).
//
// [Delays] lists the wait steps of every delay of Policy: 625ms 750ms 875ms 1s 1.25s 1.5s 1.75s
// 2s for 1s and 2s. No delay is above the longest. [Remarks] tells their number, and warns of a
// Seed.
type EqualJitter struct {
	// Policy gives the longest delay. It must not be nil.
	Policy Policy
	// WaitSteps is the number of wait queues over which a delay is spread, evenly:
	// with 4, a delay of 2s waits 1.25s 1.5s 1.75s or 2s. Delays that share a wait
	// step share its queue. It must be from 2 to 100; 0 means 4.
	WaitSteps int
	// Seed makes the delays repeatable in tests: all messages with the same Seed and
	// Failure.Count get the same delay. 0 draws at random.
	Seed uint64
}

// Delay returns a wait between half the delay of Policy and all of it.
func (p EqualJitter) Delay(f Failure) (wait time.Duration, retry bool) {
	return p.jitter().delay(f)
}

func (p EqualJitter) describe() description {
	return p.jitter().describe("backoff.EqualJitter")
}

func (p EqualJitter) about() facts { return p.jitter().about() }

func (p EqualJitter) jitter() jitter { return jitter{p.Policy, p.WaitSteps, p.Seed, 1, 0} }

// BoundedJitter is a policy that makes the delay of another longer by any part up
// to a bound, and never shorter: BoundedJitter{Policy: Exponential{Initial:
// time.Second, Factor: 2, Retries: 4}, Extra: 0.2} waits
//
//	1s…1.2s 2s…2.4s 4s…4.8s 8s…9.6s
//
// and then stops. These four retries need 16 wait queues on topology.PerQueue and topology.Shared,
// because a drawn delay needs a wait step near it: see WaitSteps.
//
// Each delay is drawn anew, in whole milliseconds; all are equally likely. It does
// not overflow: it stays at [MaxDelay]. Use it where the delay is a promise, such
// as a rate limit, and messages must only be spread. It is the jitter of
// wait.Jitter in k8s.io/apimachinery: between the delay and delay + Extra * delay.
//
// [Delays] lists the wait steps of every delay of Policy: 1.05s 1.1s 1.15s 1.2s for 1s and an
// Extra of 0.2. No delay is above the longest. [Remarks] tells their number, and warns of a
// Seed.
type BoundedJitter struct {
	// Policy gives the shortest delay. It must not be nil.
	Policy Policy
	// Extra is the longest extension, as a part of the delay: 0.2 is a fifth. It
	// must be positive and finite. There is no default: 0 is invalid.
	Extra float64
	// WaitSteps is the number of wait queues over which a delay is spread, evenly:
	// with 4 and an Extra of 0.2, a delay of 2s waits 2.1s 2.2s 2.3s or 2.4s. Delays
	// that share a wait step share its queue. It must be from 2 to 100; 0 means 4.
	WaitSteps int
	// Seed makes the delays repeatable in tests: all messages with the same Seed and
	// Failure.Count get the same delay. 0 draws at random.
	Seed uint64
}

// Delay returns a wait between the delay of Policy and Extra more.
func (p BoundedJitter) Delay(f Failure) (wait time.Duration, retry bool) {
	return p.jitter().delay(f)
}

func (p BoundedJitter) describe() description {
	const name = "backoff.BoundedJitter"
	extra := problems{name: name}
	extra.wrong(!(p.Extra > 0) || math.IsInf(p.Extra, 0), "Extra %v is not positive and finite: "+
		"use 0.2 for up to a fifth more, Policy without backoff.BoundedJitter for no jitter", p.Extra)
	d := p.jitter().describe(name)
	d.errs = append(extra.errs, d.errs...)
	return d
}

func (p BoundedJitter) about() facts { return p.jitter().about() }

func (p BoundedJitter) jitter() jitter {
	return jitter{p.Policy, p.WaitSteps, p.Seed, 2, p.Extra}
}

// DecorrelatedJitter is a policy whose delay is drawn between Initial and three times the delay
// before: DecorrelatedJitter{Initial: time.Second, Max: 20 * time.Second, Retries: 4} waits
//
//	1s…3s 1s…9s 1s…20s 1s…20s
//
// or less, if the delays before were shorter than possible, and then stops. These
// four retries need 12 wait queues on topology.PerQueue and topology.Shared,
// because a drawn delay needs a wait step near it: see WaitSteps.
//
// All delays in the range are equally likely, in whole milliseconds. It grows like a series and
// needs no other policy to draw around. It is the "decorrelated jitter" of
// https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/: min(cap,
// random_between(base, sleep * 3)), with one difference. Max cuts the range and not the delay drawn
// from it, so that no delays pile up at Max.
//
// The delay before is Failure.Last, which may be a delay that middleware.RetryAfter asked for. If
// it is unknown or below Initial, it counts as Initial. However long it was, delay n is at most
// Initial * 3^n. It does not overflow: it stays at [MaxDelay].
//
// [Delays] lists the wait steps from Initial to the longest delay if Retries or Max bounds it,
// or a wrapper around it. [Remarks] tells their number, warns of a Seed, and tells if the
// delays may reach MaxDelay without a Max.
type DecorrelatedJitter struct {
	// Initial is the shortest delay. It must be positive and at most [MaxDelay].
	Initial time.Duration
	// Max caps the delays. 0 means no cap; else it must be at least Initial and at most [MaxDelay].
	Max time.Duration
	// Retries is the number of retries. 0 means no end, which [CheckEnd] reports;
	// a negative number is invalid.
	Retries int
	// WaitSteps is the number of wait queues over which each step of the growing
	// bound is spread, evenly: with 4 and an Initial of 1s, a delay up to 3s waits
	// 1.5s 2s 2.5s or 3s. A delay up to 9s also waits 4.5s 6s 7.5s or 9s. It must be
	// from 2 to 100; 0 means 4.
	WaitSteps int
	// Seed makes the delays repeatable in tests: all messages with the same Seed,
	// Failure.Count and Failure.Last get the same delay. 0 draws at random.
	Seed uint64
}

// Delay returns a wait between Initial and three times Last, and no retry if Count
// is above Retries.
func (p DecorrelatedJitter) Delay(f Failure) (wait time.Duration, retry bool) {
	return step(f, p.Retries, func(count int) time.Duration {
		low := p.bound(0)
		last := min(max(f.Last, low), MaxDelay) // three of them do not overflow
		return draw(p.Seed, count, low, min(3*last, p.bound(count)))
	})
}

// bound is the longest delay after count failures, from 1, and the shortest delay for 0.
func (p DecorrelatedJitter) bound(count int) time.Duration {
	return Exponential{Initial: p.Initial, Factor: 3, Max: p.Max}.at(min(count, 1000) + 1)
}

func (p DecorrelatedJitter) describe() description {
	longest := series{p.Max, p.Retries, p.Max > 0, p.bound}
	d := longest.describe("backoff.DecorrelatedJitter")
	d.delay("Initial", p.Initial)
	d.limits(p.Initial, p.Max, p.Retries)
	d.steps(p.WaitSteps)
	d.each = func(high time.Duration) []time.Duration {
		low := high
		for count := 0; p.bound(count) < high; count++ {
			low = p.bound(count)
		}
		return spread(low, high, p.WaitSteps)
	}
	d.seed, d.fewer = p.Seed, fewerSteps
	d.remark = func(b bounds) string { return longest.within(b).saturation() }
	return d
}

func (p DecorrelatedJitter) about() facts {
	return facts{retries: p.Retries, ends: p.Retries > 0, drawn: true}
}

// jitter is the common part of the policies that draw around the delays of another.
type jitter struct {
	policy Policy
	steps  int
	seed   uint64
	halves time.Duration // the shortest draw is so many halves of the delay
	extra  float64       // the longest draw is so much longer than the delay
}

func (j jitter) delay(f Failure) (wait time.Duration, retry bool) {
	if wait, retry = Next(j.policy, f); !retry || wait == 0 {
		return 0, retry
	}
	low, high := j.around(wait)
	return draw(j.seed, max(f.Count, 1), low, high), true
}

// around returns the range from which a delay is drawn for d: above low, up to high.
func (j jitter) around(d time.Duration) (low, high time.Duration) {
	low, high = d*j.halves/2, d
	if j.extra > 0 { // also if it is invalid
		high += times(d, j.extra, MaxDelay-d)
	}
	return low, high
}

func (j jitter) describe(name string) description {
	d := describing(name, false, part{policy: j.policy})
	d.steps(j.steps)
	d.each = func(delay time.Duration) []time.Duration {
		low, high := j.around(delay)
		return spread(low, high, j.steps)
	}
	d.seed, d.fewer = j.seed, fewerSteps
	return d
}

func (j jitter) about() facts {
	known := factsOf(j.policy)
	known.drawn = true
	return known
}

// draw returns a whole number of milliseconds, rounded up, above low and at most high; all are
// equally likely. A seed other than 0 decides the number, together with count.
func draw(seed uint64, count int, low, high time.Duration) time.Duration {
	if high <= low {
		return clamp(high)
	}
	below := rand.Int64N
	if seed != 0 {
		below = rand.New(rand.NewPCG(seed, uint64(count))).Int64N
	}
	d := low + 1 + time.Duration(below(int64(high-low)))
	return clamp(min(wholeMilliseconds(d), high))
}

// spread returns the wait steps of delays above low, up to high: evenly spread, the
// last of them high.
func spread(low, high time.Duration, steps int) []time.Duration {
	n := time.Duration(cmp.Or(min(max(steps, 0), maxSteps), defaultSteps))
	delays := make([]time.Duration, 0, n)
	for i := time.Duration(1); i < n; i++ {
		delays = append(delays, wholeMilliseconds(low+(high-low)/n*i))
	}
	return append(delays, wholeMilliseconds(high))
}

func wholeMilliseconds(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}
