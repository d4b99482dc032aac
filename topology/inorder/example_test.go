package inorder_test

import (
	"fmt"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/inorder"
)

// While a message of an order waits for its retry, the later messages of that order wait behind it.
func ExampleStrategy() {
	cfg := wamqp.NewDurableQueueConfig("amqp://localhost")
	cfg.Queue.Arguments = amqp.Table{
		"x-queue-type": "quorum", "x-single-active-consumer": true,
	}
	strategy := inorder.Strategy{
		KeyBy: func(msg *message.Message) string { return msg.Metadata.Get("order") },
	}
	plan, err := topology.PlanFor(strategy, "orders", backoff.List{5 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("messages wait in", plan.Line)
	// Output: messages wait in orders.line
}
