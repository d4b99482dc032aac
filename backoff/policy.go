package backoff

import (
	"math"
	"sort"
	"time"
)

// MaxDelay is the longest delay, ten years: RabbitMQ accepts no longer TTL for
// a queue (broker fact F11). Every policy saturates here.
const MaxDelay = 315_360_000_000 * time.Millisecond

// minDelay is the shortest delay: a queue's TTL is a whole number of
// milliseconds, and zero would mean at once.
const minDelay = time.Millisecond

// Policy says after a failure how long to wait before the next attempt, or that
// there shall be none (retry is false; wait is then without meaning).
//
// A Policy is an immutable value and Delay a pure function of f, but for
// policies that are random on purpose: it keeps no count of its own, and is
// called from many goroutines at once. Call it through [Next], which bounds what
// it returns.
type Policy interface {
	Delay(f Failure) (wait time.Duration, retry bool)
}

// Failure is everything a policy may look at.
type Failure struct {
	// Count is the number of failures so far, 1 after the first attempt.
	// The policies of this package take less than 1 as 1.
	Count int
	// Err is what the last attempt returned.
	Err error
	// First and Now are the times of the first failure and of this one. If
	// either is zero, the age of the message is unknown and taken as 0.
	First, Now time.Time
	// Last is the delay given last time, 0 if there was none.
	Last time.Duration
}

// age is the time from the first failure to this one: 0 if unknown, and if the
// clocks that took the two times disagree about their order.
func (f Failure) age() time.Duration {
	if f.First.IsZero() || f.Now.IsZero() {
		return 0
	}
	return max(f.Now.Sub(f.First), 0)
}

// Next asks p and bounds its answer, so that any policy is safe to use: a wait
// lies within 1 ms and [MaxDelay], and is 0 without a retry. A Count below 1 is
// handed to p as 1. A p that is nil, or a nil pointer or func, never retries.
func Next(p Policy, f Failure) (wait time.Duration, retry bool) {
	if isNil(p) {
		return 0, false
	}
	f.Count = max(f.Count, 1)
	wait, retry = p.Delay(f)
	if !retry {
		return 0, false
	}
	return clamp(wait), true
}

// PolicyFunc makes a function a [Policy]. Its delays cannot be listed and
// nothing is known of its end: put it in a [Limit].
type PolicyFunc func(f Failure) (time.Duration, bool)

// Delay calls the function and bounds its answer as [Next] does. A nil
// PolicyFunc never retries.
func (p PolicyFunc) Delay(f Failure) (wait time.Duration, retry bool) {
	if p == nil {
		return 0, false
	}
	f.Count = max(f.Count, 1)
	wait, retry = p(f)
	if !retry {
		return 0, false
	}
	return clamp(wait), true
}

// clamp puts d within minDelay and MaxDelay.
func clamp(d time.Duration) time.Duration {
	return min(max(d, minDelay), MaxDelay)
}

// exhausted reports whether the count-th failure comes after the last of
// retries. 0 retries are no end, fewer (invalid) are none at all.
func exhausted(count, retries int) bool {
	return retries != 0 && max(count, 1) > retries
}

// ceiling is the delay at which a series with this Max stays, also if Max is 0
// (no cap) or invalid.
func ceiling(limit time.Duration) time.Duration {
	if limit <= 0 || limit > MaxDelay {
		return MaxDelay
	}
	return limit
}

// distinct lists the values of a series that never falls, at(1) to at(retries)
// or, if retries is 0, for ever. It returns nil if there are more than maxListed.
//
// It jumps from each value to the next greater one, so that a series that
// stays at its cap for a billion retries costs no more than a short one.
func distinct(retries int, at func(count int) time.Duration) []time.Duration {
	delays := []time.Duration{}
	if retries < 0 {
		return delays
	}
	last := retries
	if last == 0 {
		last = math.MaxInt
	}
	for count := 1; len(delays) <= maxListed; {
		current := at(count)
		delays = append(delays, current)
		rest := last - count
		skip := sort.Search(rest, func(i int) bool { return at(count+1+i) > current })
		if skip == rest {
			break
		}
		count += skip + 1
	}
	if len(delays) > maxListed {
		return nil
	}
	return delays
}
