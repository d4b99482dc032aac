package backoff

import "time"

// None is a policy that never retries: the first failure is the last.
type None struct{}

// Delay returns no retry.
func (None) Delay(Failure) (wait time.Duration, retry bool) { return 0, false }

// CheckEnd returns nil: there is no retry.
func (None) CheckEnd() error { return nil }

// Delays returns an empty slice: there is no retry.
func (None) Delays() []time.Duration { return []time.Duration{} }

func (None) about() facts { return facts{ends: true, countOnly: true} }
