// Command per-error gives each kind of error a policy of its own.
//
// It publishes one order for each kind, lets it fail, and prints after how long
// the next attempt came and where the order went in the end.
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

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

const (
	defaultURL = "amqp://guest:guest@127.0.0.1:5672/"
	// limit is when the program gives up; it takes about four seconds.
	limit = time.Minute
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	url := os.Getenv("AMQP_URL")
	if url == "" {
		url = defaultURL
	}
	err := run(ctx, url, fmt.Sprintf("millpond-per-error-%d", os.Getpid()), os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "per-error: %v\n", err)
		os.Exit(1)
	}
}

// run leaves the queues behind, with the dead letters.
func run(ctx context.Context, url, queue string, out io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cfg := amqp.NewDurableQueueConfig(url)
	client, err := topology.Open(ctx, cfg.Connection, topology.PerQueue{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	sub, err := client.NewSubscriber(cfg, topology.ForPolicy(policy))
	if err != nil {
		return err
	}
	pub, err := client.NewPublisher(cfg)
	if err != nil {
		return err
	}
	t := &table{out: out, last: map[string]time.Time{}, ended: make(chan string, len(orders))}
	retry, err := middleware.NewDelayedRetry(client, policy,
		middleware.WithClassifier(middleware.PermanentErrors(errInvalid)),
		middleware.WithDeadLetterHook(t.dead),
	)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router.AddMiddleware(retry.Middleware)
	router.AddConsumerHandler("orders", queue, sub, t.handle)
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(context.WithoutCancel(ctx)) }()
	<-router.Running()
	defer func() { err = errors.Join(err, router.Close(), <-stopped) }()

	for name := range orders {
		if err := pub.Publish(queue, message.NewMessage(watermill.NewUUID(), message.Payload(name))); err != nil {
			return err
		}
	}
	for range orders {
		select {
		case <-t.ended:
		case <-ctx.Done():
			return fmt.Errorf("waited for the orders: %w", context.Cause(ctx))
		}
	}
	return nil
}
