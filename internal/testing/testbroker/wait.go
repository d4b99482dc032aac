package testbroker

import (
	"testing"
	"time"
)

// WaitFor returns as soon as cond is true, and fails the test when it has not become so within
// limit. what completes the sentence "waited 5s for …".
func WaitFor(tb testing.TB, what string, limit time.Duration, cond func() bool) {
	tb.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !cond() {
		select {
		case <-deadline.C:
			tb.Fatalf("waited %s for %s", limit, what)
		case <-ticker.C:
		}
	}
}
