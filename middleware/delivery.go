package middleware

import (
	"cmp"
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// Delivery is what the middleware and the accessors must know of the delivery
// behind a message. The Subscriber attaches one to every message it hands out;
// for a message of another Pub/Sub the middleware makes one of the metadata.
//
// The fields are set before Attach and only read afterwards, but for Republished and
// Notes.Traceparent.
type Delivery struct {
	// Queue is the AMQP queue the message was consumed from.
	Queue string
	// MessageID and CorrelationID are the properties of that name, for the log
	// lines: a producer that is not Watermill puts them nowhere else. Empty where
	// the delivery has none.
	MessageID, CorrelationID string
	// Arrived is when this process received the delivery.
	Arrived time.Time
	// HoldUntil is when the last try to hand the message over may begin, because
	// the broker takes the delivery back soon after that. Zero means 25 minutes
	// after Arrived.
	HoldUntil time.Time
	// Notes are the retry state the message came with. At attempt 1 they hold
	// no failure; the Subscriber fills in the origin and, if the message has an
	// expiration, the deadline.
	State header.RetryState
	// Gone is closed when the delivery is stale: its channel is closed or the
	// broker has been given the message back. Whatever is published after that
	// is a duplicate. Nil means never.
	Gone <-chan struct{}
	// Closing is closed when the Subscriber begins to shut down. Nil means never.
	Closing <-chan struct{}
	// Redelivered is set where the broker has delivered the message before, and
	// has it back from someone who did not settle it. See DeduplicationKey.
	Redelivered bool
	// Source is for the Subscriber that made the Delivery and its Republisher.
	Source any
	// Given returns how long the message would wait if it asked for a delay: never
	// shorter, and longer where no wait queue has exactly that delay. Limits on age,
	// on the message's own expiration and of Snooze are compared with the result. Many
	// goroutines call it at once. Nil means that a message waits exactly as asked.
	Given func(asked time.Duration) time.Duration
	// Republished is what the Republisher made of the last Republish. One that knows
	// sets it before it returns nil, in the same goroutine.
	Republished Republished

	msg   *message.Message
	ctx   context.Context // of msg when this was attached
	retry *DelayedRetry   // the innermost around the handler
	outer *DelayedRetry   // the outermost

	attempt attempt
	arrived ids // of msg when this was attached

	// What is asked of every success is looked up once, in Attach.
	goneWithCtx bool // Gone is the end of ctx
	returned    bool // Notes.returned

	handedOver   bool            // the broker has confirmed a copy
	entry        context.Context // of msg when it first entered a DelayedRetry
	progress     uint32          // atomic; entry is read after it only
	toldReturned uint32          // atomic; 1 if observers were told that the message goes back to its queue
}

// Republished is what became of a message that was republished.
type Republished struct {
	// Delay is what the wait queue makes of the delay that was asked for; all
	// rounds together where it is waited for in several.
	Delay time.Duration
	// Reason is set where the message could only be dead-lettered.
	Reason header.Reason
}

// givenBy returns how long a message would wait; given is Delivery.Given and may be nil.
func givenBy(given func(time.Duration) time.Duration, asked time.Duration) time.Duration {
	if given == nil {
		return asked
	}
	return max(given(asked), asked)
}

// differs reports whether a given delay is longer than asked by more than a tenth.
func differs(asked, given time.Duration) bool { return given-asked > asked/10 }

type deliveryKey struct{}

// Attach binds the delivery to msg and puts it into the message's context.
// It must be called before msg is handed out.
func (d *Delivery) Attach(msg *message.Message) {
	d.msg, d.ctx, d.retry, d.outer, d.attempt = msg, msg.Context(), nil, nil, attempt{}
	d.handedOver, d.entry, d.progress, d.toldReturned = false, nil, waiting, 0
	d.arrived = d.idsNow()
	d.goneWithCtx, d.returned = d.Gone == nil || d.Gone == d.ctx.Done(), d.State.HasWaited()
	msg.SetContext(context.WithValue(d.ctx, deliveryKey{}, d))
}

// Message returns the message the delivery was attached to. Only the goroutine that
// has the message, as a rule that of its handler, may read it.
func (d *Delivery) Message() *message.Message { return d.msg }

// LogFields returns the fields of each log line about the delivery: its message_id,
// which is the UUID of a message without that property; its correlation_id, which is
// Watermill's metadata or else the property, if there is one; the message_uuid once
// it is attached; the attempt. They are those that the message was attached with:
// it may be called at any time, also while a handler changes the message. The caller
// owns the map.
func (d *Delivery) LogFields() watermill.LogFields { return d.logFields(d.ids()) }

func (d *Delivery) logFields(i ids) watermill.LogFields {
	fields := watermill.LogFields{"attempt": attemptOf(d), "message_id": i.message}
	if d.msg != nil {
		fields["message_uuid"] = i.uuid
	}
	if i.correlation != "" {
		fields["correlation_id"] = i.correlation
	}
	return fields
}

// ids are what log lines and observers call message_id, message_uuid and
// correlation_id.
type ids struct{ message, uuid, correlation string }

// ids returns those that the message was attached with. It may be called at any
// time.
func (d *Delivery) ids() ids {
	if d.msg == nil {
		return ids{message: d.MessageID, correlation: d.CorrelationID}
	}
	return d.arrived
}

// idsNow returns those that the message has now. It reads the message, which only
// the goroutine that has it may do: a handler that runs elsewhere may be writing
// the metadata, and a map that is read meanwhile ends the process.
func (d *Delivery) idsNow() ids {
	uuid := d.msg.UUID
	return ids{
		message: cmp.Or(d.MessageID, uuid), uuid: uuid,
		correlation: cmp.Or(wmiddleware.MessageCorrelationID(d.msg), d.CorrelationID),
	}
}

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
	d := &Delivery{State: header.Parse("", func(key string) (string, bool) {
		value, ok := msg.Metadata[key]
		return value, ok
	})}
	d.Attach(msg)
	return d
}
