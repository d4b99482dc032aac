// Package outcomelog logs a line for every outcome of a message, successes too.
//
//	client, err := topology.Open(ctx, cfg.Connection, strategy, topology.WithLogger(logger),
//		topology.WithObserver(outcomelog.New(logger, middleware.EventHandled)))
//
// DelayedRetry and the Subscriber log failures by themselves, and no success, because that would be
// a line for each message. With [New] and EventHandled alone, successes have a line, too. Without
// kinds all outcomes have a line of one form. Give New a separate logger then, because failures
// have both lines.
package outcomelog

import (
	"context"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millpond-go/millpond/middleware"
)

// outcomes are the kinds of events after which a delivery is over.
var outcomes = []middleware.EventKind{
	middleware.EventHandled, middleware.EventRetried, middleware.EventSnoozed,
	middleware.EventDeadLettered, middleware.EventRequeued, middleware.EventSelfSettled,
	middleware.EventCrashRound,
}

// New returns an observer that logs the outcome of every message: dead letters at level error, all
// others at info. Kinds bound it to these kinds of events; other events than outcomes are never
// logged. It has the fields of all log lines, and these:
//
//   - outcome, the kind of the event
//   - duration, the time that the handler took, if it was called
//   - total_time, the time since the first failure with all waits, or the duration at the first
//     attempt
//
// A nil logger drops every line. Many goroutines may use the observer.
func New(logger watermill.LoggerAdapter, kinds ...middleware.EventKind) middleware.Observer {
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	if len(kinds) == 0 {
		kinds = outcomes
	}
	logged := slices.DeleteFunc(slices.Clone(kinds), func(kind middleware.EventKind) bool {
		return !slices.Contains(outcomes, kind)
	})
	return middleware.ObserverFunc(func(_ context.Context, e middleware.Event) {
		if slices.Contains(logged, e.Kind) {
			write(logger, e)
		}
	})
}

func write(logger watermill.LoggerAdapter, e middleware.Event) {
	if e.Kind == middleware.EventDeadLettered {
		logger.Error("Outcome of a message", textOf(e), fieldsOf(e))
		return
	}
	fields := fieldsOf(e)
	if e.Err != nil {
		fields["error"] = e.ErrorText()
	}
	logger.Info("Outcome of a message", fields)
}

// cut is the text of an error as log lines have it.
type cut string

func (c cut) Error() string { return string(c) }

func textOf(e middleware.Event) error {
	if e.Err == nil {
		return nil
	}
	return cut(e.ErrorText())
}

func fieldsOf(e middleware.Event) watermill.LogFields {
	fields := watermill.LogFields{
		"outcome": string(e.Kind), "attempt": e.Attempt, "queue": e.Queue, "message_id": e.MessageID,
	}
	for name, value := range map[string]string{
		"handler": e.Handler, "topic": e.Topic, "message_uuid": e.MessageUUID,
		"correlation_id": e.CorrelationID, "class": string(e.Class), "reason": string(e.Reason),
	} {
		if value != "" {
			fields[name] = value
		}
	}
	if e.Called {
		fields["duration"] = e.Duration
	}
	if total := totalOf(e); total > 0 {
		fields["total_time"] = total
	}
	switch e.Kind {
	case middleware.EventRetried, middleware.EventSnoozed, middleware.EventCrashRound:
		fields["delay"] = e.DelayGiven
	}
	if e.OverBudget {
		fields["over_budget"] = true
	}
	if e.Interruptions > 0 {
		fields["interruptions"] = e.Interruptions
	}
	return fields
}

// totalOf is the time since the first failure, which the handler's time includes at all later
// attempts.
func totalOf(e middleware.Event) time.Duration {
	if e.Age > 0 {
		return e.Age
	}
	return e.Duration
}
