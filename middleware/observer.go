package middleware

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millpond-go/millpond/internal/excerpt"
	"github.com/millpond-go/millpond/internal/observe"
	"github.com/millpond-go/millpond/middleware/header"
)

// Observer is told of every decision. Metrics, traces and your own view of retries are
// observers.
//
// Observe runs in the handler's goroutine, after the event and before the message is settled,
// so it should be quick; EventStranded comes from another goroutine. ctx has the values of the
// message's context. Observe changes nothing about the message: a panic is logged, at most once a
// minute. Many goroutines call it at once.
type Observer interface {
	Observe(ctx context.Context, e Event)
}

// ObserverFunc is a function that is an Observer.
type ObserverFunc func(ctx context.Context, e Event)

// Observe calls f.
func (f ObserverFunc) Observe(ctx context.Context, e Event) { f(ctx, e) }

// newEvents returns the list of the observers; nil if there are none.
func newEvents(logger watermill.LoggerAdapter, observers []Observer) *observe.List[Event] {
	var tell []func(context.Context, Event)
	for _, o := range observers {
		tell = append(tell, o.Observe)
	}
	return observe.NewList(func(value any) {
		logger.Error("Observer panicked", nil, watermill.LogFields{"value": valueText(value)})
	}, tell...)
}

// Event is one decision about a message, or one thing that happened to it. It shares nothing
// with the message, so an observer may keep it. A field is zero if it is unknown, or if the
// kind does not use it.
type Event struct {
	// Kind says what happened, and At when.
	Kind EventKind
	At   time.Time

	// Handler is the name of the handler in the router. The Subscriber leaves it empty,
	// because it decides before any handler is known.
	Handler string
	// Queue is the AMQP queue that the message was consumed from, Topic Watermill's topic.
	// EventStranded has the queue where messages stand.
	Queue, Topic string
	// Attempt is the number of this attempt, 1 at the first delivery. Failures counts the
	// failures so far, this one included.
	Attempt, Failures int

	// MessageID and CorrelationID are message_id and correlation_id of the log lines.
	// MessageUUID is Watermill's.
	MessageID, CorrelationID, MessageUUID string

	// Class of the error; empty if nothing failed.
	Class header.Class
	// Reason for dead-lettering; empty if the message was not dead-lettered.
	Reason header.Reason
	// Err is the error behind the event: the handler's, a *PanicError with the stack, or the
	// error of the hand-over. Its text may be long and hold a stack; log ErrorText instead.
	Err  error
	text string // of Err, if WithErrorText changes it

	// Called says whether the handler was called, and Duration how long it took.
	Called   bool
	Duration time.Duration
	// Age is the time since the first failure; zero up to the first failure.
	Age time.Duration

	// OverBudget says that the retry budget changed the decision.
	OverBudget bool
	// DelayAsked is the delay that the decision asked for. DelayGiven is the delay of the
	// wait queue, which is never less; the two are equal if the Republisher does not say.
	DelayAsked, DelayGiven time.Duration
	// DelayMeasured is how long the message really waited for this attempt: from the last
	// republish until it arrived here, the time behind other messages included. The clocks
	// of two processes measure it. LastDelay is the delay asked for then. Both are zero at
	// the first delivery.
	DelayMeasured, LastDelay time.Duration

	// Tries counts the tries to hand the message over, and Held is the time since the first
	// try. EventFailing, EventRecovered and EventRequeued have them.
	Tries int
	Held  time.Duration
	// Interruptions counts how often the message was isolated as a suspect of ending the
	// process.
	Interruptions int
	// Messages is the number of messages in the queue of an EventStranded.
	Messages int

	// Brake is the state of the brake that an EventBudgetClosed or EventBudgetOpened tells of. It is
	// nil for a budget without Brake. Probing says that this process probes.
	Brake   *header.BrakeState
	Probing bool
}

// ErrorText returns the text of Err as log lines have it: changed by WithErrorText, cut, and
// of a panic only the value. It is empty without an Err.
func (e Event) ErrorText() string {
	switch {
	case e.Err == nil:
		return ""
	case e.text != "":
		return excerpt.Of(e.text, maxLogBytes)
	}
	return excerpt.Of(errorText(e.Err), maxLogBytes)
}

// EventKind is the kind of an Event. Metrics and traces use its value as a name.
type EventKind string

// The kinds of an Event. The events of one message come in the order in which they happen.
// Each comes once, from the DelayedRetry or Subscriber that decides.
const (
	// EventHandled says that the handler succeeded, after Attempt-1 failures.
	EventHandled EventKind = "handled"
	// EventRetried says that the handler failed, and a copy is confirmed in a wait queue.
	EventRetried EventKind = "retried"
	// EventSnoozed says that a copy is confirmed in a wait queue without a failure. The
	// handler asked for it (Snooze), or the retry budget holds the message back (OverBudget)
	// without a call of the handler. Or the router nacked: then the Subscriber tells, Called
	// is false, and an EventHandled or EventRequeued may have come before.
	EventSnoozed EventKind = "snoozed"
	// EventDeadLettered says that a copy is confirmed in the dead-letter queue; see Reason.
	EventDeadLettered EventKind = "dead_lettered"
	// EventRequeued says that the message goes back to its queue: nothing was published, and
	// no attempt counts. The context was done, the connection was lost, or the hand-over
	// failed for as long as the message may be held. Err says which.
	EventRequeued EventKind = "requeued"
	// EventSelfSettled says that the handler failed and acked or nacked the message itself.
	EventSelfSettled EventKind = "self_settled"

	// EventFailing says that one try to hand the message over failed; Err is why. There are
	// at most two a second.
	EventFailing EventKind = "failing"
	// EventRecovered says that the message was handed over after such failures.
	EventRecovered EventKind = "recovered"

	// EventCrashRound says that the Subscriber isolated the message as a suspect of ending
	// the process; Interruptions counts these events.
	EventCrashRound EventKind = "crash_round"

	// EventBudgetClosed says that the retry budget closed with this message, for all handlers
	// that share it; see Budget. With a Brake no message belongs to it: this process has stopped
	// consuming, or the prober has changed since.
	EventBudgetClosed EventKind = "budget_closed"
	// EventBudgetOpened says that the budget is open again. The message of any handler that
	// shares it may show this. With a Brake this process consumes again.
	EventBudgetOpened EventKind = "budget_opened"

	// EventStranded says that the number of messages in a stranded queue has changed. The Client
	// looks every 30 s. Queue is the stranded queue, and Messages the number; all other fields
	// but At are zero. Every process that shares the queue tells the same.
	//
	// With a Topic it tells of the queue of a Subscriber: the queue has ready messages, and has
	// delivered none for half a minute or longer to this process, which had none in hand. The
	// Subscriber consumes again on a new channel.
	EventStranded EventKind = "stranded"
)
