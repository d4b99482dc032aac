package middleware

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
)

// settle decides what becomes of msg after err and sees it done. It returns nil
// if the message may be acked.
func (r *DelayedRetry) settle(ctx context.Context, d *Delivery, msg *message.Message, err error) error {
	// Code of the user runs below: if it ends the goroutine, nobody else nacks.
	returned := false
	defer func() {
		if !returned {
			msg.Nack()
		}
	}()
	result := r.settleFailure(ctx, d, msg, err)
	returned = true
	return result
}

func (r *DelayedRetry) settleFailure(ctx context.Context, d *Delivery, msg *message.Message, err error) error {
	if isUnsettled(err, msg) {
		return err
	}
	log := r.newReport(ctx, d, msg, err)
	if isSettled(msg) {
		log.settledByHandler()
		return err
	}
	if cause := interruption(ctx, d); cause != nil {
		log.interrupted(cause)
		return &unsettledError{msg: msg, kind: ErrInterrupted, cause: cause, handler: err}
	}

	f := failure{err: err, notes: d.Notes, now: r.now().UTC()}
	f.mark = r.classes.of(err, log.fault)
	decided := r.limits.decide(f)
	log.decided(f, decided)
	notes := f.record(decided, log.handler, log.text)

	// A publish that has begun is finished, whatever becomes of the handler.
	detached := context.WithoutCancel(ctx)
	failed := r.holdUntil(ctx, d, f.now, log, func() error {
		if decided.reason != "" {
			return r.republisher.DeadLetter(detached, msg, notes)
		}
		return r.republisher.Republish(detached, msg, decided.delay, notes)
	})
	if failed != nil {
		failed.msg, failed.handler = msg, err
		return failed
	}
	log.handedOver(decided)
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
