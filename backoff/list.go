package backoff

import (
	"fmt"
	"time"
)

// List is a policy that names each delay: List{2 * time.Second, 5 * time.Second,
// 15 * time.Second} waits
//
//	2s 5s 15s
//
// and then stops: as many retries as entries. An empty or nil List never
// retries. An entry below 1 ms means 1 ms; one of 0 or less, or above
// [MaxDelay], is invalid.
//
// The slice is used as it is: do not change it once it is handed over.
type List []time.Duration

// Delay returns entry number Count, the first for a Count below 1, and no retry
// after the last.
func (p List) Delay(f Failure) (wait time.Duration, retry bool) {
	count := max(f.Count, 1)
	if count > len(p) {
		return 0, false
	}
	return clamp(p[count-1]), true
}

// Validate returns an error for every invalid entry, by its index from 0.
func (p List) Validate() error {
	found := problems{name: "backoff.List"}
	for i, d := range p {
		found.delay(fmt.Sprintf("entry [%d]", i), d)
	}
	return found.join()
}

// CheckEnd returns nil: a List ends after its last entry.
func (p List) CheckEnd() error { return nil }

// Delays returns a copy of the entries.
func (p List) Delays() []time.Duration {
	return append([]time.Duration{}, p...)
}

func (p List) about() facts { return facts{retries: len(p), ends: true, countOnly: true} }
