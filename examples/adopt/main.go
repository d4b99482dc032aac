// Command adopt shows how an existing queue with messages in it gains delayed retries, release
// after release, as docs/adopting.md describes, and loses them again.
//
// The queue is a classic one, declared by watermill-amqp. It keeps its name and its arguments,
// and no order is lost. If one of these is not so, the program exits with 1.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/examples/internal/program"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// limit is the time after which the program gives up. It takes about ten seconds.
const limit = time.Minute

func main() { program.Main("adopt", run) }

// step is one release, and the orders that are published while it runs.
type step struct {
	title string
	start func(ctx context.Context, s *shop) (*program.Service, error)
	// beside keeps the release before this one running until its orders are handled.
	beside bool
	orders []order
}

// order is one message, and its expected fate.
type order struct {
	name  string
	fails int // attempts that fail before one succeeds
	// later is set if the order must still wait when the next release starts.
	later bool
	// dead is set if the order must end in the dead-letter queue.
	dead bool
}

var steps = []step{
	{
		title:  "before: watermill-amqp's subscriber",
		start:  startOld,
		orders: []order{{name: "order-1"}, {name: "order-2", fails: 1}},
	},
	{
		title: "release 1: millpond's subscriber, WithRequeueOnNack, no middleware; " +
			"old instances beside it",
		start: startFirst, beside: true,
		orders: []order{{name: "order-3"}, {name: "order-4", fails: 2}},
	},
	{
		title: "release 2: without that option, with the middleware",
		start: startRetrying,
		orders: []order{
			{name: "order-5", fails: 1},
			{name: "order-6", fails: 2, later: true, dead: true},
		},
	},
	{
		title: "release 3, to leave: with backoff.None no message is tried again, " +
			"also none of those that still wait",
		start:  startLeaving,
		orders: []order{{name: "order-7", fails: 1, dead: true}},
	},
	{
		title: "after: watermill-amqp's subscriber again",
		start: startOld, orders: []order{{name: "order-8"}},
	},
}

func run(ctx context.Context, url, queue string, out io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	s, err := openShop(url, queue, out)
	if err != nil {
		return err
	}
	var running *program.Service
	defer func() {
		if running != nil {
			err = errors.Join(err, running.Close())
		}
		err = errors.Join(err, s.close(err == nil))
	}()

	// The queue must have messages in it before a subscriber of millpond runs.
	if err := s.place(ctx, steps[0].orders); err != nil {
		return err
	}
	for i, step := range steps {
		fmt.Fprintln(out, step.title)
		if running != nil && !step.beside {
			if err := running.Close(); err != nil {
				return err
			}
			running = nil
		}
		next, err := step.start(ctx, s)
		if err != nil {
			return fmt.Errorf("%s: %w", step.title, err)
		}
		old := running
		running = next
		if i > 0 {
			err = s.place(ctx, step.orders)
		}
		if err == nil {
			err = s.settled(ctx)
		}
		if old != nil {
			err = errors.Join(err, old.Close())
		}
		if err != nil {
			return fmt.Errorf("%s: %w", step.title, err)
		}
	}
	fmt.Fprintln(out, "every order was handled, except order-6 and order-7: "+
		"they are in the dead-letter queue")
	return nil
}

// policy allows two retries, so three attempts in all.
var policy = backoff.List{300 * time.Millisecond, 3 * time.Second}

// startOld starts the service without millpond.
func startOld(ctx context.Context, s *shop) (*program.Service, error) {
	sub, err := amqp.NewSubscriber(amqp.NewDurableQueueConfig(s.url), watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	return route(ctx, s, sub, nil, nil)
}

// startFirst starts the first release: the subscriber alone. A nacked message goes straight back
// to the queue, as before, because no message may wait while old instances consume.
func startFirst(ctx context.Context, s *shop) (*program.Service, error) {
	return startNew(ctx, s, nil, topology.WithRequeueOnNack())
}

// startRetrying starts the second release, when no old instance is left.
func startRetrying(ctx context.Context, s *shop) (*program.Service, error) {
	return startNew(ctx, s, policy)
}

// startLeaving starts the release before the old subscriber comes back. A message that fails is
// dead-lettered. So is a message that still waited, because it has more failures than the
// policy allows.
func startLeaving(ctx context.Context, s *shop) (*program.Service, error) {
	return startNew(ctx, s, backoff.None{})
}

// startNew retries by p. If p is nil, it leaves failures to the router.
func startNew(
	ctx context.Context, s *shop, p backoff.Policy, options ...topology.SubscriberOption,
) (service *program.Service, err error) {
	cfg := amqp.NewDurableQueueConfig(s.url)
	client, err := topology.Open(ctx, cfg.Connection, topology.PerQueue{})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, client.Close())
		}
	}()
	sub, err := client.NewSubscriber(cfg, append(options, topology.ForPolicy(policy))...)
	if err != nil {
		return nil, err
	}
	var retry *middleware.DelayedRetry
	if p != nil {
		buried := middleware.WithDeadLetterHook(s.buried)
		if retry, err = middleware.NewDelayedRetry(client, p, buried); err != nil {
			return nil, err
		}
	}
	return route(ctx, s, sub, retry, client)
}

// route returns once the queue is consumed. The middleware and the client may be nil.
func route(
	ctx context.Context, s *shop, sub message.Subscriber,
	retry *middleware.DelayedRetry, client *topology.Client,
) (*program.Service, error) {
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return nil, errors.Join(err, sub.Close())
	}
	if retry != nil {
		router.AddMiddleware(retry.Middleware)
	}
	router.AddConsumerHandler("orders", s.queue, sub, s.handle)
	if client == nil {
		return program.Start(ctx, router, nil)
	}
	return program.Start(ctx, router, client)
}
