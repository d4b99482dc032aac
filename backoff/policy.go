package backoff

import (
	"fmt"
	"math"
	"time"

	"github.com/millpond-go/millpond/internal/nils"
)

// MaxDelay is the longest delay, ten years: RabbitMQ accepts no longer TTL for a
// queue (broker fact F11). A longer delay becomes MaxDelay.
const MaxDelay = 315_360_000_000 * time.Millisecond

// minDelay is the shortest delay: a queue's TTL is a whole number of milliseconds,
// and 0 would mean at once.
const minDelay = time.Millisecond

// Policy decides after a failure how long to wait before the next attempt. If
// retry is false there is no next attempt, and wait has no meaning.
//
// A Policy is an immutable value and keeps no count. Delay is a pure function of
// f, except in policies that are random on purpose, and is called from many
// goroutines at once. Call it through [Next], which bounds the result.
type Policy interface {
	Delay(f Failure) (wait time.Duration, retry bool)
}

// Failure is everything a policy may look at.
type Failure struct {
	// Count is the number of failures so far, 1 after the first attempt. The
	// policies of this package take less than 1 as 1.
	Count int
	// Err is the error of the last attempt.
	Err error
	// First and Now are the times of the first failure and of this one, in UTC. If
	// either is zero, the age of the message is unknown and counts as 0.
	First, Now time.Time
	// Last is the delay given after the failure before, 0 if there was none.
	Last time.Duration
}

// age is the time from the first failure to this one. It is 0 if unknown, and if
// the clocks that took the two times disagree about their order.
func (f Failure) age() time.Duration {
	if f.First.IsZero() || f.Now.IsZero() {
		return 0
	}
	return max(f.Now.Sub(f.First), 0)
}

// Next calls p.Delay and bounds the result, so that any policy is safe to use. The
// wait lies within 1 ms and [MaxDelay], and is 0 without a retry. Next gives p a
// Count below 1 as 1. A p that is nil, or a nil pointer or func, never retries.
//
// After the first failure a wait of exactly 0 stays 0: the message goes straight to the tail of
// its queue. After a later failure 0 means 1 ms, so that no policy makes a message spin.
func Next(p Policy, f Failure) (wait time.Duration, retry bool) {
	if nils.Is(p) {
		return 0, false
	}
	f.Count = max(f.Count, 1)
	if wait, retry = p.Delay(f); !retry {
		return 0, false
	}
	return bounded(f.Count, wait), true
}

// PolicyFunc makes a function a [Policy]. Its delays cannot be listed and its end
// is unknown: put it in a [Limit].
type PolicyFunc func(f Failure) (time.Duration, bool)

// Delay calls the function and bounds the result as [Next] does. A nil PolicyFunc never retries.
func (p PolicyFunc) Delay(f Failure) (wait time.Duration, retry bool) { return Next(raw(p), f) }

// raw is a PolicyFunc without bounds.
type raw func(f Failure) (time.Duration, bool)

func (p raw) Delay(f Failure) (time.Duration, bool) { return p(f) }

// bounded puts the wait after failure number count within its bounds: the first may be 0.
func bounded(count int, wait time.Duration) time.Duration {
	if count <= 1 && wait == 0 {
		return 0
	}
	return clamp(wait)
}

// clamp puts d within minDelay and MaxDelay.
func clamp(d time.Duration) time.Duration { return min(max(d, minDelay), MaxDelay) }

// times is d multiplied by factor, rounded to the nanosecond, at most limit.
func times(d time.Duration, factor float64, limit time.Duration) time.Duration {
	exact := math.Round(float64(d) * factor)
	// Compared as floats before the conversion, which is undefined outside int64.
	// Not "exact >= limit": exact may be NaN if fields are invalid.
	if !(exact < float64(limit)) {
		return limit
	}
	return time.Duration(max(exact, 0))
}

// ceiling is the delay at which a series with this Max stays, also if Max is 0 (no cap) or invalid.
func ceiling(limit time.Duration) time.Duration {
	if limit <= 0 {
		return MaxDelay
	}
	return min(limit, MaxDelay)
}

// describeNil names a v for which nils.Is is true.
func describeNil(v any) string {
	if v == nil {
		return "nil"
	}
	return fmt.Sprintf("a nil %T", v)
}
