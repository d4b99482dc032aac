package middleware

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
)

// order keeps what was said about middlewares in the wrong place: each is said once.
type order struct {
	poison, delayed, again atomic.Bool
}

var errOrder = errors.New("middlewares are in the wrong order: see docs/middlewares.md")

// noticeInner looks at what middlewares inside have written into the metadata.
// That there is something new is all that a success without it pays for.
func (r *DelayedRetry) noticeInner(ctx context.Context, d *Delivery, err error) {
	_, poisoned := d.msg.Metadata[wmiddleware.ReasonForPoisonedKey]
	_, delayed := d.msg.Metadata[delay.DelayedForKey]
	switch {
	case err == nil && poisoned && first(&r.order.poison):
		r.logger.Error("A PoisonQueue inside DelayedRetry has taken an error away before it could be retried: "+
			"leave it out, for what is given up is dead-lettered", errOrder, whereabouts(ctx, d))
	case err != nil && delayed && first(&r.order.delayed):
		r.logger.Error("DelayOnError inside DelayedRetry has no effect: leave it out, for the policy decides on the delay",
			errOrder, whereabouts(ctx, d))
	}
}

// noticeAgain: a middleware outside calls for a message that was handed over.
func (r *DelayedRetry) noticeAgain(ctx context.Context, d *Delivery) {
	if first(&r.order.again) {
		r.logger.Error("DelayedRetry was called again for a message that it had handed over: "+
			"put what calls its handler more than once, such as Duplicator or Retry, inside DelayedRetry", errOrder, whereabouts(ctx, d))
	}
}

func first(said *atomic.Bool) bool { return said.CompareAndSwap(false, true) }

func whereabouts(ctx context.Context, d *Delivery) watermill.LogFields {
	at := placeOf(ctx, d)
	return d.logFields(d.idsNow()).Add(watermill.LogFields{"handler": at.handler, "queue": at.queue, "topic": at.topic})
}
