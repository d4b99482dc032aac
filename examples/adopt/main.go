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

	"github.com/millpond-go/millpond/examples/internal/program"
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
