package backoff

import (
	"math"
	"time"
)

// AtOnce is a policy whose first retry comes without a delay. Then follow the delays of another
// policy, from its first: AtOnce{Policy: Constant{Interval: 5 * time.Second, Retries: 2}} waits
//
//	0s 5s 5s
//
// and then stops. It adds one retry. For delays that are listed, a [List] that begins with 0 does
// the same.
//
// Without a delay a message goes straight to the tail of its queue, past no wait queue. Other
// messages that are ready there come first. With an empty queue it comes back within
// milliseconds: use it for errors that a second try may solve, such as a lost lock. Only the
// first failure of a message is followed by such a retry, so a message never spins.
type AtOnce struct {
	// Policy gives the delays after the first retry. It must not be nil and must not begin with
	// a delay of 0 itself. Its Failure.Count is 1 lower than the count of all failures.
	Policy Policy
}

// Delay returns no delay after the first failure, then the result of Policy.
func (p AtOnce) Delay(f Failure) (wait time.Duration, retry bool) {
	if f.Count <= 1 {
		return 0, true
	}
	f.Count--
	if wait, retry = Next(p.Policy, f); !retry {
		return 0, false
	}
	return clamp(wait), true
}

func (p AtOnce) describe() description {
	d := describing("backoff.AtOnce", false, part{policy: p.Policy})
	d.wrong(factsOf(p.Policy).atOnce, "Policy begins without a delay itself, and only the first "+
		"retry may: use Policy without backoff.AtOnce")
	d.within = func(b bounds) bounds {
		if b.retries < unlimited {
			b.retries--
		}
		return b
	}
	return d
}

func (p AtOnce) about() facts {
	known := factsOf(p.Policy)
	known.retries = min(max(known.retries, 0), math.MaxInt-1) + 1
	if known.matches > 0 {
		known.matches = min(known.matches, math.MaxInt-1) + 1
	}
	known.atOnce = true
	return known
}
