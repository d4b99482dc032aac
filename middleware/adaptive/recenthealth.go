package adaptive

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// slices is the number of parts of the sliding window.
const slices = 10

// Health counts the recent attempts of the handlers that it observes, in a sliding window. It is a
// middleware.Observer, and its Recent is the Health of a backoff.Adaptive. Many goroutines may use
// a Health. Observe takes a lock, and allocates nothing.
type Health struct {
	length int64 // of a slice, in nanoseconds

	mu     sync.Mutex
	window [slices]slice
}

var _ middleware.Observer = (*Health)(nil)

// slice counts in one part of the window.
type slice struct {
	number           int64 // since the epoch
	attempts, failed int
	recovered        int     // successes of messages that had failed before
	until            float64 // the sum of their times until success, which cannot overflow
}

// New returns a Health that has counted nothing. The window is the time over which it counts, at
// least 10 ms; a minute suits most services. It must be long enough for some attempts, and is the
// time after which an outage is forgotten.
func New(window time.Duration) (*Health, error) {
	if window < slices*time.Millisecond {
		return nil, fmt.Errorf("new adaptive health: window %v is shorter than %v",
			window, slices*time.Millisecond)
	}
	return &Health{length: int64(window / slices)}, nil
}

// Observe counts the result of a handler. A failure with a permanent error counts as an attempt
// that did not fail, because the service has answered. Snoozes that a handler asked for,
// interruptions and decisions without a call of the handler do not count.
func (h *Health) Observe(_ context.Context, e middleware.Event) {
	if !e.Called {
		return
	}
	var failed bool
	switch e.Kind {
	case middleware.EventHandled:
	case middleware.EventRetried, middleware.EventDeadLettered:
		failed = e.Class == header.ClassRetryable
	case middleware.EventSnoozed:
		if failed = e.OverBudget; !failed { // a failure that spends no attempt while a brake is stopped
			return
		}
	default:
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.at(e.At)
	s.attempts++
	switch {
	case failed:
		s.failed++
	case e.Kind == middleware.EventHandled && e.Failures > 0:
		s.recovered++
		s.until += float64(min(max(e.Age, 0), backoff.MaxDelay))
	}
}

// Recent returns the counts of the window that ends at the given time.
func (h *Health) Recent(now time.Time) backoff.Recent {
	h.mu.Lock()
	defer h.mu.Unlock()
	var sum slice
	last := h.number(now)
	for i := range h.window {
		s := &h.window[i]
		if s.number <= last-slices || s.number > last {
			continue // over, or ahead because the host's clock went back
		}
		sum.attempts += s.attempts
		sum.failed += s.failed
		sum.recovered += s.recovered
		sum.until += s.until
	}
	r := backoff.Recent{Attempts: sum.attempts, Failed: sum.failed}
	if sum.recovered > 0 {
		r.UntilSuccess = time.Duration(sum.until / float64(sum.recovered))
	}
	return r
}

// at returns the slice of a time, empty if it was used for another time.
func (h *Health) at(t time.Time) *slice {
	number := h.number(t)
	s := &h.window[(number%slices+slices)%slices]
	if s.number != number {
		*s = slice{number: number}
	}
	return s
}

func (h *Health) number(t time.Time) int64 { return t.UnixNano() / h.length }
