// Command orders is a CQRS service with delayed retries.
//
// A command places an order; its handler publishes an event; billing and shipping
// each have a queue of their own for it. Billing fails twice: its message waits
// and returns to its own queue, and shipping is not told again.
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
	// limit is when the program gives up; it takes about two seconds.
	limit = time.Minute
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	url := os.Getenv("AMQP_URL")
	if url == "" {
		url = defaultURL
	}
	err := run(ctx, url, fmt.Sprintf("millpond-orders-%d", os.Getpid()), os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "orders: %v\n", err)
		os.Exit(1)
	}
}

// run places one order and returns when it is billed and shipped. The queues and
// the exchange, whose names begin with prefix, stay.
func run(ctx context.Context, url, prefix string, out io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	d := &desk{out: out, done: make(chan struct{}, 10)}
	s, err := start(ctx, url, prefix, d)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.commands.Send(ctx, &PlaceOrder{Order: 1, Item: "bread"}); err != nil {
		return err
	}
	for range 2 {
		select {
		case <-d.done:
		case <-ctx.Done():
			return fmt.Errorf("waited for the order to be billed and shipped: %w", context.Cause(ctx))
		}
	}
	return nil
}
