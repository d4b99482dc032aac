package doctor

import "time"

// WithLifetime sets how long scratch queues live after their last use.
func WithLifetime(d time.Duration) Option {
	return func(o *options) error {
		o.lifetime = d
		return nil
	}
}
