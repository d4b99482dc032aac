package topology

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

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
			return declareError("exchange", e.Name, e.Arguments, err)
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
		err = declareError("queue", q.Name, q.Arguments, err)
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

// missing returns the exchanges and queues that the plan names, its own queue
// included, and that do not exist, in words. From 4.3 on looking takes the
// configure permission (F24); what may not be looked at is taken to exist, and
// where it does not, consuming or the first retry says so.
func missing(ctx context.Context, run channelRunner, plan Plan) ([]string, error) {
	var names []string
	check := func(kind, name string, passive func(*amqp.Channel) error) error {
		switch err := run(ctx, passive); {
		case isCode(err, amqp.NotFound):
			names = append(names, fmt.Sprintf("%s %q", kind, name))
		case isCode(err, amqp.AccessRefused):
		case err != nil:
			return fmt.Errorf("check %s %q: %w", kind, name, err)
		}
		return nil
	}
	queues := []string{plan.Queue}
	for _, q := range plan.Queues {
		queues = append(queues, q.Name)
	}
	for _, name := range queues {
		err := check("queue", name, func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	exchanges := map[string]string{} // passive: the kind is not compared
	for _, e := range plan.Exchanges {
		exchanges[e.Name] = e.Kind
	}
	if plan.Dead.Exchange != "" {
		exchanges[plan.Dead.Exchange] = "direct"
	}
	for name, kind := range exchanges {
		err := check("exchange", name, func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(name, kind, true, false, false, false, nil)
		})
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(names)
	return names, nil
}

// checkExists reports what is missing of a plan that was to be provisioned.
func checkExists(ctx context.Context, run channelRunner, plan Plan) error {
	names, err := missing(ctx, run, plan)
	if err == nil && len(names) > 0 {
		err = fmt.Errorf("to be provisioned, for WithPreProvisioned declares nothing: %s", strings.Join(names, ", "))
	}
	return err
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
