package consumer

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/internal/clock"
	"github.com/millpond-go/millpond/internal/hold"
	"github.com/millpond-go/millpond/internal/seam"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// This file has the decisions of a Subscription without a DelayedRetry.

func (d *delivery) dropUndecodable(err error) {
	// The marshaler and the text of its error are the user's: ErrorText cuts the text.
	d.sub.logger.Error("Message cannot be decoded, dead-lettering it",
		errors.New(middleware.Event{Err: err}.ErrorText()), d.logFields())
	state := d.State
	state.Reason, state.DeadAt = header.ReasonUndecodable, clock.Now()
	state.Error, state.Class = err.Error(), header.ClassPermanent
	d.settle("Undecodable message cannot be dead-lettered, holding it",
		func(ctx context.Context) error {
			return d.deadLetter(ctx, state)
		}, func() { d.observeSettled(middleware.EventDeadLettered, state, err) })
}

// nacked settles a message that the router has nacked, because an outer middleware failed or
// because the handler's messages could not be published. The message is snoozed. At shutdown
// it goes straight back to its queue.
func (d *delivery) nacked() {
	if d.ctx.Err() != nil {
		if !d.on.ch.IsClosed() { // else the broker has the delivery back
			d.abandon()
		}
		d.observeRequeued(context.Cause(d.ctx), 0, 0)
		return
	}
	if d.sub.stop.Err() != nil || d.sub.cfg.givesStraightBack() {
		if !d.putBack() {
			d.observeRequeued(errNacked, 0, 0)
		}
		return
	}
	if len(d.sub.cfg.Retries) > 0 && d.EntryContext() == d.ctx {
		d.sub.forgot.Do(func() {
			d.sub.logger.Error("Warning: a message was nacked that has not passed the middleware of the "+
				"Subscriber's DelayedRetry, so it comes back each second, and no attempt is counted: add "+
				"the middleware to the router or to the handler, or find the one outside it that fails",
				seam.ErrNotYet, d.logFields())
		})
	}
	state := d.snoozed()
	d.settle("Nacked message cannot be snoozed, holding it", func(ctx context.Context) error {
		again := state
		return d.republish(ctx, MinSnooze, &again)
	}, func() { d.observeSettled(middleware.EventSnoozed, state, nil) })
}

// snoozed returns the state of a message that is snoozed: shortly, but no shorter than the
// rest of a wait in rounds. The failures and their history do not change.
func (d *delivery) snoozed() header.RetryState {
	state := d.State
	state.NotBefore = time.Time{}
	state.Snoozed = max(MinSnooze, d.remaining())
	state.WaitingSince = clock.Now()
	return state
}

// settle acks the delivery when handOver has confirmed a durable copy. It holds the delivery
// while handOver fails, and gives the delivery back if handOver does not succeed. Observers
// and hooks are told between confirm and ack: by settled, which may be nil.
func (d *delivery) settle(holding string, handOver func(context.Context) error, settled func()) {
	tries, held := 0, time.Duration(0)
	d.life.enter(deciding)
	err := hold.Do(d.ctx, hold.Options{
		Stop:  d.Closing,
		Until: d.HoldUntil,
		Failed: func(err error, n int, t time.Duration) {
			tries, held = n, t
			d.observeMachinery(middleware.EventFailing, func(e *middleware.Event) {
				e.Err, e.Tries, e.Held = err, n, t
			})
		},
		Recovered: func(n int, t time.Duration) {
			d.observeMachinery(middleware.EventRecovered, func(e *middleware.Event) {
				e.Tries, e.Held = n, t
			})
		},
		Failing: func(err error, _ int, held time.Duration) {
			d.sub.logger.Error(holding, err, d.logFields().Add(watermill.LogFields{"held": held}))
		},
	}, func() error { return handOver(context.WithoutCancel(d.ctx)) })
	if err != nil {
		d.sub.logger.Error("Message goes back to its queue", err, d.logFields())
		if errors.Is(err, hold.ErrLimit) {
			if d.astray != nil && d.deadLetterAstray(err) || d.astray == nil && d.snoozeAtLast() {
				return
			}
			d.sub.suspend(d)
		}
		d.giveBack()
		d.observeRequeued(err, tries, held)
		return
	}
	d.ackAfter(settled)
}

// ackAfter acks the delivery, of which the broker has confirmed a copy, after settled, which may
// be nil. settled runs code of the user, which may end the goroutine.
func (d *delivery) ackAfter(settled func()) {
	defer d.ack()
	if settled != nil {
		settled()
	}
}

// snoozeAtLast snoozes a message that could not be handed over for as long as it may be
// held, and reports whether that worked. Only its own target may be out of order. A publish
// whose outcome is open is given up, as it would be if the delivery were given back, which
// counts against the delivery limit.
func (d *delivery) snoozeAtLast() bool {
	d.pending.Release()
	state := d.snoozed()
	if d.republish(context.WithoutCancel(d.ctx), state.Snoozed, &state) != nil {
		return false
	}
	d.ackAfter(func() { d.observeSettled(middleware.EventSnoozed, state, nil) })
	return true
}

// observe tells the observers of a decision of the Subscription. set completes the event.
func (d *delivery) observe(kind middleware.EventKind, set func(*middleware.Event)) {
	observers := d.sub.cfg.Observers
	if observers == nil {
		return
	}
	ctx := d.contextOfUser()
	at := time.Now().UTC()
	ids, attempt, times := d.IDsThen(), d.Attempt(), d.Times(at)
	e := middleware.Event{
		Kind: kind, At: at,
		Handler: d.Place(ctx).Handler, Queue: d.Queue, Topic: d.sub.cfg.Topic,
		Attempt: attempt, Failures: attempt - 1, Interruptions: d.State.Interruptions,
		MessageID: ids.Message, MessageUUID: ids.UUID, CorrelationID: ids.Correlation,
		Age: times.Age, LastDelay: times.LastDelay, DelayMeasured: times.DelayMeasured,
	}
	set(&e)
	observers.Tell(ctx, e)
}

// observeRequeued tells of a message that goes back to its queue, unless a DelayedRetry has
// told of it.
func (d *delivery) observeRequeued(err error, tries int, held time.Duration) {
	if d.Requeued.Load() {
		return
	}
	d.observe(middleware.EventRequeued, func(e *middleware.Event) {
		e.Err, e.Tries, e.Held = err, tries, held
	})
}

// logFields are the fields of lines about the message. One that the marshaler has not seen yet has
// the UUID that watermill-amqp's marshalers write.
func (d *delivery) logFields() watermill.LogFields {
	ids := d.IDsThen()
	if ids.Message == "" {
		ids.Message, _ = d.raw.Headers[wire.UUIDHeader].(string)
	}
	return d.LogFields(ids)
}

// contextOfUser returns the context for observers and hooks. It is not the context of the
// message, because the handler may be writing that.
func (d *delivery) contextOfUser() context.Context {
	if ctx := d.EntryContext(); ctx != nil {
		return ctx
	}
	return d.ctx // never handed out
}

// observeSettled tells of a message that was handed over as kind says. It tells of a dead
// letter if the headers of the message left no room for a retry, or if a dead letter of an
// earlier try was confirmed late.
func (d *delivery) observeSettled(kind middleware.EventKind, state header.RetryState, err error) {
	if state.Reason == "" && d.died != nil {
		state = *d.died
		if state.Reason == header.ReasonOversized {
			err = ErrTooLarge
		}
	}
	if state.Reason != "" {
		kind = middleware.EventDeadLettered
		defer d.tellHooks(state, err)
	}
	d.observe(kind, func(e *middleware.Event) {
		e.Err, e.Reason, e.Interruptions = err, state.Reason, state.Interruptions
		if kind == middleware.EventDeadLettered {
			e.Class = state.Class
			return
		}
		e.DelayAsked, e.DelayGiven = MinSnooze, d.republished.Delay
	})
}

// lateHook is how long hooks have for a message that was handed over when its hold was over.
const lateHook = time.Second

// tellHooks tells the hooks of a dead letter and waits for them, at most until the hold limit,
// until the delivery is stale or the drain is over. A hook that hangs must not hold up Close, nor
// the ack until the broker delivers the message again, which would make another dead letter. The
// message is made here, because a marshaler may refuse it, or end the process, and a handler may
// still write its own.
func (d *delivery) tellHooks(state header.RetryState, err error) {
	hooked := func(r seam.Retry) bool { return r.Dead != nil }
	if !slices.ContainsFunc(d.sub.cfg.Retries, hooked) {
		return
	}
	msg := message.NewMessage(d.raw.MessageId, bytes.Clone(d.raw.Body))
	for key, value := range d.raw.Headers {
		msg.Metadata[key] = wire.Text(value)
	}
	left := max(time.Until(d.HoldUntil), lateHook)
	ctx, end := context.WithTimeout(d.contextOfUser(), left)
	defer end()
	msg.SetContext(ctx)
	told := make(chan struct{})
	go func() {
		defer close(told)
		for _, r := range d.sub.cfg.Retries {
			if hooked(r) {
				r.Dead(ctx, msg, d.Queue, d.sub.cfg.Topic, err, state)
			}
		}
	}()
	limit := time.NewTimer(left)
	defer limit.Stop()
	select {
	case <-told:
	case <-limit.C:
		d.sub.logger.Error("Dead-letter hook did not return, acking its message without it",
			errHookHangs, d.logFields())
	case <-d.ctx.Done():
	}
}

var errHookHangs = errors.New("the hook must return when its context is done")

// observeMachinery tells of a hand-over that fails or has recovered. After a DelayedRetry
// that gave up, the Subscription tries once more: only a success of that try is news.
func (d *delivery) observeMachinery(kind middleware.EventKind, set func(*middleware.Event)) {
	if !d.Requeued.Load() {
		d.observe(kind, set)
	}
}
