package topology

import (
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millpond-go/millpond/internal/observe"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// newObservers returns nil where nobody observes.
func newObservers(opts clientOptions) *observe.List[middleware.Event] {
	return observe.NewList(func(value any) {
		opts.logger.Error("Observer panicked", nil, watermill.LogFields{"value": fmt.Sprintf("%.512v", value)})
	}, opts.tell...)
}

// observe tells the observers what the Subscriber has decided by itself; set
// completes the event.
func (d *delivery) observe(kind middleware.EventKind, set func(*middleware.Event)) {
	observers := d.sub.subscriber.client.observers
	if observers == nil {
		return
	}
	// Not the context of the message, because the handler may be writing it.
	ctx := d.EntryContext()
	if ctx == nil { // never handed out
		ctx = d.ctx
	}
	e := d.Event(ctx, kind, time.Now().UTC())
	e.Topic = d.sub.topic
	set(&e)
	observers.Tell(ctx, e)
}

// observeReturned tells of a message that goes back to its queue, unless a
// DelayedRetry has.
func (d *delivery) observeReturned(err error, tries int, held time.Duration) {
	if d.ToldRequeued() {
		return
	}
	d.observe(middleware.EventRequeued, func(e *middleware.Event) { e.Err, e.Tries, e.Held = err, tries, held })
}

// observeSettled tells of a message that was handed over as kind says, which
// could be something else if its headers left no room.
func (d *delivery) observeSettled(kind middleware.EventKind, notes header.RetryState, err error) {
	if notes.Reason == "" {
		notes.Reason = d.republished.Reason
	}
	if notes.Reason != "" {
		kind = middleware.EventDeadLettered
	}
	d.observe(kind, func(e *middleware.Event) {
		e.Err, e.Reason, e.Interruptions = err, notes.Reason, notes.Interruptions
		if kind == middleware.EventDeadLettered {
			e.Class = notes.Class
			return
		}
		e.DelayAsked, e.DelayGiven = minSetAside, d.republished.Delay
	})
}

// observeMachinery tells of a hand-over that fails or has recovered. After a
// DelayedRetry that gave up one more try is made, of which only a success is news.
func (d *delivery) observeMachinery(kind middleware.EventKind, set func(*middleware.Event)) {
	if !d.ToldRequeued() {
		d.observe(kind, set)
	}
}
