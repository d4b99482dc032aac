package middleware

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Delivery is what the middleware and the accessors must know of the delivery
// behind a message. The Subscriber attaches one to every message it hands out;
// for a message of another Pub/Sub the middleware makes one of the metadata.
//
// The fields are set before Attach and only read afterwards.
type Delivery struct {
	// Queue is the AMQP queue the message was consumed from.
	Queue string
	// Arrived is when this process received the delivery.
	Arrived time.Time
	// Notes are the retry state the message came with. At attempt 1 they hold
	// no failure; the Subscriber fills in the origin and, if the message has an
	// expiration, the deadline.
	Notes Notes
	// Gone is closed when the delivery is stale: its channel is closed or the
	// broker has been given the message back. Whatever is published after that
	// is a duplicate. Nil means never.
	Gone <-chan struct{}
	// Closing is closed when the Subscriber begins to shut down. Nil means never.
	Closing <-chan struct{}
	// Source is for the Subscriber that made the Delivery and its Republisher.
	Source any

	msg   *message.Message
	ctx   context.Context // of msg when this was attached
	retry *DelayedRetry   // the innermost around the handler
	outer *DelayedRetry   // the outermost
}

type deliveryKey struct{}

// Attach binds the delivery to msg and puts it into the message's context.
// It must be called before msg is handed out.
func (d *Delivery) Attach(msg *message.Message) {
	d.msg, d.ctx, d.retry, d.outer = msg, msg.Context(), nil, nil
	msg.SetContext(context.WithValue(d.ctx, deliveryKey{}, d))
}

// Message returns the message the delivery was attached to.
func (d *Delivery) Message() *message.Message { return d.msg }

// DeliveryOf returns the delivery that belongs to msg. It is nil where msg has
// none, and also where msg merely inherited the context of another message: a
// delivery belongs to its message by pointer, for a UUID may be empty or shared.
func DeliveryOf(ctx context.Context, msg *message.Message) *Delivery {
	if d := deliveryFrom(ctx); d != nil && d.msg == msg {
		return d
	}
	return nil
}

// DeliveryIn returns the delivery in ctx, whichever message it belongs to; nil
// if there is none.
func DeliveryIn(ctx context.Context) *Delivery { return deliveryFrom(ctx) }

func deliveryFrom(ctx context.Context) *Delivery {
	d, _ := ctx.Value(deliveryKey{}).(*Delivery)
	return d
}

// adopt makes a delivery of the metadata of msg, which came from a Pub/Sub that
// attaches none, and attaches it. The live notes count where they name no queue.
func adopt(msg *message.Message) *Delivery {
	d := &Delivery{Notes: ParseNotes("", func(key string) (string, bool) {
		value, ok := msg.Metadata[key]
		return value, ok
	})}
	d.Attach(msg)
	return d
}
