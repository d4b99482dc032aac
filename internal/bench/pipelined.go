package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// The entries of the contests with one handler.
const (
	rawPipelined           = "raw, pipelined"
	rawPipelinedNoFailures = "raw, pipelined, nothing fails"
	wmSubscriber           = "watermill-amqp Subscriber"
	wmSubscriberAsIs       = "watermill-amqp Subscriber, default Qos"
)

// prefetches are the steps of the contests with one handler.
var prefetches = []int{16, 64, 256}

// pipelined lets every message of one handler fail. No entry waits for a confirm in the handler.
func (b *bench) pipelined(ctx context.Context) ([]result, error) {
	return scale(prefetches, func(n int) ([]result, error) {
		return b.failingWith(ctx, "pipelined", float64(n), 1, usual, []contender{
			{millpond, serveMillpond, 1, n},
			{rawPipelined, serveRawPipelined, 1, n},
			{bestByHand, serveByHand, 1, n},
			{raw, serveRaw, 0.1, n},
		})
	})
}

// consuming lets one handler handle messages that do not fail.
func (b *bench) consuming(ctx context.Context) ([]result, error) {
	const messages = 12_000
	return scale(prefetches, func(n int) ([]result, error) {
		c := contest{group: "consuming", x: float64(n), rounds: b.rounds}
		return b.lanes(ctx, c, []contender{
			{millpond, serveMillpond, 1, n},
			{raw, serveRaw, 1, n},
			{rawPipelined, serveRawPipelined, 1, n},
			{wmSubscriber, serveOnly, 1, n},
			{wmSubscriberAsIs, serveOnly, 0.2, 1},
		}, func(one contender) (work, func(context.Context, *lane) (values, error)) {
			n := int(messages * one.share)
			w := work{inFlight: 1, delay: time.Hour, handle: func([]byte) error { return nil }}
			return w, func(ctx context.Context, l *lane) (values, error) {
				return l.batch(ctx, n, n, usual)
			}
		})
	})
}

// handed is a delivery whose copy is on its way, or a handled one.
type handed struct {
	delivery amqp.Delivery
	confirm  *amqp.DeferredConfirmation // nil if the message was handled
}

// serveRawPipelined is serveRaw with handlers that do not wait for confirms. One goroutine awaits
// them in their order, and acks all deliveries that are settled with one ack.
func serveRawPipelined(_ context.Context, b *broker, w work) (*service, error) {
	r, err := consumeRaw(b, w, w.ahead())
	if err != nil {
		return nil, err
	}
	sent, problem := make(chan handed, w.ahead()), make(chan error, 2)
	// One goroutine, because an ack settles all earlier deliveries, too.
	go func() {
		defer close(sent)
		problem <- func() error {
			for d := range r.deliveries {
				one := handed{delivery: d}
				if w.handle(d.Body) != nil {
					confirm, err := r.publisher.ch.PublishWithDeferredConfirm("", r.wait, true, false, again(&d))
					if err != nil {
						return err
					}
					one.confirm = confirm
				}
				sent <- one
			}
			return nil
		}()
	}()
	go func() { problem <- r.publisher.settle(sent, w.settled) }()
	return &service{waits: []string{r.wait}, stop: func() error {
		return errors.Join(r.cancel(), <-problem, <-problem, r.close())
	}}, nil
}

// settle awaits the confirms in their order. It acks when the next confirm is still open.
func (p *rawPublisher) settle(sent <-chan handed, settled func([]byte)) error {
	for one := range sent {
		for next, open := one, true; open; {
			one = next
			if one.confirm != nil && !one.confirm.Wait() {
				return errors.New("not confirmed")
			}
			settled(one.delivery.Body)
			select {
			case next, open = <-sent:
				if open && next.confirm != nil && !isDone(next.confirm) {
					if err := p.ackAll(one); err != nil {
						return err
					}
				}
			default:
				open = false
			}
		}
		if err := p.ackAll(one); err != nil {
			return err
		}
	}
	return nil
}

func isDone(c *amqp.DeferredConfirmation) bool {
	select {
	case <-c.Done():
		return true
	default:
		return false
	}
}

// ackAll acks a delivery and all before it, if none of the copies was returned.
func (p *rawPublisher) ackAll(last handed) error {
	select {
	case r := <-p.returns:
		return fmt.Errorf("returned: %s", r.ReplyText)
	default:
	}
	return last.delivery.Ack(true)
}
