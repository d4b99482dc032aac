package backoff

import "time"

// Limit is a policy that allows at most Retries retries of another: Limit{
// Policy: Constant{Interval: 5 * time.Second}, Retries: 2} waits
//
//	5s 5s
//
// and then stops. It never adds a retry: a Policy that stops earlier still does.
type Limit struct {
	// Policy is asked for the delays. It must not be nil.
	Policy Policy
	// Retries is the number of retries. 0 means none, unlike in [Constant],
	// [Linear], [Exponential] and [Fibonacci]; a negative number is invalid and
	// means none.
	Retries int
}

// Delay returns what Policy does, and no retry if Count is above Retries.
func (p Limit) Delay(f Failure) (wait time.Duration, retry bool) {
	if max(f.Count, 1) > p.Retries {
		return 0, false
	}
	return Next(p.Policy, f)
}

// Validate returns an error for every invalid field, joined with those of
// Policy.
func (p Limit) Validate() error {
	found := problems{name: "backoff.Limit"}
	if p.Retries < 0 {
		found.add("Retries %d is negative: use 0 to never retry", p.Retries)
	}
	found.inner(p.Policy)
	return found.join()
}

// CheckEnd returns nil: a Limit ends after Retries.
func (p Limit) CheckEnd() error { return nil }

// Delays returns the delays of the first Retries failures if Policy is one of
// this package's whose delay depends on Count alone and Retries is at most 1000;
// else every delay that Policy lists, some of which may then not occur; nil if
// it lists none. A jitter lists those that it draws around as if the Limit were
// in it.
func (p Limit) Delays() []time.Duration {
	if within, is := limited(p.Policy, p.Retries); is {
		delays, _ := Delays(within)
		return delays
	}
	if p.Retries > maxListed || (p.Retries > 0 && !factsOf(p.Policy).countOnly) {
		delays, _ := Delays(p.Policy)
		return delays
	}
	delays := []time.Duration{}
	for count := 1; count <= p.Retries; count++ {
		wait, retry := Next(p.Policy, Failure{Count: count})
		if !retry {
			break
		}
		delays = append(delays, wait)
	}
	return delays
}

// Remarks returns those on Policy.
func (p Limit) Remarks() []string { return Remarks(p.Policy) }

func (p Limit) about() facts {
	known := factsOf(p.Policy)
	if !known.ends {
		known.retries = p.Retries
	}
	known.retries, known.ends = min(known.retries, p.Retries), true
	known.matches = min(known.matches, p.Retries)
	return known
}

func (p Limit) lower(limit time.Duration) Policy {
	p.Policy = lower(p.Policy, limit)
	return p
}
