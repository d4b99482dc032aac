package topology_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// Client and Subscriber in a service. (It has no "Output:" because it needs a broker.)
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
	conn := wamqp.ConnectionConfig{AmqpURI: "amqp://shop:sec/ret@broker/"}
	_, err := topology.Open(context.Background(), conn, topology.PerQueue{})
	fmt.Println(strings.ReplaceAll(err.Error(), "; ", ";\n"))
	// Output:
	// open millpond client: AMQP URL is invalid: it cannot be parsed;
	// reserved characters in user and password must be percent-encoded
}

func ExampleConflictError() {
	err := fmt.Errorf("subscribe: %w", &topology.ConflictError{
		Kind: "queue", Name: "orders.wait.5s",
		Argument: "x-message-ttl", Wanted: "'5000'", Found: "'2000'",
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

// Publisher.Publish returns it for a message whose headers are too large to ever
// be delivered; the middleware dead-letters one as oversized.
func ExampleErrTooLarge() {
	err := fmt.Errorf("publish: %w", topology.ErrTooLarge)
	fmt.Println(errors.Is(err, topology.ErrTooLarge))
	// Output:
	// true
}

// Of these two, the one has not arrived and the other may have.
func ExampleErrOutcomeUnknown() {
	for _, err := range []error{
		fmt.Errorf("publish: %w", topology.ErrUnroutable),
		fmt.Errorf("publish: %w", topology.ErrOutcomeUnknown),
	} {
		switch {
		case errors.Is(err, topology.ErrUnroutable):
			fmt.Println("no queue has it: nothing to clean up")
		case errors.Is(err, topology.ErrOutcomeUnknown):
			fmt.Println("publish it again, and bear a duplicate")
		}
	}
	// Output:
	// no queue has it: nothing to clean up
	// publish it again, and bear a duplicate
}

func ExampleShared() {
	for _, queue := range []string{"orders", "mail"} {
		plan, err := topology.Shared{}.Plan(queue, []time.Duration{5 * time.Second, 2 * time.Minute})
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, q := range plan.Queues {
			fmt.Println(queue, "needs", q.Name)
		}
	}
	// Output:
	// orders needs millpond.wait.5s
	// orders needs millpond.wait.2m
	// orders needs millpond.stranded
	// orders needs orders.dlq
	// mail needs millpond.wait.5s
	// mail needs millpond.wait.2m
	// mail needs millpond.stranded
	// mail needs mail.dlq
}

// The permissions of a user that consumes orders, if everything was provisioned.
func ExamplePlan_Permissions() {
	plan, err := topology.PerQueue{}.Plan("orders", []time.Duration{5 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	p := plan.Permissions(false)
	fmt.Printf("configure %s\nwrite     %s\nread      %s\n", p.Configure, p.Write, p.Read)
	// Output:
	// configure ^$
	// write     ^(amq\.default)$
	// read      ^(orders)$
}

// The queues of a strategy for the delays of a policy, without a broker.
func ExamplePlanFor() {
	policy := backoff.Constant{Interval: 5 * time.Second, Retries: 3}
	plan, err := topology.PlanFor(topology.PerQueue{}, "orders", policy)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, q := range plan.Queues {
		fmt.Println(q.Name)
	}
	// Output:
	// orders.wait.5s
	// orders.dlq
}

// A policy that cannot list its delays uses the default wait steps.
func ExamplePlanFor_unlisted() {
	policy := backoff.PolicyFunc(func(backoff.Failure) (time.Duration, bool) {
		return 7 * time.Second, true
	})
	strategy := topology.PerQueue{Dead: topology.DeadLetters{Suffix: ".failed"}}
	plan, err := topology.PlanFor(strategy, "orders", policy)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, step := range plan.WaitSteps {
		fmt.Println(step.Delay)
	}
	fmt.Println(plan.Dead.RoutingKey)
	// Output:
	// 1s
	// 5s
	// 30s
	// 2m0s
	// 10m0s
	// 1h0m0s
	// orders.failed
}
