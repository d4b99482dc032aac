package backoff

import (
	"math"
	"time"

	"github.com/millpond-go/millpond/internal/nils"
)

const (
	// defaultLeast and defaultMost bound the factor where Least and Most are 0.
	defaultLeast, defaultMost = 0.5, 8.0
	// leastLeast and mostMost bound Least and Most, because each doubling between them is a queue
	// for each delay.
	leastLeast, mostMost = 0.1, 100.0
	// quiet is the number of attempts that the formula adds, so that a few failures of a quiet queue
	// say little.
	quiet = 10.0
)

// Adaptive is a policy that makes the delays of another longer while attempts fail, and shorter
// while they succeed: Adaptive{Policy: Exponential{Initial: time.Second, Factor: 2, Retries: 4},
// Health: health.Recent} waits
//
//	1s 2s 4s 8s       while nothing is known of the downstream service, and if half of them fail
//	500ms 1s 2s 4s    while nearly all recent attempts succeed
//	8s 16s 32s 64s    while nearly all of them fail
//
// or between these, and then stops. Package middleware/adaptive counts the attempts.
//
// Each delay of Policy is multiplied by a factor:
//
//	(attempts + 10) / (successes/Least + 10)
//
// It is client-side throttling of https://sre.google/sre-book/handling-overload/ with K = 1/Least.
// A client there sends each request with the probability (K*accepts + 1) / (requests + 1), at most
// 1. Retries that wait as many times longer are as many times fewer a second. The 1 is 10 here, so
// that a few failures of a quiet queue say little.
//
// The delay is at least the share of failures times the rest of [Recent].UntilSuccess that the
// message has not waited yet: attempts / (attempts + 10) of them count, too.
//
// The factor is Least, doubled until it is nearest to the result, and at most Most: ½ 1 2 4 8
// without Least and Most. So no delay lies between two wait steps, and a Policy that doubles has
// only four more wait queues than alone. A [Cap] around the Adaptive bounds the longest delay.
// [Delays] lists every delay of Policy multiplied by every factor: 500ms 1s 2s 4s 8s for 1s.
//
// A limit on the age of messages sees the longer delay: [MaxAge] and middleware.WithMaxAge give a
// message up if its next attempt would come too late. Allow for Most times the longest delay. The
// number of retries does not change, so while other messages succeed, a message that fails is
// given up sooner, unless Least is 1.
type Adaptive struct {
	// Policy gives the delay that is multiplied, and the end. It must not be nil.
	Policy Policy
	// Health returns the recent attempts at a time, which is Failure.Now. It is called for each
	// failure, by many goroutines at once. It must not be nil. The delay depends on the failure and on
	// its result alone.
	Health func(now time.Time) Recent
	// Least is the smallest factor, from 0.1 to 1. With 1 no delay is shorter than the delay of
	// Policy. 0 means 0.5.
	Least float64
	// Most is the greatest factor, from 1 to 100. 0 means 8.
	Most float64
}

// Recent counts recent attempts, for [Adaptive]. It is zero if nothing is known.
type Recent struct {
	// Attempts counts calls of the handler, and Failed how many of them failed with an error that
	// may pass.
	Attempts, Failed int
	// UntilSuccess is the mean time from the first failure of a message to its success, of messages
	// that have failed before. It is 0 if there were none.
	UntilSuccess time.Duration
}

// Delay returns the delay of Policy, multiplied by the factor.
func (p Adaptive) Delay(f Failure) (wait time.Duration, retry bool) {
	wait, retry = Next(p.Policy, f)
	if wait == 0 || nils.Is(p.Health) { // a first retry without a delay stays so
		return wait, retry
	}
	return scaled(wait, p.rounded(p.factor(p.Health(f.Now), wait, f.age()))), true
}

// factor is the factor of the formula for a message of this age, not rounded and without bounds.
func (p Adaptive) factor(r Recent, wait, age time.Duration) float64 {
	attempts := float64(max(r.Attempts, 0))
	failed := min(float64(max(r.Failed, 0)), attempts)
	factor := (attempts + quiet) / ((attempts-failed)/p.least() + quiet)
	share := failed / (attempts + quiet)
	rest := max(r.UntilSuccess, 0) - age // no less than -age, so it does not overflow
	return max(factor, share*float64(rest)/float64(wait))
}

// rounded returns the possible factor that is nearest to the exact one.
func (p Adaptive) rounded(exact float64) float64 {
	least := p.least()
	doublings := math.Round(math.Log2(max(exact, least) / least))
	return min(math.Ldexp(least, int(min(doublings, 64))), p.most())
}

// least is the smallest factor, and most the greatest, also if Least and Most are invalid.
func (p Adaptive) least() float64 { return within(p.Least, defaultLeast, leastLeast, 1) }
func (p Adaptive) most() float64  { return within(p.Most, defaultMost, 1, mostMost) }

// within is a factor put within low and high, or standard if it is not positive.
func within(factor, standard, low, high float64) float64 {
	if !(factor > 0) {
		return standard
	}
	return min(max(factor, low), high)
}

// scaled is d multiplied by factor, in whole milliseconds.
func scaled(d time.Duration, factor float64) time.Duration {
	if factor == 1 {
		return clamp(d)
	}
	return clamp(wholeMilliseconds(times(d, factor, MaxDelay)))
}

func (p Adaptive) describe() description {
	d := describing("backoff.Adaptive", false, part{policy: p.Policy})
	d.wrong(nils.Is(p.Health), "Health is nil: use Recent of an adaptive.Health, which package "+
		"middleware/adaptive has, or Policy without backoff.Adaptive")
	// Also NaN.
	d.wrong(p.Least != 0 && !(p.Least >= leastLeast && p.Least <= 1),
		"Least %v is not from %v to 1: use 0 for %v", p.Least, leastLeast, defaultLeast)
	d.wrong(p.Most != 0 && !(p.Most >= 1 && p.Most <= mostMost),
		"Most %v is not from 1 to %v: use 0 for %v", p.Most, mostMost, defaultMost)
	d.within = func(b bounds) bounds {
		if b.longest > 0 { // with Least a longer delay is as short
			b.longest = scaled(b.longest, 1/p.least())
		}
		return b
	}
	d.each = func(delay time.Duration) (delays []time.Duration) {
		for factor := p.least(); factor < p.most(); factor *= 2 {
			delays = append(delays, scaled(delay, factor))
		}
		return append(delays, scaled(delay, p.most()))
	}
	d.fewer = "a smaller Most needs fewer"
	return d
}

func (p Adaptive) about() facts { return factsOf(p.Policy) }
