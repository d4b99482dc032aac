package middleware

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/internal/attached"
	"github.com/millpond-go/millpond/internal/clock"
	"github.com/millpond-go/millpond/middleware/header"
)

// Attempt returns the number of this attempt, 1 at the first delivery. ctx is the message's
// context, which a CQRS handler gets as well. Without a delivery in ctx the result is 1.
func Attempt(ctx context.Context) int {
	d := attached.Of(ctx, nil)
	if d == nil {
		return 1
	}
	return d.Attempt()
}

// MessageID returns the message's id: the property message_id of the delivery, else the UUID that
// Watermill gave it. It is the same at each attempt. ctx is the message's context; without a
// delivery in it the result is empty.
func MessageID(ctx context.Context) string {
	d := attached.Of(ctx, nil)
	if d == nil {
		return ""
	}
	return d.IDsThen().Message
}

// LastAttempt reports whether the message would be dead-lettered if this attempt failed now
// with a retryable error that the policy does not know. It asks the innermost DelayedRetry
// around the handler, with all its limits: the policy, WithMaxAttempts, WithMaxAge and the
// message's own expiration. Without a DelayedRetry it is false. It is a guess if a random delay
// meets a limit on the age or an expiration, because the delay is drawn anew.
func LastAttempt(ctx context.Context) bool {
	d := attached.Of(ctx, nil)
	if d == nil || d.Inner == nil {
		return false
	}
	r := d.Inner.(*DelayedRetry)
	o := r.limits.decide(failure{
		err:   errUnknown,
		mark:  mark{class: header.ClassRetryable},
		at:    d.Place(ctx),
		state: d.State,
		now:   r.now().UTC(),
	})
	return o.reason != ""
}

// errUnknown is shown to the policy while there is no error yet.
var errUnknown = errors.New("unknown error")

// StateOf returns the retry state of the message: the time of its first failure, the exchange
// and the routing key that it first came with, the failed attempts before this one, and so on.
// It is empty if ctx has no delivery. The caller owns it.
//
// FirstFailure is zero at attempt 1, FirstSeen until the message is first snoozed or
// republished. OriginExchange is empty for a message that was sent straight to a queue. History
// begins with the oldest attempt; of very many the oldest are missing. After a dead letter was
// moved back, it begins with the attempts of the earlier rounds, also at attempt 1.
func StateOf(ctx context.Context) header.RetryState {
	d := attached.Of(ctx, nil)
	if d == nil {
		return header.RetryState{}
	}
	state := d.State
	state.History = slices.Clone(state.History)
	for _, t := range []*time.Time{&state.FirstFailure, &state.FirstSeen} {
		if !t.IsZero() {
			*t = clock.NotAfter(*t, time.Now())
		}
	}
	return state
}

// DeduplicationKey is the KeyFactory for Watermill's Deduplicator. The Deduplicator remembers a
// key before the handler is called and swallows later messages with the same key. Its default
// key is made of the payload, so that no message would ever be tried twice.
//
// DeduplicationKey is the same only for messages that a producer sent twice to a queue: with
// one message id or, without that property, with one UUID. A message without any id has a new
// key each time, and so has a message that may not have been handled yet, because it was
// retried, snoozed, nacked, moved back from the dead-letter queue, or delivered again after
// an interruption.
//
// That leaves the duplicates of a hand-over or a crash to the handler. Only an inbox in the
// transaction of the handler's own work finds those; see examples/idempotency.
//
//	deduplicator := &wmiddleware.Deduplicator{KeyFactory: middleware.DeduplicationKey, …}
//
// The message must come from a Subscriber that sets Delivery.Redelivered, as topology's does.
// The error is always nil.
func DeduplicationKey(msg *message.Message) (string, error) {
	d := attached.Of(msg.Context(), nil)
	if d == nil {
		d = &attached.Delivery{}
	}
	id := cmp.Or(d.MessageID, msg.UUID)
	if id == "" || d.Redelivered || d.State.HasWaited() || len(d.State.History) > 0 {
		return "again " + watermill.NewUUID(), nil
	}
	return "first " + id + " " + d.Queue, nil
}
