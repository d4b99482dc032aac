package topology

import "time"

// WithStrandedPause sets the time between two looks at a stranded queue.
func WithStrandedPause(d time.Duration) Option {
	return func(o *clientOptions) error {
		o.strandedPause = d
		return nil
	}
}

// PolicyKeyFits reports whether Verify knows a key of policies, and whether it takes a
// policy with the key for one that the broker applies, or may apply, to a type of queue.
func PolicyKeyFits(key string, kind QueueType) (known, applied, perhaps bool) {
	k, known := policyKeys[key]
	found := k.fits(kind)
	return known, found == applies, found == mayApply
}
