package middleware

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/millpond-go/millpond/middleware/header"
)

// Delivery describes the delivery behind a message. The Subscriber fills it in before
// Attached.Attach, and afterwards everybody only reads it; SetTraceparent is the one
// exception. Of a message of another Pub/Sub the middleware makes one from the metadata.
type Delivery struct {
	// Queue is the AMQP queue that the message was consumed from.
	Queue string
	// Handler and Topic name the handler and its topic where no router does, as in tests. A router's
	// names come first.
	Handler, Topic string
	// MessageID and CorrelationID are the properties of that name, for log lines and
	// events. They are empty if the delivery has none.
	MessageID, CorrelationID string
	// Arrived is when this process received the delivery.
	Arrived time.Time
	// HoldUntil is when the last try to hand the message over may begin, because the
	// broker takes the delivery back soon after that. Zero means 25 minutes after Arrived.
	HoldUntil time.Time
	// State is the retry state that the message came with. At attempt 1 it holds no
	// failure. The Subscriber adds the origin and, if the message expires, the deadline.
	State header.RetryState
	// Gone is closed when the delivery is stale: its channel is closed, or the broker has
	// the message back. A copy that is published later is a duplicate. Nil means never.
	Gone <-chan struct{}
	// Closing is closed when the Subscriber begins to shut down. Nil means never.
	Closing <-chan struct{}
	// Redelivered says that the broker delivered the message before and got it back
	// without an ack. See DeduplicationKey.
	Redelivered bool
	// Probe says that the Subscriber has stopped consuming because of a Budget with Brake, and
	// that this message finds out whether the downstream works.
	Probe bool
	// Given returns how long a message waits if it asks for a delay: never shorter, and
	// longer if no wait queue has exactly that delay. The limits on age, expiration and
	// Snooze count this time. Many goroutines call Given at once. Nil means that a message
	// waits exactly as long as it asks.
	Given func(asked time.Duration) time.Duration
}

// givenBy returns how long a message waits that asks for a delay; given may be nil.
func givenBy(given func(time.Duration) time.Duration, asked time.Duration) time.Duration {
	if given == nil {
		return asked
	}
	return max(given(asked), asked)
}

// Attached is a Delivery that belongs to a message, and knows how far the message has come.
// A Subscriber puts one into each message that it hands out, and asks it afterwards.
type Attached struct {
	Delivery

	msg *message.Message
	ctx context.Context // of msg in Attach
	ids ids             // of msg in Attach

	// Every success asks for these two, so Attach looks them up once.
	goneWithCtx bool // Gone is the end of ctx
	hasWaited   bool

	adopted bool // no Subscriber has attached it

	retry, outer *DelayedRetry // the innermost and the outermost around the handler

	told  told
	entry context.Context // of msg when it first entered a DelayedRetry
	// The Subscriber reads progress from its own goroutine, and entry after it.
	progress atomic.Uint32
}

// The values of Attached.progress.
const (
	outside    uint32 = iota // before the first DelayedRetry
	inside                   // in a DelayedRetry, or past it
	handing                  // its handler has ended, and DelayedRetry hands it over
	handedOver               // the broker has confirmed a copy
	unsettled                // DelayedRetry returned an error because it could not settle the message
)

// attachedKey is the key of the delivery in a message's context. The comparison of two pointers
// costs less than that of two empty structs.
var attachedKey = new(struct{ _ byte })

// Attach binds the delivery to msg and puts it into the message's context. Call it before
// msg is handed out.
func (d *Attached) Attach(msg *message.Message) {
	*d = Attached{Delivery: d.Delivery, msg: msg, ctx: msg.Context()}
	d.ids = d.idsNow()
	d.goneWithCtx = d.Gone == nil || d.Gone == d.ctx.Done()
	d.hasWaited = d.State.HasWaited()
	msg.SetContext(context.WithValue(d.ctx, attachedKey, d))
}

// DeliveryOf returns the delivery in ctx if it belongs to msg, else nil. A message that
// inherited the context of another one has no delivery: the pointer decides, because UUIDs
// may be empty or equal. A nil msg stands for any message.
func DeliveryOf(ctx context.Context, msg *message.Message) *Attached {
	d := deliveryIn(ctx)
	if d == nil || msg != nil && d.msg != msg {
		return nil
	}
	return d
}

func deliveryIn(ctx context.Context) *Attached {
	d, _ := ctx.Value(attachedKey).(*Attached)
	return d
}

// adopt attaches a delivery to a message of a Pub/Sub that attaches none. The state comes
// from the metadata, and counts if it names no queue.
func adopt(msg *message.Message) *Attached {
	d := &Attached{}
	d.State = header.Parse("", func(key string) (string, bool) {
		value, ok := msg.Metadata[key]
		return value, ok
	})
	d.Attach(msg)
	d.adopted = true
	return d
}

// Message returns the message that the delivery is attached to. Only the goroutine that has
// the message, usually its handler's, may read the message.
func (d *Attached) Message() *message.Message { return d.msg }

// SetTraceparent sets the span that the state of the message names from now on, in the form
// of W3C Trace Context. Only the goroutine that has the message may call it.
func (d *Attached) SetTraceparent(traceparent string) { d.State.Traceparent = traceparent }

// EntryContext returns the context with which the message entered its first DelayedRetry.
// Before that it is the context of Attach, and nil without Attach. The message's own context
// is different: the handler may replace it, and only the handler's goroutine may read it.
// EntryContext may be called at any time.
func (d *Attached) EntryContext() context.Context {
	if d.progress.Load() == outside {
		return d.ctx
	}
	return d.entry
}

// Handler returns the router's name of the handler that has the message. It is empty before
// the message enters a DelayedRetry. It may be called at any time.
func (d *Attached) Handler() string {
	if d.progress.Load() == outside {
		return ""
	}
	return message.HandlerNameFromCtx(d.entry)
}

// Unsettled reports whether DelayedRetry returned an error because it could not settle the
// message. Such a message must not be acked. It may be called at any time.
func (d *Attached) Unsettled() bool { return d.progress.Load() == unsettled }

// IsHandedOver reports whether DelayedRetry hands the message over, or has done so: the
// handler has ended. A Republisher may ask while it is called for the message.
func (d *Attached) IsHandedOver() bool { return d.progress.Load() >= handing }

// isOver reports whether the broker has confirmed a copy.
func (d *Attached) isOver() bool { return d.progress.Load() == handedOver }

// ToldRequeued reports whether a DelayedRetry has told its observers that the message goes
// back to its queue (EventRequeued), so that the Subscriber does not repeat it. Ask after the
// nack; it may be called at any time.
func (d *Attached) ToldRequeued() bool { return d.told.requeued.Load() }

// LogFields returns the fields of each log line about the delivery: attempt, message_id
// (the UUID if the property is missing), correlation_id (Watermill's metadata, else the
// property), and message_uuid once the delivery is attached. The values are from Attach,
// so it may be called at any time, also while a handler changes the message. The caller owns
// the map.
func (d *Attached) LogFields() watermill.LogFields { return d.logFields(d.idsThen()) }

// usualFields is the number of fields of the line about a retry.
const usualFields = 10

func (d *Attached) logFields(i ids) watermill.LogFields {
	fields := make(watermill.LogFields, usualFields)
	fields["attempt"], fields["message_id"] = attemptOf(d), i.message
	if d.msg != nil {
		fields["message_uuid"] = i.uuid
	}
	if i.correlation != "" {
		fields["correlation_id"] = i.correlation
	}
	return fields
}

// Event returns an event of the given kind with everything that the delivery knows. It is
// for Subscribers, which decide some things without a DelayedRetry. ctx is the message's, and
// holds the names that the router added; see EntryContext. Event does not read the message,
// and may be called at any time.
func (d *Attached) Event(ctx context.Context, kind EventKind, at time.Time) Event {
	return d.event(ctx, kind, at, d.idsThen())
}

func (d *Attached) event(ctx context.Context, kind EventKind, at time.Time, i ids) Event {
	where, state, attempt := placeOf(ctx, d), &d.State, attemptOf(d)
	e := Event{
		Kind: kind, At: at,
		Handler: where.handler, Queue: where.queue, Topic: where.topic,
		Attempt: attempt, Failures: attempt - 1, Interruptions: state.Interruptions,
		MessageID: i.message, MessageUUID: i.uuid, CorrelationID: i.correlation,
	}
	if !state.FirstFailure.IsZero() {
		e.Age = at.Sub(notAfter(state.FirstFailure, at))
	}
	if !state.WaitingSince.IsZero() {
		e.LastDelay = cmp.Or(state.Snoozed, state.Delay)
		arrived := d.Arrived
		if arrived.IsZero() {
			arrived = at
		}
		e.DelayMeasured = arrived.Sub(notAfter(state.WaitingSince, arrived))
	}
	return e
}

// ids are the message_id, message_uuid and correlation_id of log lines and events.
type ids struct{ message, uuid, correlation string }

// idsThen returns the ids of Attach. It may be called at any time.
func (d *Attached) idsThen() ids {
	if d.msg == nil {
		return ids{message: d.MessageID, correlation: d.CorrelationID}
	}
	return d.ids
}

// idsNow reads the message, which only the goroutine that has it may do: a handler elsewhere
// may be writing the metadata, and reading a map meanwhile ends the process.
func (d *Attached) idsNow() ids {
	uuid := d.msg.UUID
	return ids{
		message: cmp.Or(d.MessageID, uuid), uuid: uuid,
		correlation: cmp.Or(wmiddleware.MessageCorrelationID(d.msg), d.CorrelationID),
	}
}

// enter notes that the delivery is in a DelayedRetry. After the first time it is called again if
// a middleware outside repeats its call.
func (d *Attached) enter(ctx context.Context) {
	if d.progress.Load() == outside {
		d.entry = ctx
	}
	d.progress.Store(inside)
}

// ended reports whether the context of Attach is done or the delivery stale. The entry
// context is wrapped several times by the router, and asking it costs more than all the
// rest; an end that only the entry context knows is noticed after the handler.
func (d *Attached) ended() bool {
	return d.ctx.Err() != nil || !d.goneWithCtx && isClosed(d.Gone)
}

// interruption says why nothing may be published for the delivery any more; nil if it may.
func (d *Attached) interruption(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if isClosed(d.Gone) {
		return errStale
	}
	return nil
}

func isAcked(msg *message.Message) bool { return isClosed(msg.Acked()) }

func isNacked(msg *message.Message) bool { return isClosed(msg.Nacked()) }

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}
