// Package clock is the time by which the library waits, and the time of the host's clock. Both are
// the real time, except in tests that compress months into minutes.
package clock

import (
	"sync/atomic"
	"time"
)

// shortest is the least that a compressed wait becomes, because the broker is no faster.
const shortest = 20 * time.Millisecond

var (
	speed atomic.Int64 // 0 or 1 for the real time
	ahead atomic.Int64 // how far the host's clock has jumped
)

// Wait returns how long to wait where the library says d.
func Wait(d time.Duration) time.Duration {
	n := speed.Load()
	if n <= 1 {
		return d
	}
	return max(d/time.Duration(n), min(d, shortest))
}

// Now returns the time of the host's clock. It is for times that travel with a message, or are
// compared with such times. Limits inside a process use time.Now, which no jump changes.
func Now() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }

// Compress divides each wait of this process by times, and Jump moves the clock of its host. They
// are for tests.
func Compress(times int) { speed.Store(int64(times)) }

// Jump moves the host's clock by d.
func Jump(d time.Duration) { ahead.Add(int64(d)) }
