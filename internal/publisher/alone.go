package publisher

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
)

// PublishAlone publishes as PublishFor does, but without the nonce header, because
// the headers of the message leave no room for it. It takes a channel of its own, on which a return can be
// that of no other publish.
func (p *Publisher) PublishAlone(ctx context.Context, pending *Pending, exchange, routingKey string, msg *amqp.Publishing) error {
	ctx, cancel, err := p.begun(ctx)
	if err != nil {
		return err
	}
	defer p.wg.Done()
	defer cancel()
	if err := check(exchange, routingKey, msg); err != nil {
		return fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	own, err := p.openAlone(ctx)
	if err != nil {
		return err
	}
	to := target{exchange, routingKey}
	confirm, err := p.send(ctx, own, to, msg)
	if err != nil {
		p.leave(own, to, false)
		if errors.Is(err, errOver) {
			return fmt.Errorf("%w: %w", ErrNotSent, link.ErrLost)
		}
		return err
	}
	return p.outcome(ctx, &sent{publisher: p, session: own, confirm: confirm, to: to}, pending)
}

// openAlone opens a channel for one publish.
func (p *Publisher) openAlone(ctx context.Context) (*session, error) {
	type result struct {
		session *session
		err     error
	}
	opened := make(chan result)
	p.wg.Go(func() {
		s, err := p.openSession(ctx, 1)
		if err == nil {
			s.alone, s.users = true, 1
			s.slots <- struct{}{}
		}
		select {
		case opened <- result{s, err}:
		case <-ctx.Done():
			if err == nil {
				p.leave(s, target{}, false)
			}
		}
	})
	select {
	case r := <-opened:
		if r.err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNotSent, ofLink(r.err))
		}
		return r.session, nil
	case <-ctx.Done():
		return nil, p.notSent(ctx)
	}
}
