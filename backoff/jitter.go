package backoff

import (
	"math/rand/v2"
	"time"
)

const (
	// defaultRungs is the number of wait steps of a delay where WaitSteps is 0.
	defaultRungs = 4
	// maxRungs bounds WaitSteps: each is a queue.
	maxRungs = 100
)

// jitter is what the policies share that draw their delays around those of
// another.
type jitter struct {
	policy Policy
	rungs  int
	random *rand.Rand // nil: that of the process, which may be shared
	// around returns what a delay d is drawn from: above low, up to high.
	around func(d time.Duration) (low, high time.Duration)
}

func (j jitter) delay(f Failure) (wait time.Duration, retry bool) {
	wait, retry = Next(j.policy, f)
	if !retry {
		return 0, false
	}
	low, high := j.around(wait)
	return draw(j.random, low, high), true
}

func (j jitter) validate(found *problems) error {
	found.rungs(j.rungs)
	found.inner(j.policy)
	return found.join()
}

// delays returns the wait steps of every delay that the policy lists.
func (j jitter) delays() []time.Duration {
	listed, known := Delays(j.policy)
	if !known {
		return nil
	}
	delays := []time.Duration{}
	for _, d := range listed {
		low, high := j.around(d)
		delays = append(delays, spread(low, high, j.rungs)...)
	}
	return delays
}

func (j jitter) about() facts {
	known := factsOf(j.policy)
	known.countOnly, known.drawn = false, true
	return known
}

// draw returns a whole number of milliseconds, rounded up, above low and at most
// high; each is as likely as another.
func draw(random *rand.Rand, low, high time.Duration) time.Duration {
	if high <= low {
		return clamp(high)
	}
	below := rand.Int64N
	if random != nil {
		below = random.Int64N
	}
	d := low + 1 + time.Duration(below(int64(high-low)))
	return clamp(min(wholeMilliseconds(d), high))
}

// spread returns the wait steps of what is drawn above low, up to high: as many as
// wanted, evenly spread, the last of them high.
func spread(low, high time.Duration, rungs int) []time.Duration {
	n := time.Duration(defaultRungs)
	if rungs > 0 {
		n = time.Duration(min(rungs, maxRungs))
	}
	delays := make([]time.Duration, 0, n)
	for i := time.Duration(1); i < n; i++ {
		delays = append(delays, wholeMilliseconds(low+(high-low)/n*i))
	}
	return append(delays, wholeMilliseconds(high))
}

func wholeMilliseconds(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}
