package middleware

import (
	"context"
	"time"

	"github.com/millpond-go/millpond/internal/excerpt"
	"github.com/millpond-go/millpond/middleware/header"
)

// Event is one decision about a message, or one thing that happened to it. It is
// a plain value that shares nothing with the message: an observer may keep it.
//
// Fields that a kind does not name are zero where they are not known.
type Event struct {
	// Kind says what the Event tells of.
	Kind EventKind
	// At is when it happened.
	At time.Time

	// Handler is the name of the handler in the router. The Subscriber, which
	// decides before any handler is known, leaves it empty.
	Handler string
	// Queue is the AMQP queue the message was consumed from, Topic Watermill's
	// topic.
	Queue, Topic string
	// Attempt is the number of this attempt, 1 at the first delivery; Failures are
	// those so far, this one included.
	Attempt, Failures int

	// MessageID and CorrelationID are what the log lines call message_id and
	// correlation_id, MessageUUID is Watermill's.
	MessageID, CorrelationID, MessageUUID string

	// Class of the error; empty where nothing has failed.
	Class header.Class
	// Reason for dead-lettering; empty unless the message was dead-lettered.
	Reason header.Reason
	// Err is the error behind the event: what the handler returned, a *PanicError
	// with the stack if it panicked, or what is wrong with the machinery. Its text
	// may be long and may hold a stack; ErrorText is what belongs in a log.
	Err  error
	text string // of Err, where WithErrorText says so

	// Called says whether the handler was called, and Duration how long it took.
	Called   bool
	Duration time.Duration
	// Age is the time since the first failure; zero before and at the first.
	Age time.Duration

	// OverBudget says that the retry budget has changed the decision.
	OverBudget bool
	// DelayAsked is the delay that was asked for until the next attempt, and
	// DelayGiven what its wait queue makes of it, which is never less; the same
	// where the Republisher does not say.
	DelayAsked, DelayGiven time.Duration
	// DelayMeasured is how long the message has really waited for this attempt:
	// from when it was republished or set aside last until it arrived here, with
	// the time behind others in its queue, by the clocks of the processes that
	// did the one and the other. LastDelay is what had been asked for then. Both
	// are zero at the first delivery.
	DelayMeasured, LastDelay time.Duration

	// Tries are how often the hand-over was tried, and Held how long the message
	// has been held for it since the first try; for EventFailing,
	// EventRecovered and EventRequeued.
	Tries int
	Held  time.Duration
	// Interruptions are how often the message was set aside as a suspect of
	// killing the process.
	Interruptions int
}

// EventKind says what an Event tells of. Its value is what metrics and traces
// call it.
type EventKind string

// The kinds of an Event. Those of one message come in the order in which they
// happen; each is told once, by who decides.
const (
	// EventHandled: the handler has succeeded, after Attempt-1 failures.
	EventHandled EventKind = "handled"
	// EventRetried: it has failed, and a copy is confirmed in a wait queue.
	EventRetried EventKind = "retried"
	// EventSnoozed: the message is held back without a failure, a copy confirmed
	// in a wait queue. The handler has asked for it (Snooze), or the router has
	// nacked: then the Subscriber tells it, Called is false, and an EventHandled or
	// EventRequeued may have come before. Or the retry budget holds it back
	// (OverBudget), the handler not called.
	EventSnoozed EventKind = "snoozed"
	// EventDeadLettered: a copy is confirmed in the dead-letter queue; see Reason.
	EventDeadLettered EventKind = "dead_lettered"
	// EventRequeued: nothing was published, and no attempt is counted; the message
	// goes back to its queue. The context was done, the connection lost, or the
	// hand-over has not succeeded for as long as the message may be held. Err says
	// which.
	EventRequeued EventKind = "requeued"
	// EventSelfSettled: the handler has failed, but has acked or nacked the message
	// itself.
	EventSelfSettled EventKind = "self_settled"

	// EventFailing: the message cannot be handed over. It is told of each try that
	// fails, at most twice a second; Err is why.
	EventFailing EventKind = "failing"
	// EventRecovered: it was handed over at last.
	EventRecovered EventKind = "recovered"

	// EventCrashRound: the Subscriber has set the message aside as a suspect of
	// killing the process, for the Interruptions-th time.
	EventCrashRound EventKind = "crash_round"

	// EventBudgetClosed: the retry budget has closed with this message, for all that
	// share it; see Budget.
	EventBudgetClosed EventKind = "budget_closed"
	// EventBudgetOpened: it is open again, as was noticed with this message, which
	// may be another handler's than the one it has closed with.
	EventBudgetOpened EventKind = "budget_opened"
)

// ErrorText returns the text of Err as the log lines have it: what WithErrorText
// makes of it, cut, and of a panic the value only. It is empty without an Err.
func (e Event) ErrorText() string {
	switch {
	case e.Err == nil:
		return ""
	case e.text != "":
		return excerpt.Of(e.text, maxLogBytes)
	}
	return excerpt.Of(errorText(e.Err), maxLogBytes)
}

// Event returns an event of the given kind with all that the delivery knows by
// itself. It is for Subscribers, which decide some things without a
// DelayedRetry. ctx is the message's, for the names the router put into it; see
// EntryContext. It does not read the message, and may be called at any time.
func (d *Delivery) Event(ctx context.Context, kind EventKind, at time.Time) Event {
	return d.event(ctx, kind, at, d.ids())
}

func (d *Delivery) event(ctx context.Context, kind EventKind, at time.Time, i ids) Event {
	where := placeOf(ctx, d)
	n := &d.State
	e := Event{
		Kind: kind, At: at,
		Handler: where.handler, Queue: where.queue, Topic: where.topic,
		Attempt: attemptOf(d), Interruptions: n.Interruptions,
	}
	e.Failures = e.Attempt - 1
	e.MessageID, e.MessageUUID, e.CorrelationID = i.message, i.uuid, i.correlation
	if !n.FirstFailure.IsZero() {
		e.Age = at.Sub(notAfter(n.FirstFailure, at))
	}
	if !n.WaitingSince.IsZero() {
		e.LastDelay = n.Delay
		if n.Snoozed > 0 {
			e.LastDelay = n.Snoozed
		}
		arrived := d.Arrived
		if arrived.IsZero() {
			arrived = at
		}
		e.DelayMeasured = arrived.Sub(notAfter(n.WaitingSince, arrived))
	}
	return e
}
