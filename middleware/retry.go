package middleware

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/attached"
	"github.com/millpond-go/millpond/internal/clock"
	"github.com/millpond-go/millpond/internal/observe"
	"github.com/millpond-go/millpond/internal/seam"
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
	now      func() time.Time
	events   *observe.List[Event] // nil without observers
	watched  bool                 // a success is counted or told
	warned   struct{ poison, delayed, again atomic.Bool }
	foreign  foreign
	selected selected
}

// NewDelayedRetry returns a DelayedRetry that asks policy about every failure and gives
// messages to republisher. It uses the republisher's logger and observers, if there are some and
// no option names others.
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
	r := &DelayedRetry{republisher: republisher, settings: s, now: clock.Now}
	r.events = newEvents(s.logger, s.observers)
	r.limits.countRetries()
	r.watched = r.events != nil || len(s.budgets) > 0
	for _, p := range r.Policies() {
		for _, remark := range backoff.Remarks(p) {
			s.logger.Info("Remark on the retry policy", watermill.LogFields{"remark": remark})
		}
	}
	return r, nil
}

func init() {
	seam.RetryOf = func(retry any) seam.Retry { return retry.(*DelayedRetry).parts() }
}

// parts are for the Subscriber, which plans the wait queues of the policies, stops with the brakes,
// and dead-letters some messages by itself.
func (r *DelayedRetry) parts() seam.Retry {
	parts := seam.Retry{Policies: r.PoliciesFor, Observers: r.own}
	for _, b := range r.budgets {
		parts.Budgets = append(parts.Budgets, b.Budget)
	}
	if len(r.hooks) > 0 {
		parts.Dead = func(
			ctx context.Context, msg *message.Message, queue, topic string, err error,
			state header.RetryState,
		) {
			r.tellDead(ctx, DeadLetter{Message: msg, Queue: queue, Topic: topic, Err: err, State: state})
		}
	}
	return parts
}

// tellDead calls the hooks of WithDeadLetterHook. A panic of a hook is logged.
func (r *DelayedRetry) tellDead(ctx context.Context, dead DeadLetter) {
	r.callHooks(ctx, dead, func(value any) {
		r.logger.Error("Dead-letter hook panicked", dead.Err, watermill.LogFields{
			"value": valueText(value), "queue": dead.Queue, "topic": dead.Topic,
			"reason": string(dead.State.Reason),
		})
	})
}

// Policies returns the policy of NewDelayedRetry and then the policies of WithPolicyFor in their
// order, as topology.ForPolicy takes them; see PoliciesFor for the plan of one queue. The caller
// owns the slice.
func (r *DelayedRetry) Policies() []backoff.Policy { return r.limits.policies() }

// PoliciesFor returns the policies that the messages of a queue and topic may ask, as
// topology.PlanFor takes them: those of WithPolicyFor whose Queue and Topic fit, and the policy of
// NewDelayedRetry unless one of them is for all failures there. The caller owns the slice.
func (r *DelayedRetry) PoliciesFor(queue, topic string) (found []backoff.Policy) {
	for _, rule := range r.limits.rules {
		if !anyOr(rule.Queue, queue) || !anyOr(rule.Topic, topic) {
			continue
		}
		if found = append(found, rule.policy); rule.Handler == "" && rule.Error == nil {
			return found
		}
	}
	return append(found, r.limits.policy)
}

// Middleware returns h with delayed retries around it. If h succeeds, its messages are
// returned untouched. If it fails, they are dropped, as the router does, and the result is
// nil once the message was handed over. A message that arrives past its limit is
// dead-lettered without a call of h.
//
// Any other result wraps ErrInterrupted or ErrNotHandedOver and the handler's error. If the
// handler acked or nacked the message itself, the result is the handler's own error.
func (r *DelayedRetry) Middleware(h message.HandlerFunc) message.HandlerFunc {
	met := r.selected.add(r)
	return func(msg *message.Message) ([]*message.Message, error) {
		a := attempt{r: r}
		if !a.begin(msg) { // a copy is confirmed: another copy would come back beside it
			a.warnCalledAgain()
			return nil, nil
		}
		if met != nil && !met.Load() && first(met) {
			r.selected.meet(r, a.d.Place(a.ctx))
		}
		// The context of an acked message is done as well, but no delivery will follow it:
		// a middleware outside acks at once.
		if a.d.Ended() && !isAcked(msg) {
			return nil, a.interrupted()
		}
		if a.d.HasWaited {
			if refused := a.pastLimit(); refused != nil {
				return nil, a.refuse(refused)
			}
		}
		if len(r.budgets) > 0 {
			if heldBack := a.holdBack(); heldBack != nil {
				return nil, a.refuse(heldBack)
			}
		}
		produced, err := a.call(h)
		if err != nil {
			deepen(false)
			return nil, a.settle(err)
		}
		if r.watched {
			a.reportHandled()
		}
		return produced, nil
	}
}

// deepen lets the stack of this goroutine grow at once to the depth of a hand-over. The router
// starts a goroutine for each message, whose stack would otherwise be doubled and copied several
// times, and with more frames each time.
//
//go:noinline
func deepen(never bool) (sum byte) {
	if never { // the frame has room for the array all the same
		var room [12 << 10]byte
		for i := range room {
			sum += room[i]
		}
	}
	return sum
}

// attempt is one message on its way through one DelayedRetry. It stays on the stack of a
// success.
type attempt struct {
	r *DelayedRetry
	d *attached.Delivery
	// ctx is the one with which the message entered: middlewares inside replace it.
	ctx context.Context

	key      string // of the budget with a Key
	keyProbe bool   // probes this key

	// Observers are told these.
	called bool
	took   time.Duration
}

// failed is an attempt that did not succeed: the handler failed, or was not called.
type failed struct {
	attempt
	err    error  // of the handler; nil if it was not called
	why    error  // err, or why the handler was not called
	text   string // of why, uncut
	at     place
	logger lines
	quiet  bool // the logger drops everything
}

// begin finds the delivery of the message, or makes one, and notes that it is here. It reports
// false if the broker has confirmed a copy of the message.
func (a *attempt) begin(msg *message.Message) bool {
	a.ctx = msg.Context()
	d := attached.Of(a.ctx, msg)
	if d == nil {
		d = attached.Adopt(msg)
		a.ctx = msg.Context()
	}
	a.d = d
	if progress := d.Progress(); progress != attached.Inside {
		if progress == attached.HandedOver {
			return false
		}
		d.Enter(a.ctx)
	}
	d.Inner = a.r
	if d.Outer == nil {
		d.Outer = a.r
	}
	if !a.isInner() { // a Watermill Retry outside may call once more
		d.Told = false
		if d.Requeued.Load() { // a store costs more
			d.Requeued.Store(false)
		}
	}
	return true
}

// isInner reports whether another DelayedRetry is around this one.
func (a *attempt) isInner() bool { return a.d.Outer != a.r }

// interrupted reports an attempt that ended before the handler was called.
func (a attempt) interrupted() error {
	f := &failed{attempt: a}
	return f.orNack(func() error { return f.requeue(f.d.Interruption(f.d.AttachContext())) })
}

// pastLimit returns the outcome of a message that arrives past its limit: a dead letter. It
// returns nil if the handler is to be called.
func (a *attempt) pastLimit() *outcome {
	var at place
	if len(a.r.limits.rules) > 0 { // asking the context costs more than all the rest
		at = a.d.Place(a.ctx)
	}
	reason := a.r.limits.past(&a.d.State, at, a.isInner(), a.r.now)
	if reason == "" {
		return nil
	}
	return a.deadLetter(reason)
}

// refuse hands over a message that no handler may see.
func (a attempt) refuse(o *outcome) error {
	f := &failed{attempt: a, why: o.why, text: o.why.Error()}
	return f.orNack(func() error {
		f.prepare()
		return f.finish(o)
	})
}

// call calls the handler, and returns a panic as a *PanicError. If the handler ends its
// goroutine (runtime.Goexit, as t.FailNow does), the router does not settle the message, so
// call nacks.
func (a *attempt) call(h message.HandlerFunc) (produced []*message.Message, err error) {
	keys, returned := len(a.d.Message.Metadata), false
	var began time.Time
	if a.r.events != nil {
		began = time.Now()
	}
	defer func() {
		if !returned {
			value := recover()
			if value == nil {
				a.d.Message.Nack()
				return
			}
			err = &PanicError{Value: value, Stack: debug.Stack()}
		}
		if a.r.events != nil {
			a.called, a.took = true, time.Since(began)
		}
		if len(a.d.Message.Metadata) != keys {
			a.warnOrder(err)
		}
	}()
	produced, err = h(a.d.Message)
	returned = true
	return produced, err
}

// settle decides about a message whose handler failed, and hands it over. The router acks if
// the result is nil.
func (a attempt) settle(err error) error {
	f := &failed{attempt: a, err: err, why: err}
	return f.orNack(func() error {
		if isUnsettled(err, f.d.Message) { // an inner DelayedRetry has reported it
			return err
		}
		f.text = f.r.textOf(err)
		f.prepare()
		if isAcked(f.d.Message) || isNacked(f.d.Message) {
			f.reportSelfSettled()
			return err
		}
		if cause := f.d.Interruption(f.ctx); cause != nil {
			f.logInterrupted(cause)
			return f.requeue(cause)
		}
		return f.finish(f.decide())
	})
}

// prepare finds the place of the message and prepares the log. From here on this DelayedRetry
// decides, so no other one tells observers.
func (f *failed) prepare() {
	f.d.Told, f.at, f.logger = true, f.d.Place(f.ctx), lines{f}
	_, f.quiet = f.r.logger.(watermill.NopLogger)
}

// decide asks the classifiers, the policy and the budgets. A failure that a stopped brake explains
// is a snooze: it spends no attempt.
func (f *failed) decide() *outcome {
	seen := failure{
		err: f.err, at: f.at, inner: f.isInner(),
		state: f.d.State, now: f.r.now().UTC(), given: f.d.Given,
	}
	var faults []fault
	seen.mark, faults = f.r.classes.of(f.err)
	asked := seen.mark.snooze // by the handler: no failure
	stopped := false
	if len(f.r.budgets) > 0 && !asked {
		var slow time.Duration
		if slow, stopped = f.countFailed(&seen); stopped {
			seen.mark = snoozeFor(slow)
		}
	}
	o := f.r.limits.decide(seen)
	o.faults = append(o.faults, faults...)
	o.overBudget = stopped && o.snoozed
	if len(f.r.budgets) > 0 && !o.snoozed {
		if asked { // it may not snooze any longer, so it has failed
			f.countFailed(&seen)
		}
		if o.reason == "" {
			f.spend(seen, &o)
		}
	}
	o.record(seen, f.text)
	return &o
}

// finish hands the message over and reports it. The router acks if the result is nil.
func (f *failed) finish(o *outcome) error {
	f.logDecision(o)
	if err := f.handOver(o); err != nil {
		return err
	}
	f.reportHandedOver(o)
	return nil
}

// requeue reports a message that goes back to its queue, because its handling was
// interrupted, and returns the error for the router.
func (f *failed) requeue(cause error) error {
	return f.reportRequeued(&unsettledError{kind: ErrInterrupted, cause: cause})
}

// orNack calls do, notes whether the message is unsettled after that, and returns the result.
// do runs code of the user: if that ends the goroutine, the router does not settle the
// message, so orNack nacks.
func (f *failed) orNack(do func() error) error {
	returned := false
	defer func() {
		if !returned {
			f.d.Message.Nack()
		}
	}()
	err := do()
	returned = true
	if err != nil && isUnsettled(err, f.d.Message) {
		f.d.Advance(attached.Unsettled)
	}
	return err
}
