package middleware

import (
	"context"
	"errors"
	"time"

	"github.com/millpond-go/millpond/internal/hold"
)

// hold hands the message over with try. While the machinery fails it holds
// the message in this goroutine and tries again: acking would lose the message,
// and nacking would bring it back at once. It returns nil if the broker has
// confirmed, else why the message could not be held any longer.
func (r *DelayedRetry) hold(
	ctx context.Context, delivery *Delivery, now time.Time, log *report, try func() error,
) *unsettledError {
	tries, held := 0, time.Duration(0)
	err := hold.Do(ctx, hold.Options{
		Gone:  delivery.Gone,
		Stop:  delivery.Closing,
		Until: r.holdUntil(delivery, now),
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

// holdUntil returns when the last try may begin.
func (r *DelayedRetry) holdUntil(d *Delivery, now time.Time) time.Time {
	arrived := d.Arrived
	if arrived.IsZero() {
		arrived = now
	}
	until := d.HoldUntil
	if until.IsZero() {
		until = arrived.Add(defaultHoldLimit)
	}
	if own := arrived.Add(r.holdLimit); r.holdLimit > 0 && own.Before(until) {
		return own
	}
	return until
}

func isNotDelivered(err error) bool { return errors.Is(err, ErrNotDelivered) }
