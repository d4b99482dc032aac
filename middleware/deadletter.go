package middleware

import (
	"context"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/millpond-go/millpond/middleware/header"
)

// DeadLetter is a message that was dead-lettered, as a hook is shown it.
type DeadLetter struct {
	// Message is the one that was handled last, as the handler left it.
	Message *message.Message
	// Queue is the AMQP queue it was consumed from, Topic Watermill's topic.
	Queue, Topic string
	// Err is what the handler returned last. It is nil where the handler was not
	// called, because the message was past its limit when it arrived;
	// Notes.Error is the text of the last error then.
	Err error
	// Notes went with the message: Reason, Handler, Class, Failures, and in
	// History every attempt, oldest first; the oldest of very many are missing.
	State header.RetryState
}

// WithDeadLetterHook calls hook for each message that DelayedRetry has
// dead-lettered, after the broker has confirmed it. Several hooks are called in
// their order. What the Subscriber itself dead-letters (ReasonUndecodable,
// ReasonCrashLoop, ReasonOversized, ReasonMisdirected) is not among them.
//
// The hook runs in the handler's goroutine with the context that the message
// entered DelayedRetry with, and the message is acked when it returns: it should
// be quick, and give up when the context is done. It changes nothing about the
// message: one that panics is logged. A process that dies meanwhile leaves the
// message to be dead-lettered twice. Without it only the log tells.
func WithDeadLetterHook(hook func(ctx context.Context, dead DeadLetter)) Option {
	return func(s *settings) {
		if hook == nil {
			s.refuse("WithDeadLetterHook: hook is nil")
			return
		}
		s.deadLetterHooks = append(s.deadLetterHooks, hook)
	}
}

// tellOfDeadLetter calls the hooks. The message is in the dead-letter queue: if
// a hook ends the goroutine, it is acked here.
func (r *DelayedRetry) tellOfDeadLetter(ctx context.Context, d *Delivery, log *report, t *transfer) {
	returned := false
	defer func() {
		if !returned {
			d.msg.Ack()
		}
	}()
	for _, hook := range r.deadLetterHooks {
		dead := DeadLetter{Message: d.msg, Queue: d.Queue, Topic: log.at.topic, Err: t.err, State: t.notes}
		dead.State.History = slices.Clone(t.notes.History)
		if value := contain(func() { hook(ctx, dead) }); value != nil {
			log.hookPanicked(value)
		}
	}
	returned = true
}
