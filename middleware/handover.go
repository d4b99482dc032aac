package middleware

import (
	"context"
	"errors"
	"time"

	"github.com/millpond-go/millpond/internal/hold"
)

// holdUntil hands the message over with try. While the machinery fails it holds
// the message in this goroutine and tries again: acking would lose the message,
// and nacking would bring it back at once. It returns nil if the broker has
// confirmed, else why the message could not be held any longer.
func (r *DelayedRetry) holdUntil(
	ctx context.Context, delivery *Delivery, now time.Time, log *report, try func() error,
) *unsettledError {
	arrived := delivery.Arrived
	if arrived.IsZero() {
		arrived = now
	}
	tries, held := 0, time.Duration(0)
	err := hold.Do(ctx, hold.Options{
		Gone:  delivery.Gone,
		Stop:  delivery.Closing,
		Until: arrived.Add(r.holdLimit),
		Final: isNotDelivered,
		Failed: func(err error, n int, d time.Duration) {
			tries, held = n, d
			r.observeFailing(ctx, delivery, err, n, d)
		},
		Failing: log.handOverFails,
		Recovered: func(n int, d time.Duration) {
			log.handOverRecovered(n, d)
			r.observeRecovered(ctx, delivery, n, d)
		},
	}, try)
	if err == nil {
		return nil
	}
	log.handOverFailed(err)
	kind := ErrNotHandedOver
	if errors.Is(err, hold.ErrGone) {
		kind = ErrInterrupted
	}
	return &unsettledError{kind: kind, cause: err, tries: tries, held: held}
}

func isNotDelivered(err error) bool { return errors.Is(err, ErrNotDelivered) }
