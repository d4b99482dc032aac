package middleware

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/millpond-go/millpond/internal/excerpt"
	"github.com/millpond-go/millpond/middleware/header"
)

// settle decides what becomes of the message after err and sees it done. It
// returns nil if the message may be acked.
func (r *DelayedRetry) settle(ctx context.Context, d *Delivery, err error) error {
	return orNack(d.msg, func() error { return r.settleFailure(ctx, d, err) })
}

// orNack returns what f returns. f runs code of the user: if that ends the
// goroutine, nobody else nacks the message.
func orNack(msg *message.Message, f func() error) error {
	returned := false
	defer func() {
		if !returned {
			msg.Nack()
		}
	}()
	err := f()
	returned = true
	return err
}

func (r *DelayedRetry) settleFailure(ctx context.Context, d *Delivery, err error) error {
	if isUnsettled(err, d.msg) {
		return err
	}
	d.attempt.told = true
	log := r.newReport(ctx, d, err, r.textOf(err))
	if acked := isAcked(d.msg); acked || isNacked(d.msg) {
		if acked {
			log.ackedTooEarly()
		} else {
			log.nackedByHandler()
		}
		r.observe(ctx, d, EventSelfSettled, d.msg.Nack, func(e *Event) { e.Err = err })
		return err
	}
	if cause := interruption(ctx, d); cause != nil {
		log.interrupted(cause)
		unsettled := &unsettledError{msg: d.msg, kind: ErrInterrupted, cause: cause, handler: err, text: excerpt.Of(log.text, maxLogBytes)}
		r.observeUnsettled(ctx, d, unsettled)
		return unsettled
	}

	return r.handOver(ctx, d, log, r.decide(ctx, d, log, err))
}

// decide decides what becomes of the message. Apart from what follows, for each of
// its values that is kept there is copied with the stack that grows there.
func (r *DelayedRetry) decide(ctx context.Context, d *Delivery, log *report, err error) *transfer {
	f := failure{err: err, at: log.at, inner: r.isInner(d), notes: d.State, now: r.now().UTC(), given: d.Given}
	f.mark = r.classes.of(err, log.fault)
	decided := r.limits.decide(f)
	if r.budget.Budget != nil && !decided.aside {
		r.tellOfBudget(ctx, d, r.budget.handled(f.mark.class == header.ClassRetryable))
		if decided.reason == "" {
			r.spend(ctx, d, f, &decided)
		}
	}
	log.decided(f, decided)
	return &transfer{
		notes: f.record(decided, log.text), delay: decided.delay, aside: decided.aside, overBudget: decided.overBudget, err: err, now: f.now,
	}
}

// transfer is a message on its way to the broker: to a wait queue for delay, or
// to the dead-letter queue if its notes have a reason.
type transfer struct {
	notes header.RetryState
	delay time.Duration
	aside bool
	err   error // of the handler; nil if it was not called
	now   time.Time
	// overBudget is set where the budget has changed the decision.
	overBudget bool
}

// placed notes that the message could only be dead-lettered.
func (t *transfer) placed(reason header.Reason) { t.notes.Reason = reason }

// handOver returns nil once the broker has confirmed the message.
func (r *DelayedRetry) handOver(ctx context.Context, d *Delivery, log *report, t *transfer) error {
	t.notes.Metadata = r.kept.of(d.msg.Metadata, log.notKept)
	d.Republished = Republished{}
	// A publish that has begun is finished, whatever becomes of the handler.
	detached := context.WithoutCancel(ctx)
	failed := r.hold(ctx, d, t.now, log, func() error {
		if t.notes.Reason != "" {
			return r.republisher.DeadLetter(detached, d.msg, t.notes)
		}
		return r.republisher.Republish(detached, d.msg, t.delay, t.notes)
	})
	if failed != nil {
		failed.msg, failed.handler, failed.text = d.msg, t.err, excerpt.Of(log.text, maxLogBytes)
		r.observeUnsettled(ctx, d, failed)
		return failed
	}
	d.handedOver = true
	if reason := d.Republished.Reason; reason != "" && t.notes.Reason == "" {
		log.notRetried(reason)
		t.placed(reason)
	} else {
		log.handedOver(t, max(d.Republished.Delay, givenBy(d.Given, t.delay)))
	}
	r.observeHandedOver(ctx, d, t)
	if t.notes.Reason != "" {
		r.tellOfDeadLetter(ctx, d, log, t)
	}
	return nil
}

func isAcked(msg *message.Message) bool { return isClosed(msg.Acked()) }

func isNacked(msg *message.Message) bool { return isClosed(msg.Nacked()) }

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}
