// Command onemessage is the program that internal/tools/walk builds with coverage counters. After
// a warm-up it lets one message fail and be republished, and writes the counters of that time.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/coverage"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

const (
	limit = time.Minute
	// settling is more than an ack takes, and less than the delay of the retry.
	settling = time.Second
)

// policy keeps the failed message waiting until the program has ended.
var policy = backoff.List{30 * time.Second}

func main() {
	folder := flag.String("folder", "", "where the counters are written, in walk and idle")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := run(ctx, os.Getenv("AMQP_URL"), *folder); err != nil {
		fmt.Fprintf(os.Stderr, "onemessage: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, url, folder string) (err error) {
	queue := fmt.Sprintf("millpond-walk-%d", os.Getpid())
	ch, err := plain(url)
	if err != nil {
		return err
	}
	handled := make(chan string, 2)
	stop, err := serve(ctx, url, queue, func(msg *message.Message) error {
		defer func() { handled <- string(msg.Payload) }()
		if string(msg.Payload) == "fails" {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop(), remove(ch, queue)) }()

	for _, step := range []struct{ payload, folder string }{
		{payload: "succeeds"}, // the first two warm up: channels open, queues are declared
		{payload: "fails"},
		{payload: "fails", folder: filepath.Join(folder, "walk")},
		{folder: filepath.Join(folder, "idle")},
	} {
		if step.folder != "" {
			if err := coverage.ClearCounters(); err != nil {
				return err
			}
		}
		if step.payload != "" {
			message := amqp.Publishing{MessageId: step.payload, Body: []byte(step.payload)}
			if err := ch.PublishWithContext(ctx, "", queue, false, false, message); err != nil {
				return err
			}
			select {
			case <-handled:
			case <-ctx.Done():
				return fmt.Errorf("the message that %s was not handled: %w", step.payload, ctx.Err())
			}
		}
		<-time.After(settling) // no event tells when the broker has the ack
		if step.folder != "" {
			err := errors.Join(coverage.WriteMetaDir(step.folder), coverage.WriteCountersDir(step.folder))
			if err != nil {
				return err
			}
		}
	}
	waiting, err := ch.QueueDeclarePassive(queue+".wait.30s", true, false, false, false, nil)
	if err == nil && waiting.Messages != 2 {
		err = fmt.Errorf("%d messages wait, not 2", waiting.Messages)
	}
	return err
}

// serve consumes the queue with retries, as a program of a user does.
func serve(
	ctx context.Context, url, queue string, handle message.NoPublishHandlerFunc,
) (stop func() error, err error) {
	logger := watermill.NopLogger{}
	cfg := wamqp.NewDurableQueueConfig(url)
	client, err := topology.Open(ctx, cfg.Connection, topology.PerQueue{})
	if err != nil {
		return nil, err
	}
	retry, err := middleware.NewDelayedRetry(client, policy)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	sub, err := client.NewSubscriber(cfg, topology.ForPolicy(policy))
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	router.AddMiddleware(retry.Middleware)
	router.AddConsumerHandler("walk", queue, sub, handle)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.WithoutCancel(ctx)) }()
	<-router.Running()
	return func() error { return errors.Join(router.Close(), <-ended, client.Close()) }, nil
}

func plain(url string) (*amqp.Channel, error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return nil, err
	}
	return conn.Channel()
}

func remove(ch *amqp.Channel, queue string) (err error) {
	for _, name := range []string{queue, queue + ".wait.30s", queue + ".dlq"} {
		_, failed := ch.QueueDelete(name, false, false, false)
		err = errors.Join(err, failed)
	}
	return err
}
