package topology

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
)

// channelRunner runs a function on a channel of its own: an error of the broker
// closes the channel it happens on.
type channelRunner func(context.Context, func(*amqp.Channel) error) error

// declare declares the queues of a plan. It is idempotent and never changes
// what exists: a conflict is a ConflictError, but for a queue that may be adopted.
func declare(ctx context.Context, run channelRunner, queues []Queue, logger watermill.LoggerAdapter) error {
	for _, q := range queues {
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
	return nil
}

// queuesFor returns the queues of the plan that a message on that route needs.
func (p Plan) queuesFor(r Route) []Queue {
	for _, q := range p.Queues {
		if r.Exchange == "" && q.Name == r.RoutingKey {
			return []Queue{q}
		}
	}
	return p.Queues
}
