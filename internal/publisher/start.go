package publisher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Start is the first half of Publish: it returns when msg is written. The other
// half is wait, which must be called, once. Messages that are started one after
// the other reach the broker in that order, unless a channel is lost meanwhile.
//
// At most 200 messages may be started whose wait was not called yet: Start waits for
// a place. At a named exchange that has not worked yet, and where the broker has
// refused an earlier publish, Start returns only when msg is answered.
func (p *Publisher) Start(ctx context.Context, exchange, routingKey string, msg amqp.Publishing) (wait func() error, err error) {
	ctx, cancel, err := p.begun(ctx)
	if err != nil {
		return nil, err
	}
	end := func() {
		cancel()
		p.wg.Done()
	}
	s, err := p.start(ctx, nil, target{exchange, routingKey}, withHeaders(msg))
	if err != nil {
		end()
		return nil, err
	}
	outcome := func() error {
		defer end()
		return p.outcome(ctx, &s, nil)
	}
	if cap(s.session.slots) > 1 {
		return outcome, nil
	}
	answer := outcome() // the only place is free for the next one
	return func() error { return answer }, nil
}

// withHeaders gives msg headers of its own, with room for one more.
func withHeaders(msg amqp.Publishing) *amqp.Publishing {
	headers := make(amqp.Table, len(msg.Headers)+1)
	maps.Copy(headers, msg.Headers)
	msg.Headers = headers
	return &msg
}

// begun counts a call and bounds its time. The caller calls cancel and p.wg.Done.
func (p *Publisher) begun(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if !p.enter() {
		return nil, nil, fmt.Errorf("%w: %w", ErrNotSent, ErrClosed)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.Timeout, p.tooLate)
	return ctx, cancel, nil
}

// start writes msg on the channel of its target.
func (p *Publisher) start(ctx context.Context, pending *Pending, to target, msg *amqp.Publishing) (sent, error) {
	nonce := p.prefix + strconv.FormatUint(p.count.Add(1), 36)
	msg.Headers[p.cfg.NonceHeader] = nonce
	if err := check(to.exchange, to.routingKey, msg); err != nil {
		return sent{}, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	if pending != nil && pending.refused {
		p.separate(to, true) // other messages may have taken the target back
	}
	for {
		s, err := p.join(ctx, to)
		if err != nil {
			return sent{}, err
		}
		confirm, err := p.send(ctx, s, to, msg)
		if err == nil {
			return sent{publisher: p, session: s, confirm: confirm, nonce: nonce, to: to}, nil
		}
		p.leave(s, to, false)
		if !errors.Is(err, errOver) {
			return sent{}, err
		}
	}
}

// outcome waits for the broker's answer to a publish. Where the answer does not come
// in time, the publish is kept in pending, or given up where that is nil.
func (p *Publisher) outcome(ctx context.Context, s *sent, pending *Pending) error {
	select {
	case <-s.confirm.Done():
	case <-ctx.Done():
		// The confirm may have come in the same moment.
		select {
		case <-s.confirm.Done():
		default:
			return p.late(ctx, *s, pending)
		}
	}
	worked, err := p.answer(s)
	if err != nil && pending != nil {
		pending.refused = pending.refused || s.session.refusal() != nil
	}
	p.leave(s.session, s.to, worked)
	return err
}

// late returns the error of a publish whose confirm has not come when ctx was done.
func (p *Publisher) late(ctx context.Context, s sent, pending *Pending) error {
	p.overdue(ctx, &s)
	if pending != nil {
		pending.sent.Store(&s)
	} else {
		p.retire(s.session) // its return may come yet, and has no place any more
		p.leave(s.session, s.to, false)
	}
	return unknown(context.Cause(ctx))
}

func unknown(cause error) error { return fmt.Errorf("%w: %w", ErrUnknown, cause) }

// answer reads the broker's answer to a publish whose confirm is there, and reports
// whether the target has worked: the broker has answered with an ack.
func (p *Publisher) answer(s *sent) (worked bool, err error) {
	worked = s.confirm.Acked()
	returned, wasReturned := s.session.takeReturn(s.nonce, p.cfg.NonceHeader)
	switch {
	case wasReturned:
		return worked, &ReturnedError{
			Exchange: s.to.exchange, RoutingKey: s.to.routingKey,
			Code: returned.ReplyCode, Text: returned.ReplyText,
		}
	case worked:
		return true, nil
	case s.session.ch.IsClosed():
		// An unresolved confirm reads like a nack when its channel closes (F13).
		if s.session.refusal() != nil {
			p.separate(s.to, true)
		}
		return false, unknown(s.session.cause())
	}
	return false, ErrRefused
}
