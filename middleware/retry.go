package middleware

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/observe"
)

// DelayedRetry is a Watermill middleware that hands a message whose handler
// failed over to the broker: for another attempt after a delay, or for the
// dead-letter queue. The package documentation has its contract.
//
// One DelayedRetry may serve many handlers and queues at once.
type DelayedRetry struct {
	republisher Republisher
	settings
	now       func() time.Time
	observers *observe.List[Event] // nil if nobody observes
	order     order
}

// NewDelayedRetry returns a DelayedRetry that asks policy about every failure
// and gives the message to republisher. Everything that is wrong with the
// arguments is in one error: a nil republisher, a policy (also one of
// WithPolicyFor) that is nil, invalid or without an end (see backoff.CheckEnd)
// where neither WithMaxAttempts nor WithMaxAge sets one, an option with an
// invalid value.
func NewDelayedRetry(republisher Republisher, policy backoff.Policy, options ...Option) (*DelayedRetry, error) {
	s, err := newSettings(policy, options)
	if isNil(republisher) {
		err = errors.Join(errors.New("republisher is nil"), err)
	}
	if err != nil {
		return nil, fmt.Errorf("new delayed retry: %w", err)
	}
	for _, p := range s.limits.policies() {
		for _, remark := range backoff.Remarks(p) {
			s.logger.Info("Remark on the retry policy", watermill.LogFields{"remark": remark})
		}
	}
	return &DelayedRetry{republisher: republisher, settings: s, now: time.Now, observers: s.newObservers()}, nil
}

// Middleware returns h with delayed retries around it. Where h succeeds its
// messages are returned untouched. Where it fails, its messages are dropped, as
// the router does, and the result is nil once the message was handed over. A
// message that is past its limit when it arrives is dead-lettered, h not called.
// Otherwise the error wraps ErrInterrupted or ErrNotHandedOver and the
// handler's own; if the handler acked or nacked the message itself, it is the
// handler's own.
func (r *DelayedRetry) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		// Middlewares below replace the context of msg; this one counts.
		ctx := msg.Context()
		d := DeliveryOf(ctx, msg)
		if d == nil {
			d = adopt(msg)
			ctx = msg.Context()
		}
		d.enter(ctx)
		if d.handedOver { // a copy is confirmed: a second one would come back beside it
			r.noticeAgain(ctx, d)
			return nil, nil
		}
		d.retry = r
		if d.outer == nil {
			d.outer = r
		}
		if d.outer == r {
			d.attempt = attempt{}
			d.tellAgain()
		}
		// The context the delivery was attached to: ctx is wrapped around it by the
		// router, several times, and asking it costs more than all the rest. One
		// that ends in between is noticed after the handler.
		// The context of a message that is acked already is done as well, but no
		// delivery will follow: an InstantAck outside.
		if d.ended() && !isAcked(msg) {
			cause := interruption(d.ctx, d)
			err := &unsettledError{msg: msg, kind: ErrInterrupted, cause: cause}
			r.observeUnsettled(ctx, d, err)
			return nil, d.unsettled(err)
		}
		if d.returned {
			if refused, err := r.refuse(ctx, d); refused {
				return nil, d.unsettled(err)
			}
		}
		if r.budget.Budget != nil && r.budget.cfg.Probes > 0 {
			if held, err := r.holdBack(ctx, d); held {
				return nil, d.unsettled(err)
			}
		}
		if r.observers != nil {
			d.attempt.began = time.Now()
		}
		keys := len(msg.Metadata)
		produced, err := call(h, msg)
		if r.observers != nil {
			d.attempt.ended()
		}
		if len(msg.Metadata) != keys {
			r.noticeInner(ctx, d, err)
		}
		if err == nil {
			if r.budget.Budget != nil {
				r.tellOfBudget(ctx, d, r.budget.handled(false))
			}
			if r.observers != nil {
				r.observeHandled(ctx, d)
			}
			return produced, nil
		}
		return nil, d.unsettled(r.settle(ctx, d, err))
	}
}

// ended reports whether there is an interruption by the context the delivery was
// attached to.
func (d *Delivery) ended() bool {
	return d.ctx.Err() != nil || !d.goneWithCtx && isClosed(d.Gone)
}

// interruption says why nothing may be published for the delivery any more: the
// cause of a context that is done, or that the broker has taken the message
// back. It is nil if neither is so.
func interruption(ctx context.Context, d *Delivery) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case <-d.Gone:
		return errStale
	default:
		return nil
	}
}
