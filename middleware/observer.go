package middleware

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millpond-go/millpond/internal/observe"
)

// Observer is told of every decision: it is what metrics, traces and other ways
// to look at retries are made of.
//
// Observe runs in the handler's goroutine, after the fact and before the message
// is settled: it should be quick. ctx has the values of the message's context.
// It changes nothing about the message: one that panics is logged, once a minute
// at most. It may be called from many goroutines at once.
type Observer interface {
	Observe(ctx context.Context, e Event)
}

// ObserverFunc is a function that is an Observer.
type ObserverFunc func(ctx context.Context, e Event)

// Observe calls f.
func (f ObserverFunc) Observe(ctx context.Context, e Event) { f(ctx, e) }

// WithObserver adds observers, which are told of each event in their order. What
// the Subscriber decides by itself it tells its own: give the same observers to
// topology.WithObserver, and nothing is told twice. Of two DelayedRetry around a
// handler the one that decides tells its own observers.
//
// A dead letter with its history and the message itself is what
// WithDeadLetterHook is for: an Event is small, for there is one of each message.
// Without an observer no event is made.
func WithObserver(observers ...Observer) Option {
	return func(s *settings) {
		for i, o := range observers {
			if isNil(o) {
				s.refuse("WithObserver: observer %d is nil", i)
				continue
			}
			s.tell = append(s.tell, o.Observe)
		}
	}
}

// newObservers returns nil where nobody observes.
func (s *settings) newObservers() *observe.List[Event] {
	logger := s.logger
	return observe.NewList(func(value any) {
		logger.Error("Observer panicked", nil, watermill.LogFields{"value": valueText(value)})
	}, s.tell...)
}

// attempt is what observers are told of one call of the handler.
type attempt struct {
	began  time.Time // zero if nobody observes
	called bool
	took   time.Duration
	// told is set once a DelayedRetry has decided about the message.
	told bool
}

// ended notes that the handler has returned.
func (a *attempt) ended() {
	if !a.began.IsZero() {
		a.called, a.took = true, time.Since(a.began)
	}
}

// ToldRequeued reports whether a DelayedRetry has told its observers that the
// message goes back to its queue (EventRequeued), so that the Subscriber does not
// tell it again. It is asked once the message is nacked, and may be called at any
// time.
func (d *Delivery) ToldRequeued() bool { return atomic.LoadUint32(&d.toldReturned) != 0 }

// observe tells the observers of an event, which set completes. settle is called
// if an observer ends the goroutine, for nobody else would settle the message.
func (r *DelayedRetry) observe(ctx context.Context, d *Delivery, kind EventKind, settle func() bool, set func(*Event)) {
	if r.observers == nil {
		return
	}
	// This goroutine has the message, so it may read it.
	e := d.event(ctx, kind, r.now().UTC(), d.idsNow())
	e.Called, e.Duration = d.attempt.called, d.attempt.took
	set(&e)
	if e.Err != nil && r.errorText != nil {
		e.text = r.textOf(e.Err)
	}
	r.tellAll(ctx, e, settle)
}

func (r *DelayedRetry) tellAll(ctx context.Context, e Event, settle func() bool) {
	returned := false
	defer func() {
		if !returned {
			settle()
		}
	}()
	r.observers.Tell(ctx, e)
	returned = true
}

// observeHandled tells of a handler that succeeded. If an observer ends the
// goroutine, what the handler produced is lost with it: the message is nacked.
func (r *DelayedRetry) observeHandled(ctx context.Context, d *Delivery) {
	if d.attempt.told { // handed over by an inner DelayedRetry, or told by it
		return
	}
	d.attempt.told = true
	e := d.event(ctx, EventHandled, r.now().UTC(), d.idsNow())
	e.Called, e.Duration = d.attempt.called, d.attempt.took
	r.tellAll(ctx, e, d.msg.Nack)
}

// observeUnsettled tells of a message that goes back to its queue.
func (r *DelayedRetry) observeUnsettled(ctx context.Context, d *Delivery, err *unsettledError) {
	if r.observers == nil {
		return
	}
	d.attempt.told = true
	atomic.StoreUint32(&d.toldReturned, 1)
	r.observe(ctx, d, EventRequeued, d.msg.Nack, func(e *Event) {
		e.Err, e.Tries, e.Held = err, err.tries, err.held
	})
}

// observeHandedOver tells of a message that the broker has confirmed.
func (r *DelayedRetry) observeHandedOver(ctx context.Context, d *Delivery, t *transfer) {
	kind := EventRetried
	switch {
	case t.notes.Reason != "":
		kind = EventDeadLettered
	case t.aside:
		kind = EventSnoozed
	}
	r.observe(ctx, d, kind, d.msg.Ack, func(e *Event) {
		e.At, e.Err, e.Reason, e.OverBudget = t.now, t.err, t.notes.Reason, t.overBudget
		e.Failures = t.notes.Failures
		if !t.aside {
			e.Class = t.notes.Class
		}
		if !t.notes.FirstFailure.IsZero() {
			e.Age = t.now.Sub(notAfter(t.notes.FirstFailure, t.now))
		}
		if kind != EventDeadLettered {
			e.DelayAsked = t.delay
			e.DelayGiven = max(d.Republished.Delay, givenBy(d.Given, t.delay))
		}
	})
}

// observeFailing and observeRecovered tell of the machinery. The message is
// nacked by orNack if an observer ends the goroutine.
func (r *DelayedRetry) observeFailing(ctx context.Context, d *Delivery, err error, tries int, held time.Duration) {
	r.observe(ctx, d, EventFailing, d.msg.Nack, func(e *Event) { e.Err, e.Tries, e.Held = err, tries, held })
}

func (r *DelayedRetry) observeRecovered(ctx context.Context, d *Delivery, tries int, held time.Duration) {
	r.observe(ctx, d, EventRecovered, d.msg.Ack, func(e *Event) { e.Tries, e.Held = tries, held })
}
