// Command outbox places orders in PostgreSQL and handles them from RabbitMQ.
//
// One transaction writes the order and its message; Watermill's Forwarder relays
// the message to RabbitMQ; the consumer retries there. What the producer wrote
// beside the message, its trace and its tracking number, is the same at every
// attempt.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/millpond-go/millpond/middleware"
)

const usage = `Usage: AMQP_URL=amqp://… POSTGRES_URL=postgres://… outbox

Places two orders, the second of which fails three times before it is handled,
and ends when both are. The tables it makes (orders, watermill_outbox and
watermill_offsets_outbox) and the queues (orders, its wait queues and its
dead-letter queue) stay.
`

// limit is when the program gives up; it takes about four seconds.
const limit = time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := 0
	if err := run(ctx, os.Getenv("POSTGRES_URL"), os.Getenv("AMQP_URL"), "orders", os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "outbox: %v\n", err)
		if code = 1; errors.Is(err, errUsage) {
			fmt.Fprint(os.Stderr, "\n"+usage)
			code = 2
		}
	}
	stop()
	os.Exit(code)
}

var (
	errUsage   = errors.New("AMQP_URL and POSTGRES_URL are needed")
	errNoStock = errors.New("out of stock")
)

func run(ctx context.Context, postgres, broker, queue string, out io.Writer) (err error) {
	if postgres == "" || broker == "" {
		return errUsage
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	db, err := sql.Open("pgx", postgres)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()

	handled := make(chan string, 2)
	s, err := start(ctx, db, broker, queue, func(msg *message.Message) error {
		attempt := middleware.Attempt(msg.Context())
		fmt.Fprintf(out, "order %s, attempt %d, tracking %s\n", msg.Payload, attempt, msg.Metadata[trackingKey])
		if msg.Metadata[trackingKey] == "parcel of bread" && attempt < 4 {
			return errNoStock
		}
		fmt.Fprintf(out, "order %s is handled\n", msg.Payload)
		handled <- string(msg.Payload)
		return nil
	}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()

	for _, item := range []string{"flour", "bread"} {
		tracking := message.Metadata{trackingKey: "parcel of " + item}
		if _, err := placeOrder(ctx, db, queue, item, tracking); err != nil {
			return fmt.Errorf("place an order: %w", err)
		}
	}
	for range 2 {
		select {
		case <-handled:
		case <-ctx.Done():
			return fmt.Errorf("waited for the orders: %w", context.Cause(ctx))
		}
	}
	return nil
}
