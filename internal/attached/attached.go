// Package attached is the delivery that belongs to a message: a Subscriber puts it into each
// message that it hands out, package middleware keeps there how far the message has come, and the
// Subscriber asks it afterwards.
package attached

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/millpond-go/millpond/internal/clock"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/middleware/header"
)

// Facts are a middleware.Delivery, which documents the fields. Each converts to the other. They are
// filled in before Attach, and only read afterwards; Tracing sets State.Traceparent.
type Facts struct {
	Queue                    string
	Handler, Topic           string
	MessageID, CorrelationID string
	Arrived                  time.Time
	HoldUntil                time.Time
	State                    header.RetryState
	Gone                     <-chan struct{}
	Closing                  <-chan struct{}
	Redelivered              bool
	Probe                    bool
	Given                    func(asked time.Duration) time.Duration
}

// Delivery is the delivery of a message.
type Delivery struct {
	Facts

	// Message is the one that the delivery is attached to; nil before Attach. Only the goroutine that
	// has the message, usually its handler's, may read it.
	Message *message.Message

	// Only package middleware uses these, in the goroutine that has the message.
	Inner, Outer any  // the DelayedRetries around the handler
	HasWaited    bool // asked by every success, so Attach looks it up once
	Adopted      bool // no Subscriber has attached it
	Told         bool // observers know the decision about the message

	// Requeued says that a DelayedRetry has told observers that the message goes back to its queue, so
	// that the Subscriber does not repeat it. Read it after the nack.
	Requeued atomic.Bool

	ctx         context.Context // of the message in Attach
	ids         IDs             // of the message in Attach
	goneWithCtx bool            // Gone is the end of ctx
	entry       context.Context // with which the message entered its first DelayedRetry
	// The Subscriber reads progress from its own goroutine, and entry after it.
	progress atomic.Uint32
}

// Progress says how far a message has come.
type Progress uint32

// The values of Progress, in their order.
const (
	Outside    Progress = iota // before the first DelayedRetry
	Inside                     // in a DelayedRetry, or past it
	Handing                    // its handler has ended, and DelayedRetry hands it over
	HandedOver                 // the broker has confirmed a copy
	Unsettled                  // DelayedRetry could not settle the message, which must not be acked
)

// key is the key of the delivery in a message's context. The comparison of two pointers costs less
// than that of two empty structs.
var key = new(struct{ _ byte })

// Attach binds the delivery to msg and puts it into the message's context. Call it before msg is
// handed out.
func (d *Delivery) Attach(msg *message.Message) {
	*d = Delivery{Facts: d.Facts, Message: msg, ctx: msg.Context()}
	d.ids = d.IDsNow()
	d.goneWithCtx = d.Gone == nil || d.Gone == d.ctx.Done()
	d.HasWaited = d.State.HasWaited()
	msg.SetContext(context.WithValue(d.ctx, key, d))
}

// Of returns the delivery in ctx if it belongs to msg, else nil. A message that inherited the
// context of another one has no delivery: the pointer decides, because UUIDs may be empty or equal.
// A nil msg stands for any message.
func Of(ctx context.Context, msg *message.Message) *Delivery {
	d, _ := ctx.Value(key).(*Delivery)
	if d == nil || msg != nil && d.Message != msg {
		return nil
	}
	return d
}

// Adopt attaches a delivery to a message of a Pub/Sub that attaches none. The state comes from the
// metadata, and counts if it names no queue.
func Adopt(msg *message.Message) *Delivery {
	d := &Delivery{}
	d.State = header.Parse("", func(key string) (string, bool) {
		value, ok := msg.Metadata[key]
		return value, ok
	})
	d.Attach(msg)
	d.Adopted = true
	return d
}

// Enter notes that the message has entered a DelayedRetry with ctx. It is called again if a
// middleware outside repeats its call.
func (d *Delivery) Enter(ctx context.Context) {
	if d.Progress() == Outside {
		d.entry = ctx
	}
	d.Advance(Inside)
}

// Advance notes how far the message has come.
func (d *Delivery) Advance(to Progress) { d.progress.Store(uint32(to)) }

// Progress may be called at any time.
func (d *Delivery) Progress() Progress { return Progress(d.progress.Load()) }

// EntryContext returns the context with which the message entered its first DelayedRetry. Before
// that it is the context of Attach, and nil without Attach. The message's own context is different:
// the handler may replace it, and only the handler's goroutine may read it. EntryContext may be
// called at any time.
func (d *Delivery) EntryContext() context.Context {
	if d.Progress() == Outside {
		return d.ctx
	}
	return d.entry
}

// Ended reports whether the context of Attach is done or the delivery stale. The entry context is
// wrapped several times by the router, and asking it costs more than all the rest; an end that only
// the entry context knows is noticed after the handler.
func (d *Delivery) Ended() bool {
	return d.ctx.Err() != nil || !d.goneWithCtx && d.stale()
}

// errStale is the cause of an interruption if no context is done.
var errStale = errors.New("delivery is stale")

// AttachContext returns the context of the message in Attach.
func (d *Delivery) AttachContext() context.Context { return d.ctx }

// Interruption says why nothing may be published for the delivery any more; nil if it may.
func (d *Delivery) Interruption(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if d.stale() {
		return errStale
	}
	return nil
}

func (d *Delivery) stale() bool {
	select {
	case <-d.Gone:
		return true
	default:
		return false
	}
}

// Attempt returns the number of this attempt, 1 at the first delivery.
func (d *Delivery) Attempt() int {
	return min(max(d.State.Failures, 0), keys.MaxFailures-1) + 1
}

// IDs are the message_id (the UUID if the property is missing), message_uuid and correlation_id
// (Watermill's metadata, else the property) of log lines and events.
type IDs struct{ Message, UUID, Correlation string }

// IDsThen returns the ids of Attach. It may be called at any time.
func (d *Delivery) IDsThen() IDs {
	if d.Message == nil {
		return IDs{Message: d.MessageID, Correlation: d.CorrelationID}
	}
	return d.ids
}

// IDsNow reads the message, which only the goroutine that has it may do: a handler elsewhere may be
// writing the metadata, and reading a map meanwhile ends the process.
func (d *Delivery) IDsNow() IDs {
	uuid := d.Message.UUID
	return IDs{
		Message: cmp.Or(d.MessageID, uuid), UUID: uuid,
		Correlation: cmp.Or(wmiddleware.MessageCorrelationID(d.Message), d.CorrelationID),
	}
}

// usualFields is the number of fields of the line about a retry.
const usualFields = 10

// LogFields returns the fields of each log line about the delivery. With IDsThen it may be called
// at any time, also while a handler changes the message. The caller owns the map.
func (d *Delivery) LogFields(ids IDs) watermill.LogFields {
	fields := make(watermill.LogFields, usualFields)
	fields["attempt"], fields["message_id"] = d.Attempt(), ids.Message
	if d.Message != nil {
		fields["message_uuid"] = ids.UUID
	}
	if ids.Correlation != "" {
		fields["correlation_id"] = ids.Correlation
	}
	return fields
}

// Place is where a message is handled.
type Place struct{ Handler, Queue, Topic string }

// Place returns the router's names in ctx, else those of the delivery.
func (d *Delivery) Place(ctx context.Context) Place {
	return Place{
		Handler: cmp.Or(message.HandlerNameFromCtx(ctx), d.Handler),
		Queue:   d.Queue,
		Topic:   cmp.Or(message.SubscribeTopicFromCtx(ctx), d.Topic),
	}
}

// Times are the times of a middleware.Event, which documents them.
type Times struct{ Age, LastDelay, DelayMeasured time.Duration }

// Times returns the times at a time.
func (d *Delivery) Times(at time.Time) (t Times) {
	state := &d.State
	if !state.FirstFailure.IsZero() {
		t.Age = at.Sub(clock.NotAfter(state.FirstFailure, at))
	}
	if !state.WaitingSince.IsZero() {
		t.LastDelay = cmp.Or(state.Snoozed, state.Delay)
		arrived := d.Arrived
		if arrived.IsZero() {
			arrived = at
		}
		t.DelayMeasured = arrived.Sub(clock.NotAfter(state.WaitingSince, arrived))
	}
	return t
}
