package middleware

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/observe"
	"github.com/millpond-go/millpond/middleware/header"
)

// DelayedRetry is a Watermill middleware that gives a message whose handler failed to the
// broker: for another attempt after a delay, or for the dead-letter queue. The package
// documentation has its contract.
//
// One DelayedRetry may serve many handlers and queues at once.
type DelayedRetry struct {
	republisher Republisher
	settings
	now    func() time.Time
	events *observe.List[Event] // nil without observers
	warned struct{ poison, delayed, again atomic.Bool }
}

// NewDelayedRetry returns a DelayedRetry that asks policy about every failure and gives
// messages to republisher. Its logger and observers are those of the republisher, if it has
// some and no option names others.
//
// One error lists everything that is wrong: a nil republisher, a policy that is nil or
// invalid, a policy without an end (see backoff.CheckEnd) if neither WithMaxAttempts nor
// WithMaxAge sets one, invalid options. The policies of WithPolicyFor are checked as well.
func NewDelayedRetry(
	republisher Republisher, policy backoff.Policy, options ...Option,
) (*DelayedRetry, error) {
	s, err := newSettings(republisher, policy, options)
	if err != nil {
		return nil, fmt.Errorf("new delayed retry: %w", err)
	}
	r := &DelayedRetry{republisher: republisher, settings: s, now: time.Now}
	r.events = newEvents(s.logger, s.observers)
	for _, p := range r.Policies() {
		for _, remark := range backoff.Remarks(p) {
			s.logger.Info("Remark on the retry policy", watermill.LogFields{"remark": remark})
		}
	}
	return r, nil
}

// Policies returns the policy of NewDelayedRetry and then those of WithPolicyFor in their
// order, as topology.ForPolicy takes them. The caller owns the slice.
func (r *DelayedRetry) Policies() []backoff.Policy { return r.limits.policies() }

// Middleware returns h with delayed retries around it. If h succeeds, its messages are
// returned untouched. If it fails, they are dropped, as the router does, and the result is
// nil once the message was handed over. A message that arrives past its limit is
// dead-lettered without a call of h.
//
// Any other result wraps ErrInterrupted or ErrNotHandedOver and the handler's error. If the
// handler acked or nacked the message itself, the result is the handler's own error.
func (r *DelayedRetry) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		a := r.begin(msg)
		if a.d.handedOver { // a copy is confirmed: another copy would come back beside it
			a.warnCalledAgain()
			return nil, nil
		}
		// The context of an acked message is done as well, but no delivery will follow it:
		// a middleware outside acks at once.
		if a.d.ended() && !isAcked(msg) {
			return nil, a.interrupted()
		}
		if a.d.hasWaited {
			if refused := a.pastLimit(); refused != nil {
				return nil, a.refuse(refused)
			}
		}
		if r.budget.Budget != nil && r.budget.cfg.Probes > 0 {
			if heldBack := a.holdBack(); heldBack != nil {
				return nil, a.refuse(heldBack)
			}
		}
		produced, err := a.call(h)
		if err != nil {
			return nil, a.settle(err)
		}
		a.reportHandled()
		return produced, nil
	}
}

// attempt is one message on its way through one DelayedRetry. It stays on the stack of a
// success: methods that may move it to the heap have the attempt itself as the receiver, and
// work with the pointer to their copy.
type attempt struct {
	r *DelayedRetry
	d *Attached
	// ctx is the one with which the message entered: middlewares inside replace it.
	ctx context.Context

	// Observers are told these.
	called bool
	took   time.Duration

	*failed // nil until the handler fails or the message is refused
}

// failed is the part of an attempt that only a failure needs.
type failed struct {
	err    error  // of the handler; nil if it was not called
	why    error  // err, or why the handler was not called
	text   string // of why, uncut
	at     place
	logger watermill.LoggerAdapter
	quiet  bool // the logger drops everything
}

// begin finds the delivery of the message, or makes one.
func (r *DelayedRetry) begin(msg *message.Message) attempt {
	ctx := msg.Context()
	d := DeliveryOf(ctx, msg)
	if d == nil {
		d = adopt(msg)
		ctx = msg.Context()
	}
	d.enter(ctx, r)
	return attempt{r: r, d: d, ctx: ctx}
}

// isInner reports whether another DelayedRetry is around this one.
func (a *attempt) isInner() bool { return a.d.outer != a.r }

// interrupted reports an attempt that ended before the handler was called.
func (a attempt) interrupted() error {
	return a.orNack(func() error { return a.requeue(a.d.interruption(a.d.ctx)) })
}

// pastLimit returns the dead letter that a message becomes which arrives past its limit, and
// nil if the handler is to be called.
func (a *attempt) pastLimit() *outcome {
	var at place
	if len(a.r.limits.rules) > 0 { // asking the context costs more than all the rest
		at = placeOf(a.ctx, a.d)
	}
	reason := a.r.limits.past(&a.d.State, at, a.isInner(), a.r.now)
	if reason == "" {
		return nil
	}
	return a.deadLetter(reason)
}

// refuse hands over a message that no handler may see.
func (a attempt) refuse(o *outcome) error {
	return a.orNack(func() error {
		a.fail(nil, o.why)
		return a.finish(o)
	})
}

// call calls the handler.
func (a *attempt) call(h message.HandlerFunc) (produced []*message.Message, err error) {
	keys := len(a.d.msg.Metadata)
	if a.r.events == nil {
		produced, err = call(h, a.d.msg)
	} else {
		began := time.Now()
		produced, err = call(h, a.d.msg)
		a.called, a.took = true, time.Since(began)
	}
	if len(a.d.msg.Metadata) != keys {
		a.warnOrder(err)
	}
	return produced, err
}

// settle decides about a message whose handler failed, and hands it over. The router acks if
// the result is nil.
func (a attempt) settle(err error) error {
	return a.orNack(func() error {
		if isUnsettled(err, a.d.msg) { // an inner DelayedRetry has reported it
			return err
		}
		a.fail(err, err)
		if isAcked(a.d.msg) || isNacked(a.d.msg) {
			a.reportSelfSettled()
			return err
		}
		if cause := a.d.interruption(a.ctx); cause != nil {
			a.logInterrupted(cause)
			return a.requeue(cause)
		}
		return a.finish(a.decide())
	})
}

// fail notes why the message is not handled, and prepares the log.
func (a *attempt) fail(err, why error) {
	a.d.told = true
	f := &failed{err: err, why: why, at: placeOf(a.ctx, a.d)}
	if err != nil {
		f.text = a.r.textOf(err)
	} else {
		f.text = why.Error()
	}
	f.logger = a.r.logger
	if _, f.quiet = f.logger.(watermill.NopLogger); !f.quiet {
		fields := a.d.logFields(a.d.idsNow())
		fields["handler"], fields["queue"], fields["topic"] = f.at.handler, f.at.queue, f.at.topic
		f.logger = f.logger.With(fields)
	}
	a.failed = f
}

// decide asks the classifiers, the policy and the budget.
func (a *attempt) decide() *outcome {
	f := failure{
		err: a.err, at: a.at, inner: a.isInner(),
		state: a.d.State, now: a.r.now().UTC(), given: a.d.Given,
	}
	var faults []fault
	f.mark, faults = a.r.classes.of(a.err)
	o := a.r.limits.decide(f)
	o.faults = append(faults, o.faults...)
	if a.r.budget.Budget != nil && !o.snoozed {
		a.reportBudget(a.r.budget.handled(f.mark.class == header.ClassRetryable))
		if o.reason == "" {
			a.spend(f, &o)
		}
	}
	o.record(f, a.text)
	return &o
}

// finish hands the message over and reports it. The router acks if the result is nil.
func (a *attempt) finish(o *outcome) error {
	a.logDecision(o)
	if err := a.handOver(o); err != nil {
		return err
	}
	a.reportHandedOver(o)
	return nil
}

// requeue reports a message that goes back to its queue, because its handling was
// interrupted, and returns the error for the router.
func (a *attempt) requeue(cause error) error {
	return a.reportRequeued(&unsettledError{kind: ErrInterrupted, cause: cause})
}

// orNack calls f, notes whether the message is unsettled after that, and returns the result.
// f runs code of the user: if that ends the goroutine, the router does not settle the
// message, so orNack nacks.
func (a *attempt) orNack(f func() error) error {
	returned := false
	defer func() {
		if !returned {
			a.d.msg.Nack()
		}
	}()
	err := f()
	returned = true
	if err != nil && isUnsettled(err, a.d.msg) {
		a.d.progress.Store(unsettled)
	}
	return err
}
