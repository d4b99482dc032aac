package native_test

import (
	"fmt"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/native"
)

// A queue of RabbitMQ 4.3 that holds rejected messages: a failure takes no wait queue, unless it
// asks for another delay. The queue needs these arguments.
func ExampleStrategy() {
	cfg := wamqp.NewDurableQueueConfig("amqp://localhost")
	cfg.Queue.Arguments = amqp.Table{
		"x-queue-type": "quorum", "x-delayed-retry-type": "failed",
		"x-delayed-retry-min": 5_000, "x-delayed-retry-max": 30_000,
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.dlq",
	}
	strategy := native.Strategy{Min: 5 * time.Second, Max: 30 * time.Second}
	policy := backoff.Linear{
		Initial: 5 * time.Second, Step: 5 * time.Second, Max: 30 * time.Second, Retries: 9,
	}
	plan, err := topology.PlanFor(strategy, "orders", policy)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("the queue holds messages from", plan.RejectMin, "to", plan.RejectMax)
	for _, q := range plan.Queues {
		fmt.Println(q.Name)
	}
	// Output:
	// the queue holds messages from 5s to 30s
	// orders.wait.1s
	// orders.wait.5s
	// orders.wait.30s
	// orders.wait.2m
	// orders.wait.10m
	// orders.wait.1h
	// orders.dlq
}
