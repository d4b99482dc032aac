package middleware

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/millpond-go/millpond/internal/attached"
	"github.com/millpond-go/millpond/internal/clock"
	"github.com/millpond-go/millpond/internal/excerpt"
	"github.com/millpond-go/millpond/middleware/header"
)

// The functions of this file tell of an attempt: log line and event together. No line holds a
// payload or a stack, and every error text is cut.

// reportHandled tells of a handler that succeeded. If an observer ends the goroutine, the
// produced messages are lost with it, so the message is nacked.
func (a *attempt) reportHandled() {
	// An inner DelayedRetry that has handed it over has counted a failure.
	if len(a.r.budgets) > 0 && a.d.Progress() != attached.HandedOver {
		a.countHandled()
	}
	if a.r.events == nil || a.d.Told { // an inner DelayedRetry has told of it
		return
	}
	a.d.Told = true
	a.tell(a.event(EventHandled), a.d.Message.Nack)
}

// reportSelfSettled tells of a handler that failed and acked or nacked the message itself.
func (f *failed) reportSelfSettled() {
	if isAcked(f.d.Message) {
		f.logger.Error("Handler failed after its message was acked: the message is lost and cannot "+
			"be retried; remove InstantAck, and do not ack in a handler", f.cutError(), nil)
	} else {
		f.logger.Info("Handler failed and nacked the message itself: the message is not retried",
			f.withError(nil))
	}
	if f.r.events != nil {
		e := f.event(EventSelfSettled)
		e.Err = f.err
		f.tell(e, f.d.Message.Nack)
	}
}

func (f *failed) logInterrupted(cause error) {
	if errors.Is(cause, context.DeadlineExceeded) {
		f.logger.Error("Message context reached its deadline: no attempt is counted; "+
			"a Timeout middleware belongs inside DelayedRetry, not around it", f.cutError(), nil)
		return
	}
	f.logger.Info("Handling was interrupted: no attempt is counted", f.withError(watermill.LogFields{
		"cause": excerpt.Of(errorText(cause), maxLogBytes),
	}))
}

// reportRequeued tells of a message that goes back to its queue, and returns the error for
// the router.
func (f *failed) reportRequeued(err *unsettledError) error {
	err.msg, err.handler, err.text = f.d.Message, f.err, excerpt.Of(f.text, maxLogBytes)
	if f.r.events != nil {
		f.d.Told = true
		f.d.Requeued.Store(true)
		e := f.event(EventRequeued)
		e.Err, e.Tries, e.Held = err, err.tries, err.held
		f.tell(e, f.d.Message.Nack)
	}
	return err
}

// logDecision tells of code of the user that broke its contract, and of a snooze that is
// refused.
func (f *failed) logDecision(o *outcome) {
	for _, fault := range o.faults {
		f.logger.Error("Retry decision: "+fault.what, f.cutError(),
			watermill.LogFields{"value": valueText(fault.value)})
	}
	if o.overdue {
		f.logger.Info("Message cannot be snoozed any longer: the attempt counts as a failure",
			watermill.LogFields{"first_seen": clock.NotAfter(f.d.State.FirstSeen, o.now)})
	}
}

// logNotKept tells of a metadata value that does not travel.
func (f *failed) logNotKept(o *outcome, key, why string) {
	f.logger.Error("Metadata is not kept", errors.New(why), f.with(o, watermill.LogFields{"key": key}))
}

// observeFailing tells observers of every try that failed; logHolding logs some of them.
func (f *failed) observeFailing(err error, tries int, held time.Duration) {
	if f.r.events != nil {
		e := f.event(EventFailing)
		e.Err, e.Tries, e.Held = err, tries, held
		f.tell(e, f.d.Message.Nack)
	}
}

func (f *failed) logHolding(o *outcome, err error, tries int, held time.Duration) {
	f.logger.Error("Failed message cannot be handed over, holding it",
		cutError(err, errorText(err)), f.with(o, watermill.LogFields{"tries": tries, "held": held}))
}

// reportRecovered tells of a message that was handed over after failed tries.
func (f *failed) reportRecovered(o *outcome, tries int, held time.Duration) {
	f.logger.Info("Failed message handed over at last",
		f.with(o, watermill.LogFields{"tries": tries, "held": held}))
	if f.r.events != nil {
		e := f.event(EventRecovered)
		e.Tries, e.Held = tries, held
		f.tell(e, f.d.Message.Ack)
	}
}

func (f *failed) logNotHandedOver(o *outcome, err error) {
	f.logger.Error("Failed message was not handed over: it goes back to its queue",
		cutError(err, errorText(err)),
		f.with(o, watermill.LogFields{"handler_error": excerpt.Of(f.text, maxLogBytes)}))
}

// reportHandedOver tells of a message of which the broker has confirmed a copy.
func (f *failed) reportHandedOver(o *outcome) {
	kind, fields, logger := EventRetried, f.with(o, f.ownFields()), f.r.logger
	switch {
	case o.state.Reason != "" && f.err == nil:
		kind = EventDeadLettered
		logger.Error("Message dead-lettered without being handled", f.cutError(), fields)
	case o.state.Reason != "":
		kind = EventDeadLettered
		logger.Error("Message dead-lettered", f.cutError(), fields)
	case o.snoozed:
		kind = EventSnoozed
		logger.Info("Message snoozed", f.withError(fields))
	default:
		logger.Info("Message will be retried", f.withError(fields))
	}
	if f.r.events != nil {
		f.tell(f.outcomeEvent(kind, o), f.d.Message.Ack)
	}
	if kind == EventDeadLettered {
		f.callHooks(o)
	}
}

func (f *failed) outcomeEvent(kind EventKind, o *outcome) Event {
	e := f.event(kind)
	e.At, e.Err, e.Reason, e.OverBudget = o.now, f.err, o.state.Reason, o.overBudget
	e.Failures = o.state.Failures
	if !o.snoozed {
		e.Class = o.state.Class
	}
	if !o.state.FirstFailure.IsZero() {
		e.Age = o.now.Sub(clock.NotAfter(o.state.FirstFailure, o.now))
	}
	if kind != EventDeadLettered {
		e.DelayAsked, e.DelayGiven = o.delay, o.given
	}
	return e
}

// lateHook is how long hooks have for a message that was handed over when its hold was over.
const lateHook = time.Second

// callHooks calls the dead-letter hooks. The message is in the dead-letter queue, so it is
// acked if a hook ends the goroutine.
func (f *failed) callHooks(o *outcome) {
	returned := false
	defer func() {
		if !returned {
			f.d.Message.Ack()
		}
	}()
	now := time.Now()
	ctx, end := context.WithTimeout(f.ctx, max(f.holdUntil(now).Sub(now), lateHook))
	defer end()
	f.r.callHooks(ctx, DeadLetter{
		Message: f.d.Message, Queue: f.d.Queue, Topic: f.at.Topic, Err: f.err, State: o.state,
	}, func(value any) {
		f.logger.Error("Dead-letter hook panicked", f.cutError(),
			f.with(o, watermill.LogFields{"value": valueText(value)}))
	})
	returned = true
}

// callHooks calls the dead-letter hooks. panicked gets the value of each panic.
func (r *DelayedRetry) callHooks(ctx context.Context, dead DeadLetter, panicked func(value any)) {
	history := dead.State.History
	for _, hook := range r.hooks {
		dead.State.History = slices.Clone(history)
		if value := contain(func() { hook(ctx, dead) }); value != nil {
			panicked(value)
		}
	}
}

// event returns an event of this attempt. This goroutine has the message, so it may read it.
func (a *attempt) event(kind EventKind) Event {
	e := eventOf(a.ctx, a.d, kind, a.r.now().UTC(), a.d.IDsNow())
	e.Called, e.Duration = a.called, a.took
	return e
}

// tell tells the observers of e. If one of them ends the goroutine, the router does not settle
// the message, so settle does.
func (a *attempt) tell(e Event, settle func() bool) {
	if e.Err != nil && a.r.errorText != nil {
		e.text = a.r.textOf(e.Err)
	}
	returned := false
	defer func() {
		if !returned {
			settle()
		}
	}()
	a.r.events.Tell(a.ctx, e)
	returned = true
}

// with adds to fields the class of a failure, and the delay or the reason of the outcome.
func (f *failed) with(o *outcome, fields watermill.LogFields) watermill.LogFields {
	if f.quiet {
		return nil
	}
	if fields == nil {
		fields = watermill.LogFields{}
	}
	if o.class != "" {
		fields["class"] = string(o.class)
	}
	if o.overBudget {
		fields["over_budget"] = true
	}
	switch o.state.Reason {
	case "":
		fields["delay"] = o.given
		if o.given-o.delay > o.delay/10 { // a small difference is noise
			fields["asked"] = o.delay
		}
	case header.ReasonDeadline:
		fields["deadline"] = o.state.Deadline.UTC()
		fields["deadline_from"] = o.state.DeadlineFrom
		fallthrough
	default:
		fields["reason"] = string(o.state.Reason)
	}
	return fields
}

// withError adds the error to the fields of an info line, under the name that error lines use.
func (f *failed) withError(fields watermill.LogFields) watermill.LogFields {
	if f.quiet {
		return nil
	}
	if fields == nil {
		fields = watermill.LogFields{}
	}
	fields["error"] = excerpt.Of(f.text, maxLogBytes)
	return fields
}

// cutError is the error of the attempt for the log.
func (f *failed) cutError() error { return cutError(f.why, f.text) }

var errOrder = errors.New("middlewares are in the wrong order: see docs/middlewares.md")

// warnOrder looks at the metadata that middlewares inside have added, and warns once of a
// middleware that does not belong there. A success pays for one comparison of lengths.
func (a *attempt) warnOrder(err error) {
	_, poisoned := a.d.Message.Metadata[wmiddleware.ReasonForPoisonedKey]
	_, delayed := a.d.Message.Metadata[delay.DelayedForKey]
	switch {
	case err == nil && poisoned && first(&a.r.warned.poison):
		a.r.logger.Error("A PoisonQueue inside DelayedRetry took an error away before the message "+
			"could be retried: remove it, because DelayedRetry dead-letters by itself",
			errOrder, a.fields(a.d.Place(a.ctx)))
	case err != nil && delayed && first(&a.r.warned.delayed):
		a.r.logger.Error("DelayOnError inside DelayedRetry has no effect: "+
			"remove it, because the retry policy sets the delay", errOrder, a.fields(a.d.Place(a.ctx)))
	}
}

// warnCalledAgain warns once of a middleware outside that calls DelayedRetry again for a
// message that was handed over.
func (a *attempt) warnCalledAgain() {
	if first(&a.r.warned.again) {
		a.r.logger.Error("DelayedRetry was called again for a message that it had handed over: "+
			"put middlewares that repeat a call, such as Duplicator or Retry, inside DelayedRetry",
			errOrder, a.fields(a.d.Place(a.ctx)))
	}
}

func first(said *atomic.Bool) bool { return said.CompareAndSwap(false, true) }

// lines logs lines about one message. The line about the outcome goes without it, because one
// map of fields costs less than two.
type lines struct{ of *failed }

func (l lines) Error(msg string, err error, fields watermill.LogFields) {
	l.with().Error(msg, err, fields)
}

func (l lines) Info(msg string, fields watermill.LogFields) { l.with().Info(msg, fields) }

func (l lines) with() watermill.LoggerAdapter {
	if l.of.quiet {
		return l.of.r.logger
	}
	return l.of.r.logger.With(l.of.fields(l.of.at))
}

// ownFields returns the fields of these lines, or nil if no line is written.
func (f *failed) ownFields() watermill.LogFields {
	if f.quiet {
		return nil
	}
	return f.fields(f.at)
}

// fields are the fields of each log line about the message.
func (a *attempt) fields(at place) watermill.LogFields {
	fields := a.d.LogFields(a.d.IDsNow())
	fields["handler"], fields["queue"], fields["topic"] = at.Handler, at.Queue, at.Topic
	return fields
}
