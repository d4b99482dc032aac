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
func (p *Publisher) Start(ctx context.Context, exchange, routingKey string, msg amqp.Publishing) (wait func() error, err error) {
	return p.start(ctx, exchange, routingKey, withHeaders(msg))
}

// withHeaders gives msg headers of its own, with room for one more.
func withHeaders(msg amqp.Publishing) *amqp.Publishing {
	headers := make(amqp.Table, len(msg.Headers)+1)
	maps.Copy(headers, msg.Headers)
	msg.Headers = headers
	return &msg
}

func (p *Publisher) start(ctx context.Context, exchange, routingKey string, msg *amqp.Publishing) (wait func() error, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.Timeout, p.tooLate)
	if !p.enter() {
		cancel()
		return nil, fmt.Errorf("%w: %w", ErrNotSent, ErrClosed)
	}
	end := func() {
		cancel()
		p.wg.Done()
	}

	nonce := p.prefix + strconv.FormatUint(p.count.Add(1), 36)
	msg.Headers[p.cfg.NonceHeader] = nonce
	if err := check(exchange, routingKey, msg); err != nil {
		end()
		return nil, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	for {
		s, err := p.join(ctx)
		if err != nil {
			end()
			return nil, err
		}
		confirm, err := p.send(ctx, s, exchange, routingKey, msg)
		if err == nil {
			return func() error {
				defer end()
				defer p.leave(s)
				return p.await(ctx, s, confirm, nonce, exchange, routingKey)
			}, nil
		}
		p.leave(s)
		if !errors.Is(err, errOver) {
			end()
			return nil, err
		}
	}
}

// publish is Publish on one channel; errOver means that another is needed.
func (p *Publisher) publish(ctx context.Context, s *session, nonce, exchange, routingKey string, msg *amqp.Publishing) error {
	confirm, err := p.send(ctx, s, exchange, routingKey, msg)
	if err != nil {
		return err
	}
	return p.await(ctx, s, confirm, nonce, exchange, routingKey)
}

// await waits for the broker's answer to what was sent.
func (p *Publisher) await(ctx context.Context, s *session, confirm *amqp.DeferredConfirmation, nonce, exchange, routingKey string) error {
	select {
	case <-confirm.Done():
	case <-ctx.Done():
		// The confirm may have come in the same moment.
		select {
		case <-confirm.Done():
		default:
			p.retire(s)
			return fmt.Errorf("%w: %w", ErrUnknown, context.Cause(ctx))
		}
	}

	returned, wasReturned := s.takeReturn(nonce, p.cfg.NonceHeader)
	switch {
	case wasReturned:
		return &ReturnedError{
			Exchange: exchange, RoutingKey: routingKey,
			Code: returned.ReplyCode, Text: returned.ReplyText,
		}
	case confirm.Acked():
		return nil
	case s.ch.IsClosed():
		// An unresolved confirm reads like a nack when its channel closes (F13).
		return fmt.Errorf("%w: %w", ErrUnknown, s.cause())
	}
	return ErrRefused
}
