// Command adopt shows a queue that exists, with messages in it, gain delayed
// retries and lose them again, release after release, as the README says.
//
// The queue is a classic one of watermill-amqp's own making. It keeps its name
// and its arguments, and no order is lost on the way. The program exits with 1
// where that is not so.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const (
	defaultURL = "amqp://guest:guest@127.0.0.1:5672/"
	// limit is when the program gives up; it takes about ten seconds.
	limit = time.Minute
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	url := os.Getenv("AMQP_URL")
	if url == "" {
		url = defaultURL
	}
	err := run(ctx, url, fmt.Sprintf("millpond-adopt-%d", os.Getpid()), os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "adopt: %v\n", err)
		os.Exit(1)
	}
}

// step is one release, and the orders that come while it runs.
type step struct {
	title string
	start func(ctx context.Context, s *shop) (*instance, error)
	// beside keeps the release before it running until its orders are handled.
	beside bool
	orders []order
}

// order is one message, and what becomes of it.
type order struct {
	name  string
	fails int // attempts, before it is handled
	// later is set where it has to be still waiting when the next release starts.
	later bool
	// dead is set where it ends in the dead-letter queue.
	dead bool
}

var steps = []step{
	{title: "before: watermill-amqp's subscriber", start: startOld, orders: []order{{name: "order-1"}, {name: "order-2", fails: 1}}},
	{title: "release 1: millpond's subscriber, WithRequeueOnNack, no middleware; old instances beside it", start: startFirst, beside: true,
		orders: []order{{name: "order-3"}, {name: "order-4", fails: 2}}},
	{title: "release 2: without that option, with the middleware", start: startRetrying,
		orders: []order{{name: "order-5", fails: 1}, {name: "order-6", fails: 2, later: true, dead: true}}},
	{title: "release 3, to leave: with backoff.None nothing is tried again, not even what waits still", start: startLeaving, orders: []order{{name: "order-7", fails: 1, dead: true}}},
	{title: "after: watermill-amqp's subscriber again", start: startOld, orders: []order{{name: "order-8"}}},
}

func run(ctx context.Context, url, queue string, out io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	s, err := openShop(url, queue, out)
	if err != nil {
		return err
	}
	var running *instance
	defer func() {
		if running != nil {
			err = errors.Join(err, running.close())
		}
		err = errors.Join(err, s.close(err == nil))
	}()

	// So that the queue has messages in it before anything of ours runs.
	if err := s.place(ctx, steps[0].orders); err != nil {
		return err
	}
	for i, step := range steps {
		fmt.Fprintln(out, step.title)
		if running != nil && !step.beside {
			if err := running.close(); err != nil {
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
			err = errors.Join(err, old.close())
		}
		if err != nil {
			return fmt.Errorf("%s: %w", step.title, err)
		}
	}
	fmt.Fprintln(out, "every order was handled, but for order-6 and order-7, which are in the dead-letter queue")
	return nil
}
