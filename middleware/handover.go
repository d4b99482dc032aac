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
	ctx context.Context, d *Delivery, now time.Time, log *report, try func() error,
) *unsettledError {
	arrived := d.Arrived
	if arrived.IsZero() {
		arrived = now
	}
	err := hold.Do(ctx, hold.Options{
		Gone:      d.Gone,
		Stop:      d.Closing,
		Until:     arrived.Add(r.holdLimit),
		Final:     isNotDelivered,
		Failing:   log.handOverFails,
		Recovered: log.handOverRecovered,
	}, try)
	if err == nil {
		return nil
	}
	log.handOverFailed(err)
	kind := ErrNotHandedOver
	if errors.Is(err, hold.ErrGone) {
		kind = ErrInterrupted
	}
	return &unsettledError{kind: kind, cause: err}
}

func isNotDelivered(err error) bool { return errors.Is(err, ErrNotDelivered) }
