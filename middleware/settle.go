package middleware

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
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
	log := r.newReport(ctx, d, err)
	if isSettled(d.msg) {
		log.settledByHandler()
		return err
	}
	if cause := interruption(ctx, d); cause != nil {
		log.interrupted(cause)
		return &unsettledError{msg: d.msg, kind: ErrInterrupted, cause: cause, handler: err}
	}

	f := failure{err: err, at: log.at, inner: r.isInner(d), notes: d.Notes, now: r.now().UTC()}
	f.mark = r.classes.of(err, log.fault)
	decided := r.limits.decide(f)
	log.decided(f, decided)
	return r.handOver(ctx, d, log, transfer{
		notes: f.record(decided, log.text), delay: decided.delay, aside: decided.aside, err: err, now: f.now,
	})
}

// transfer is a message on its way to the broker: to a wait queue for delay, or
// to the dead-letter queue if its notes have a reason.
type transfer struct {
	notes Notes
	delay time.Duration
	aside bool
	err   error // of the handler; nil if it was not called
	now   time.Time
}

// handOver returns nil once the broker has confirmed the message.
func (r *DelayedRetry) handOver(ctx context.Context, d *Delivery, log *report, t transfer) error {
	t.notes.Metadata = r.kept.of(d.msg.Metadata, log.notKept)
	// A publish that has begun is finished, whatever becomes of the handler.
	detached := context.WithoutCancel(ctx)
	failed := r.holdUntil(ctx, d, t.now, log, func() error {
		if t.notes.Reason != "" {
			return r.republisher.DeadLetter(detached, d.msg, t.notes)
		}
		return r.republisher.Republish(detached, d.msg, t.delay, t.notes)
	})
	if failed != nil {
		failed.msg, failed.handler = d.msg, t.err
		return failed
	}
	log.handedOver(t)
	if t.notes.Reason != "" {
		r.tellOfDeadLetter(ctx, d, log, t)
	}
	return nil
}

// isSettled reports whether msg was acked or nacked.
func isSettled(msg *message.Message) bool {
	select {
	case <-msg.Acked():
		return true
	case <-msg.Nacked():
		return true
	default:
		return false
	}
}
