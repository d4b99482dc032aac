package webhook

import (
	"time"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
)

var (
	// Policy is for answers that say no: a receiver in trouble needs time.
	Policy = backoff.List{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second}
	// NetworkPolicy is for connections that break and answers that do not come.
	NetworkPolicy = backoff.List{250 * time.Millisecond, 500 * time.Millisecond, time.Second,
		2 * time.Second}
	// RetryAfters are what receivers ask for: with wait queues of their own,
	// nobody waits longer than that.
	RetryAfters = backoff.List{time.Second, 2 * time.Second, 3 * time.Second}
)

// MaxAttempts is how often a delivery is tried.
const MaxAttempts = 5

// NewRetry says what becomes of a delivery that failed: byStatus whether it is
// tried again, the two policies when.
func NewRetry(republisher middleware.Republisher,
	options ...middleware.Option) (*middleware.DelayedRetry, error) {
	return middleware.NewDelayedRetry(republisher, Policy, append([]middleware.Option{
		middleware.WithPolicyFor(middleware.Selector{Error: middleware.NetworkErrors()}, NetworkPolicy),
		middleware.WithClassifier(middleware.ClassifierFunc(byStatus)),
		middleware.WithMaxAttempts(MaxAttempts),
	}, options...)...)
}
