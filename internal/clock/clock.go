// Package clock is the time of the host's clock, which tests let jump.
package clock

import (
	"sync/atomic"
	"time"
)

var ahead atomic.Int64 // how far the host's clock has jumped

// Now returns the time of the host's clock. It is for times that travel with a message, or are
// compared with such times. Limits inside a process use time.Now, which no jump changes.
func Now() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }

// Jump moves the host's clock by d. It is for tests.
func Jump(d time.Duration) { ahead.Add(int64(d)) }

// NotAfter returns t, or now if t is missing or forged to lie ahead.
func NotAfter(t, now time.Time) time.Time {
	if t.IsZero() || t.After(now) {
		return now
	}
	return t
}
