package topology

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/consumer"
	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/seam"
)

// channelRunner runs a function on its own channel, because an error of the broker closes the
// channel.
type channelRunner func(context.Context, func(*amqp.Channel) error) error

// atOnceTimeout leaves time of the callers' 90 s for one part that is out of reach.
const atOnceTimeout = 20 * time.Second

// Declare declares the plan. It is idempotent and never changes a queue or an exchange that exists:
// one with other arguments is a *ConflictError, unless it is a queue that the plan may adopt, which
// is logged. The plan's own queue is the user's and is not declared; a binding to it needs it to
// exist. run calls its function with a new channel, because an error of the broker closes the
// channel that it happens on.
func (p Plan) Declare(
	ctx context.Context, run func(context.Context, func(*amqp.Channel) error) error,
	logger watermill.LoggerAdapter,
) error {
	return declare(ctx, run, p, logger)
}

func declare(
	ctx context.Context, run channelRunner, plan Plan, logger watermill.LoggerAdapter,
) error {
	switch err := declareAtOnce(ctx, run, plan); {
	case err == nil:
		return nil
	case isCode(err, amqp.CommandInvalid): // ends the connection, so no part can be declared (F49)
		return withoutPlugin(plan.delayingExchanges(), err)
	}
	// The broker refuses a part. Declare one part at a time to find out which.
	for _, e := range plan.Exchanges {
		err := run(ctx, func(ch *amqp.Channel) error {
			return e.declare(ch, false)
		})
		if err != nil {
			err = declareError("exchange", e.Name, e.Arguments, err)
			var conflict *ConflictError
			// The first error may have been the end of a connection that had ended before.
			unknown := isCode(err, amqp.CommandInvalid) ||
				isCode(err, amqp.PreconditionFailed) && !errors.As(err, &conflict)
			if e.delaysMessages() && unknown {
				return withoutPlugin([]string{e.Name}, err)
			}
			return err
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
		logger.Error("Warning: the queue exists with other arguments than the plan has; it is used "+
			"unchanged", seam.ErrNotYet,
			watermill.LogFields{
				"queue": q.Name, "argument": conflict.Argument, "wanted": conflict.Wanted,
				"found": conflict.Found,
			})
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

// withoutPlugin adds the way out to the broker's error about an exchange of an unknown type. A plan
// that needs no plugin has no such exchange.
func withoutPlugin(delaying []string, err error) error {
	if len(delaying) == 0 {
		return err
	}
	return fmt.Errorf("exchange %q is of the type %s, which the broker does not know: run "+
		"rabbitmq-plugins enable rabbitmq_delayed_message_exchange on every node (the plugin ends with "+
		"RabbitMQ 4.2), or use another strategy, such as topology.Levels: %w",
		strings.Join(delaying, ", "), delayedKind, err)
}

// declareAtOnce declares a plan without waiting for each answer: Levels has some 160 parts. Its
// error is the error of one part, and ends the channel.
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

// missing names the exchanges and queues of the plan, its own queue included, that do not exist.
// From RabbitMQ 4.3 on looking takes the configure permission (F24). A queue or an exchange that
// the user may not look at is taken to exist. If it does not, consuming or the first retry fails.
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
		err = fmt.Errorf("WithPreProvisioned declares nothing, and these do not exist: %s: provision "+
			"them", strings.Join(names, ", "))
	}
	return err
}

// redeclarer declares the parts of a plan again that have vanished.
type redeclarer struct {
	plan        *Plan
	publisher   *publisher.Publisher
	provisioned bool
	logger      watermill.LoggerAdapter
}

// tellPause is how long a queue that has vanished stays away. RabbitMQ 3.10 looks up to 30 ms later
// whether the queue is gone for good, and tells its consumers then. If the queue is back by then,
// the broker keeps them as consumers and sends them nothing (F54).
const tellPause = 300 * time.Millisecond

// redeclare declares a part of the route again if err says that the part has vanished: the
// broker has returned a message, or has closed the channel with 404. It returns nil when the
// message can be published once more.
func (r *redeclarer) redeclare(ctx context.Context, route Route, err error) error {
	if isCode(err, amqp.AccessRefused) {
		return withWayOut(err)
	}
	var returned *publisher.ReturnedError
	switch {
	case errors.As(err, &returned) && !r.plan.leadsFrom(route.Exchange):
		return fmt.Errorf("exchange %q, which the plan does not declare, has no queue for routing key "+
			"%q: bind one: %w", route.Exchange, route.RoutingKey, err)
	case errors.As(err, &returned):
	case isCode(err, amqp.NotFound) && r.plan.declares(route.Exchange):
	case isCode(err, amqp.NotFound) && route.Exchange != "":
		return fmt.Errorf("exchange %q may be missing, and the plan does not declare it: declare the "+
			"exchange: %w", route.Exchange, err)
	default:
		return err
	}
	if r.provisioned {
		return fmt.Errorf("a queue, an exchange or a binding for retries is missing, and "+
			"WithPreProvisioned declares nothing: provision it again: %w", err)
	}
	vanished := r.vanished(ctx, route, returned != nil)
	if returned != nil && !consumer.Sleep(ctx, tellPause) {
		return errors.Join(fmt.Errorf("%s has vanished: %w", vanished, err), context.Cause(ctx))
	}
	declareErr := declare(ctx, r.publisher.Do, r.plan.forRoute(route), r.logger)
	if declareErr != nil {
		return errors.Join(fmt.Errorf("%s has vanished: %w", vanished, err), declareErr)
	}
	r.logger.Error("A part of the plan had vanished and was declared again; if it is a wait queue, "+
		"the messages that waited in it are lost: find out what deletes it", err,
		watermill.LogFields{
			"vanished": vanished,
			"exchange": route.Exchange, "routing_key": route.RoutingKey,
		})
	return nil
}

// vanished names the part of the plan that is missing on a route: the exchange if the broker has
// said so, else the queue that the route leads to, or a binding on the way if that queue exists.
func (r *redeclarer) vanished(ctx context.Context, route Route, returned bool) string {
	if !returned {
		return fmt.Sprintf("exchange %q", route.Exchange)
	}
	routing := newRouting(*r.plan)
	headers := routing.headers(route, "")
	to := routing.reach(route.Exchange, route.RoutingKey, headers)
	for _, queue := range slices.Sorted(maps.Keys(to.queues)) {
		if _, err := audit.Passive(ctx, r.publisher.Do, queue); isCode(err, amqp.NotFound) {
			return fmt.Sprintf("queue %q", queue)
		}
	}
	return fmt.Sprintf("a binding of exchange %q", route.Exchange)
}

// leadsFrom reports whether messages that are published to the exchange reach a queue through
// exchanges and bindings of the plan.
func (p *Plan) leadsFrom(exchange string) bool {
	return exchange == "" || p.declares(exchange) ||
		slices.ContainsFunc(p.Bindings, func(b Binding) bool { return b.Exchange == exchange })
}

// declares reports whether the exchange is one of the plan.
func (p *Plan) declares(exchange string) bool {
	return slices.ContainsFunc(p.Exchanges, func(e Exchange) bool { return e.Name == exchange })
}

// forRoute returns the part of the plan that a message on the route needs: without an exchange
// in between, the queue alone.
func (p Plan) forRoute(r Route) Plan {
	for _, q := range p.Queues {
		if r.Exchange == "" && q.Name == r.RoutingKey {
			return Plan{Queue: p.Queue, Queues: []Queue{q}}
		}
	}
	return p
}
