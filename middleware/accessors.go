package middleware

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/millpond-go/millpond/middleware/header"
)

// Attempt returns the number of this attempt, 1 at the first delivery. ctx is
// the message's context, which is also the one a CQRS handler is given. Without
// a delivery in it the result is 1.
func Attempt(ctx context.Context) int {
	d := deliveryFrom(ctx)
	if d == nil {
		return 1
	}
	return attemptOf(d)
}

func attemptOf(d *Delivery) int {
	return min(max(d.State.Failures, 0), header.MaxFailures-1) + 1
}

// LastAttempt reports whether the message would be dead-lettered if this
// attempt failed now with a retryable error that the policy does not know. All
// that the innermost DelayedRetry around the handler goes by counts: the policy,
// WithMaxAttempts, WithMaxAge and the message's own expiration. It is false
// where there is no DelayedRetry. Where a random delay meets a limit on the age or
// an expiration it is a guess, for the delay is drawn anew.
func LastAttempt(ctx context.Context) bool {
	d := deliveryFrom(ctx)
	if d == nil || d.retry == nil {
		return false
	}
	decided := d.retry.limits.decide(failure{
		err:   errUnknown,
		mark:  mark{class: header.ClassRetryable},
		at:    placeOf(ctx, d),
		notes: d.State,
		now:   d.retry.now().UTC(),
	})
	return decided.reason != ""
}

// errUnknown is shown to the policy where there is no error yet.
var errUnknown = errors.New("unknown error")

// FirstFailure returns when the first attempt failed; false at attempt 1.
func FirstFailure(ctx context.Context) (time.Time, bool) {
	d := deliveryFrom(ctx)
	if d == nil || d.State.FirstFailure.IsZero() {
		return time.Time{}, false
	}
	return notAfter(d.State.FirstFailure, time.Now()), true
}

// FirstSeen returns when the message was first set aside or republished; false
// if that has not happened. WithSnoozeLimit counts from here.
func FirstSeen(ctx context.Context) (time.Time, bool) {
	d := deliveryFrom(ctx)
	if d == nil || d.State.FirstSeen.IsZero() {
		return time.Time{}, false
	}
	return notAfter(d.State.FirstSeen, time.Now()), true
}

// Origin returns the exchange and the routing key the message first came with,
// the same on every attempt. It is false where they are not known. The exchange
// of a message sent straight to a queue is "".
func Origin(ctx context.Context) (exchange, routingKey string, ok bool) {
	d := deliveryFrom(ctx)
	if d == nil {
		return "", "", false
	}
	exchange, routingKey = d.State.OriginExchange, d.State.OriginRoutingKey
	return exchange, routingKey, exchange != "" || routingKey != ""
}

// PastAttempts returns the failed attempts before this one, oldest first; a
// copy. The oldest of very many are missing. After a dead letter was moved back
// the attempts of the earlier rounds come first, so there may be some at
// attempt 1.
func PastAttempts(ctx context.Context) []header.AttemptError {
	d := deliveryFrom(ctx)
	if d == nil {
		return nil
	}
	return slices.Clone(d.State.History)
}
