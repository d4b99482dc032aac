package topology

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
)

// channelRunner runs a function on a channel of its own: an error of the broker
// closes the channel it happens on.
type channelRunner func(context.Context, func(*amqp.Channel) error) error

// declare declares a plan. It is idempotent and never changes what exists: a
// conflict is a ConflictError, but for a queue that may be adopted.
func declare(ctx context.Context, run channelRunner, plan Plan, logger watermill.LoggerAdapter) error {
	for _, e := range plan.Exchanges {
		err := run(ctx, func(ch *amqp.Channel) error {
			return ch.ExchangeDeclare(e.Name, e.Kind, true, false, false, false, e.Arguments)
		})
		if err != nil {
			return declareError("exchange", e.Name, err)
		}
	}
	for _, q := range plan.Queues {
		err := run(ctx, func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(q.Name, true, false, false, false, q.Arguments)
			return err
		})
		if err == nil {
			continue
		}
		err = declareError("queue", q.Name, err)
		var conflict *ConflictError
		if !q.Adopt || !errors.As(err, &conflict) {
			return err
		}
		logger.Info("Warning: a queue exists with other arguments than ours; it is used as it is",
			watermill.LogFields{"queue": q.Name, "argument": conflict.Argument, "wanted": conflict.Wanted, "found": conflict.Found})
	}
	for _, b := range plan.Bindings {
		err := run(ctx, func(ch *amqp.Channel) error {
			return ch.QueueBind(b.Queue, b.RoutingKey, b.Exchange, false, nil)
		})
		if err != nil {
			return fmt.Errorf("bind queue %q to exchange %q: %w", b.Queue, b.Exchange, err)
		}
	}
	return nil
}

// forRoute returns the part of the plan that a message on route needs: with no
// exchange in between, the queue alone.
func (p Plan) forRoute(r Route) Plan {
	for _, q := range p.Queues {
		if r.Exchange == "" && q.Name == r.RoutingKey {
			return Plan{Queue: p.Queue, Queues: []Queue{q}}
		}
	}
	return p
}
