package publisher

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
)

// PublishAlone is Publish without the nonce header, for a message whose headers
// leave no room for it. It takes a channel of its own, on which a return can be
// that of no other publish.
func (p *Publisher) PublishAlone(ctx context.Context, exchange, routingKey string, msg *amqp.Publishing) error {
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.Timeout, p.tooLate)
	defer cancel()
	if !p.enter() {
		return fmt.Errorf("%w: %w", ErrNotSent, ErrClosed)
	}
	defer p.wg.Done()
	if err := check(exchange, routingKey, msg); err != nil {
		return fmt.Errorf("%w: %w", ErrNotSent, err)
	}

	type result struct {
		session *session
		err     error
	}
	opened := make(chan result)
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		s, err := p.openSession(ctx)
		select {
		case opened <- result{s, err}:
		case <-ctx.Done():
			if err == nil {
				p.finish(s)
			}
		}
	}()
	var r result
	select {
	case r = <-opened:
	case <-ctx.Done():
		return p.notSent(ctx)
	}
	if r.err != nil {
		return fmt.Errorf("%w: %w", ErrNotSent, ofLink(r.err))
	}
	defer p.finish(r.session)
	err := p.publish(ctx, r.session, "", exchange, routingKey, msg)
	if errors.Is(err, errOver) {
		return fmt.Errorf("%w: %w", ErrNotSent, link.ErrLost)
	}
	return err
}

// finish ends a channel that one publish had for itself.
func (p *Publisher) finish(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end(s)
	p.closeUnused(s)
}
