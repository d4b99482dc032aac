package topology

import "time"

// WithStrandedPause sets the time between two looks at a stranded queue.
func WithStrandedPause(d time.Duration) Option {
	return func(o *clientOptions) error {
		o.strandedPause = d
		return nil
	}
}
