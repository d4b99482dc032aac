// Command adopt shows how an existing queue with messages in it gains delayed retries, release
// after release, as docs/adopting.md describes, and loses them again. At any time some instance
// consumes.
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

	"github.com/millpond-go/millpond"
	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/examples/internal/program"
)

// limit is the time after which the program gives up. It takes about ten seconds.
const limit = time.Minute

func main() { program.Main("adopt", run) }

// step is one release, and the orders that are published while it runs beside the one before. That
// ends when they are handled.
type step struct {
	title  string
	start  func(ctx context.Context, s *shop) (*program.Service, error)
	orders []order
}

// order is one message, and its expected fate.
type order struct {
	name  string
	fails int // attempts that fail before one succeeds
	// later is set if the order must still wait when the next release starts.
	later bool
}

var steps = []step{
	{
		title:  "before: watermill-amqp's subscriber",
		start:  startOld,
		orders: []order{{name: "order-1"}, {name: "order-2", fails: 1}},
	},
	{
		title: "release 0: the same with RolloutMarshaler", start: startTolerant,
		orders: []order{{name: "order-3", fails: 1}},
	},
	{
		title: "release 1: millpond", start: startRetrying,
		orders: []order{{name: "order-4"}, {name: "order-5", fails: 2}},
	},
	{
		title: "the next release of it: no old instance is left", start: startRetrying,
		orders: []order{{name: "order-6", fails: 1}, {name: "order-7", fails: 2, later: true}},
	},
	{
		title: "release 0 again, to leave", start: startTolerant,
		orders: []order{{name: "order-8", fails: 1}},
	},
	{
		title: "after: watermill-amqp's subscriber again",
		start: startOld, orders: []order{{name: "order-9"}},
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
	fmt.Fprintln(out, "every order was handled")
	return nil
}

// policy allows two retries, so three attempts in all.
var policy = backoff.List{300 * time.Millisecond, 3 * time.Second}

// startOld starts the service without millpond.
func startOld(ctx context.Context, s *shop) (*program.Service, error) {
	return startWith(ctx, s, amqp.NewDurableQueueConfig(s.url))
}

// startTolerant starts it so that it can read messages that have waited.
func startTolerant(ctx context.Context, s *shop) (*program.Service, error) {
	cfg := amqp.NewDurableQueueConfig(s.url)
	cfg.Marshaler = millpond.RolloutMarshaler(cfg.Marshaler)
	return startWith(ctx, s, cfg)
}

func startWith(ctx context.Context, s *shop, cfg amqp.Config) (*program.Service, error) {
	sub, err := amqp.NewSubscriber(cfg, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	router, err := s.router(sub)
	if err != nil {
		return nil, errors.Join(err, sub.Close())
	}
	return program.Start(ctx, router, nil)
}

// startRetrying starts the service with millpond.
func startRetrying(ctx context.Context, s *shop) (*program.Service, error) {
	retries, err := millpond.Open(ctx, amqp.NewDurableQueueConfig(s.url), policy)
	if err != nil {
		return nil, err
	}
	router, err := s.router(retries.Subscriber)
	if err != nil {
		return nil, errors.Join(err, retries.Close())
	}
	router.AddMiddleware(retries.Retry.Middleware)
	return program.Start(ctx, router, retries)
}

func (s *shop) router(sub message.Subscriber) (*message.Router, error) {
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err == nil {
		router.AddConsumerHandler("orders", s.queue, sub, s.handle)
	}
	return router, err
}
