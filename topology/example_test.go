package topology_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// Client and Subscriber in a service. (Without "Output:", for it needs a broker.)
func ExampleOpen() {
	ctx := context.Background()
	cfg := wamqp.NewDurableQueueConfig("amqp://guest:guest@127.0.0.1:5672/")
	policy := backoff.Exponential{Initial: time.Second, Factor: 10, Max: 500 * time.Second, Retries: 5}

	client, err := topology.Open(ctx, cfg.Connection, topology.PerQueue{})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	sub, err := client.NewSubscriber(cfg, topology.ForPolicy(policy))
	if err != nil {
		log.Fatal(err)
	}
	retry, err := middleware.NewDelayedRetry(client, policy)
	if err != nil {
		log.Fatal(err)
	}
	router := message.NewDefaultRouter(nil)
	router.AddMiddleware(retry.Middleware)
	router.AddConsumerHandler("orders", "orders", sub, func(*message.Message) error { return nil })
	log.Print(router.Run(ctx))
}

// A wrong URL is refused without quoting the password.
func ExampleOpen_badURL() {
	_, err := topology.Open(context.Background(), wamqp.ConnectionConfig{AmqpURI: "amqp://shop:sec/ret@broker/"}, topology.PerQueue{})
	fmt.Println(err)
	// Output:
	// open millpond client: AMQP URL is invalid: it cannot be parsed; reserved characters in user and password must be percent-encoded
}

func ExampleConflictError() {
	err := fmt.Errorf("subscribe: %w", &topology.ConflictError{
		Kind: "queue", Name: "orders.wait.5s", Argument: "x-message-ttl", Wanted: "'5000'", Found: "'2000'",
	})
	var conflict *topology.ConflictError
	if errors.As(err, &conflict) {
		fmt.Println(conflict.Name, "has", conflict.Argument, conflict.Found)
	}
	// Output:
	// orders.wait.5s has x-message-ttl '2000'
}

func ExampleErrClosed() {
	err := fmt.Errorf("subscribe: %w", topology.ErrClosed)
	fmt.Println(errors.Is(err, topology.ErrClosed))
	// Output:
	// true
}
