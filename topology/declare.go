package topology

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
)

// channelRunner runs a function on a channel of its own: an error of the broker
// closes the channel it happens on.
type channelRunner func(context.Context, func(*amqp.Channel) error) error

// atOnceTimeout leaves time of declareTimeout for one part that is out of reach.
const atOnceTimeout = 20 * time.Second

// Declare declares the plan. It is idempotent and never changes a queue or an exchange that exists:
// one with other arguments is a *ConflictError, unless it is a queue that the plan may adopt, which
// is logged. The plan's own queue is the user's and is not declared; a binding to it needs it to
// exist. run calls its function with a channel of its own, because an error of the broker closes
// the channel that it happens on.
func (p Plan) Declare(
	ctx context.Context, run func(context.Context, func(*amqp.Channel) error) error,
	logger watermill.LoggerAdapter,
) error {
	return declare(ctx, run, p, logger)
}

func declare(ctx context.Context, run channelRunner, plan Plan, logger watermill.LoggerAdapter) error {
	if declareAtOnce(ctx, run, plan) == nil {
		return nil
	}
	// Something is refused: one at a time, to tell what.
	for _, e := range plan.Exchanges {
		err := run(ctx, func(ch *amqp.Channel) error {
			return e.declare(ch, false)
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
			return b.declare(ch, false)
		})
		if err != nil {
			kind, name := b.to()
			return fmt.Errorf("bind %s %q to exchange %q: %w", kind, name, b.Exchange, err)
		}
	}
	return nil
}

// declareAtOnce declares a plan without waiting for each answer: Levels has some
// 160 parts. Its error is that of some part, and ends the channel.
func declareAtOnce(ctx context.Context, run channelRunner, plan Plan) error {
	ctx, cancel := context.WithTimeout(ctx, atOnceTimeout)
	defer cancel()
	return run(ctx, func(ch *amqp.Channel) error {
		for _, e := range plan.Exchanges {
			if err := e.declare(ch, true); err != nil {
				return err
			}
		}
		for _, q := range plan.Queues {
			if _, err := ch.QueueDeclare(q.Name, true, false, false, true, q.Arguments); err != nil {
				return err
			}
		}
		for _, b := range plan.Bindings {
			if err := b.declare(ch, true); err != nil {
				return err
			}
		}
		return ch.Qos(1, 0, false) // answered after all the others are done
	})
}

func (b Binding) declare(ch *amqp.Channel, noWait bool) error {
	if b.ToExchange != "" {
		return ch.ExchangeBind(b.ToExchange, b.RoutingKey, b.Exchange, noWait, b.arguments())
	}
	return ch.QueueBind(b.Queue, b.RoutingKey, b.Exchange, noWait, b.arguments())
}

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

// CheckExists names the exchanges and queues of the plan that do not exist, its own queue included;
// nil where there is none. From RabbitMQ 4.3 on looking takes the configure permission (F24): a
// queue or an exchange that the user may not look at is taken to exist, and where it does not,
// consuming or the first retry says so. run is the same as for Declare.
func (p Plan) CheckExists(
	ctx context.Context, run func(context.Context, func(*amqp.Channel) error) error,
) error {
	return checkExists(ctx, run, p)
}

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
