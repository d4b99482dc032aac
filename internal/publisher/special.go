package publisher

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
)

// Start is the first half of Publish: it returns when msg is written. The second half is wait,
// which the caller must call once. Messages that are started one after the other reach the
// broker in that order, unless a channel is lost meanwhile.
//
// At most 200 messages may be started without a call of wait; then Start waits for a place. Start
// returns only when msg is answered in two cases: at a named exchange that has not worked yet, and
// after the broker has refused a publish to the target.
func (p *Publisher) Start(
	ctx context.Context, exchange, routingKey string, msg amqp.Publishing,
) (wait func() error, err error) {
	ctx, cancel, err := p.begun(ctx)
	if err != nil {
		return nil, err
	}
	end := func() {
		cancel()
		p.wg.Done()
	}
	s, err := p.start(ctx, nil, Target{Exchange: exchange, RoutingKey: routingKey}, withHeaders(msg))
	if err != nil {
		end()
		return nil, err
	}
	outcome := func() error {
		defer end()
		return p.outcome(ctx, &s, nil)
	}
	if cap(s.channel.slots) > 1 {
		return outcome, nil
	}
	answer := outcome() // frees the only place for the next message
	return func() error { return answer }, nil
}

// PublishAlone publishes as PublishFor does, but without the nonce header, because the headers of
// the message leave no room for it. It opens a new channel, so that a return there belongs to this
// publish.
func (p *Publisher) PublishAlone(
	ctx context.Context, pending *Pending, to Target, msg *amqp.Publishing,
) error {
	ctx, cancel, err := p.begun(ctx)
	if err != nil {
		return err
	}
	defer p.wg.Done()
	defer cancel()
	if err := check(to.Exchange, to.RoutingKey, msg); err != nil {
		return fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	own, err := p.openAlone(ctx)
	if err != nil {
		return err
	}
	confirm, err := p.send(ctx, own, to, msg)
	if err != nil {
		p.leave(own, to, false)
		if errors.Is(err, errOver) {
			return fmt.Errorf("%w: %w", ErrNotSent, link.ErrLost)
		}
		return err
	}
	return p.outcome(ctx, &sent{publisher: p, channel: own, confirm: confirm, to: to}, pending)
}

// openAlone opens a channel for one publish.
func (p *Publisher) openAlone(ctx context.Context) (*channel, error) {
	type result struct {
		channel *channel
		err     error
	}
	opened := make(chan result)
	p.wg.Go(func() {
		c, err := p.openChannel(ctx, 1)
		if err == nil {
			c.alone, c.users = true, 1
			c.slots <- struct{}{}
		}
		select {
		case opened <- result{c, err}:
		case <-ctx.Done():
			if err == nil {
				p.leave(c, Target{}, false)
			}
		}
	})
	select {
	case r := <-opened:
		if r.err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNotSent, ofLink(r.err))
		}
		return r.channel, nil
	case <-ctx.Done():
		return nil, p.notSent(ctx)
	}
}
