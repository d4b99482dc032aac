package topology_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// The name of the dead-letter queue: by default, with another ending, and free.
func ExampleDeadLetters() {
	for _, dead := range []topology.DeadLetters{
		{},
		{Suffix: ".failed"},
		{Name: func(queue string) string { return "dead-letters-of-" + queue }},
	} {
		plan, err := topology.PlanFor(topology.PerQueue{Dead: dead}, "orders", backoff.None{})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(plan.Dead.RoutingKey)
	}
	// Output:
	// orders.dlq
	// orders.failed
	// dead-letters-of-orders
}

// All dead letters go to an exchange of yours, which the plan does not declare.
func ExampleDeadLetters_exchange() {
	strategy := topology.PerQueue{Dead: topology.DeadLetters{
		Target: func(queue string) topology.Route {
			return topology.Route{Exchange: "dead-letters", RoutingKey: queue}
		},
	}}
	plan, err := topology.PlanFor(strategy, "orders", backoff.List{5 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(len(plan.Queues), plan.Queues[0].Name, plan.Dead.Exchange, plan.Dead.RoutingKey)
	// Output: 1 orders.wait.5s dead-letters orders
}

// Wait queues and the dead-letter queue are quorum queues unless the strategy says Classic. A
// dead-letter queue that exists keeps its type.
func ExampleQueueType() {
	for _, kind := range []topology.QueueType{"", topology.Quorum, topology.Classic} {
		strategy := topology.PerQueue{Type: kind}
		plan, err := topology.PlanFor(strategy, "orders", backoff.List{5 * time.Second})
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, q := range plan.Queues {
			fmt.Println(q.Name, q.Arguments["x-queue-type"])
		}
	}
	// Output:
	// orders.wait.5s quorum
	// orders.dlq quorum
	// orders.wait.5s quorum
	// orders.dlq quorum
	// orders.wait.5s.classic classic
	// orders.dlq classic
}

// A new message that is delivered in an hour. (It has no "Output:" because it needs a broker.)
func ExamplePublisher_Publish() {
	var client *topology.Client // of Open
	cfg := wamqp.NewDurableQueueConfig("amqp://shop:secret@rabbit-1/")
	pub, err := client.NewPublisher(cfg, topology.WithDelays(time.Hour, 24*time.Hour))
	if err != nil {
		log.Print(err)
		return
	}
	defer pub.Close()
	msg := message.NewMessage(watermill.NewUUID(), []byte("remind of order 7"))
	msg.SetContext(delay.WithContext(msg.Context(), delay.For(time.Hour)))
	if err := pub.Publish("reminders", msg); err != nil {
		log.Print(err)
	}
}

// A new message that is published to an exchange in an hour, with its routing key. It waits in the
// queue later. If the exchange routes it nowhere when it is due, the forwarder tries again, and at
// last it is in later.dlq. (It has no "Output:" because it needs a broker.)
func ExamplePublisher_Publish_exchange() {
	var client *topology.Client // of Open
	const uri = "amqp://shop:secret@rabbit-1/"
	queue := wamqp.NewDurableQueueConfig(uri)
	events := wamqp.NewDurablePubSubConfig(uri, nil) // the topic is the exchange
	events.Exchange.Type = "topic"
	events.Publish.GenerateRoutingKey = func(string) string { return "order.reminded.eu" }

	toQueue, err := client.NewPublisher(queue, topology.WithDelays(time.Hour))
	if err != nil {
		log.Print(err)
		return
	}
	toExchange, err := client.NewPublisher(events)
	if err != nil {
		log.Print(err)
		return
	}
	sub, err := client.NewSubscriber(queue)
	if err != nil {
		log.Print(err)
		return
	}
	retry, err := middleware.NewDelayedRetry(client, backoff.List{time.Second, time.Minute})
	if err != nil {
		log.Print(err)
		return
	}
	logger := watermill.NewStdLogger(false, false)
	forward, err := forwarder.NewForwarder(sub, toExchange, logger, forwarder.Config{
		ForwarderTopic: "later", Middlewares: []message.HandlerMiddleware{retry.Middleware},
	})
	if err != nil {
		log.Print(err)
		return
	}
	ctx := context.Background()
	go func() { log.Print(forward.Run(ctx)) }()
	<-forward.Running()

	later := forwarder.NewPublisher(toQueue, forwarder.PublisherConfig{ForwarderTopic: "later"})
	msg := message.NewMessage(watermill.NewUUID(), []byte("remind of order 7"))
	msg.SetContext(delay.WithContext(ctx, delay.For(time.Hour)))
	if err = later.Publish("events", msg); err != nil {
		log.Print(err)
	}
}

// Messages that wait in the delayed-message plugin have no wait queue: a header says how long.
func ExampleDelayedExchange() {
	plan, err := topology.PlanFor(topology.DelayedExchange{}, "orders", backoff.List{5 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	route, err := plan.Route(topology.Retry{Delay: 5 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(route.Exchange, route.RoutingKey, "x-delay", route.Headers["x-delay"])
	// Output: millpond.delayed orders x-delay 5000
}

// The steps of a delayed publish: a delay takes the next longer step if it is not much longer, else
// it begins with a round of a shorter one.
func ExampleWithDelays() {
	steps := []time.Duration{time.Hour, 24 * time.Hour} // of WithDelays
	plan, err := topology.PerQueue{}.Plan("reminders", steps)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, asked := range []time.Duration{
		20 * time.Minute, 5 * time.Hour, 20 * time.Hour, 72 * time.Hour,
	} {
		route, err := plan.Route(topology.Retry{Delay: asked})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(asked, "waits in", route.RoutingKey)
	}
	// Output:
	// 20m0s waits in reminders.wait.1h
	// 5h0m0s waits in reminders.wait.1h
	// 20h0m0s waits in reminders.wait.24h
	// 72h0m0s waits in reminders.wait.24h
}

// Each tenant has its wait queues, so that a blocked tenant delays no other.
func ExampleShared_tenants() {
	for _, tenant := range []string{"acme", "globex"} {
		strategy := topology.Shared{Prefix: tenant}
		plan, err := topology.PlanFor(strategy, tenant+".orders", backoff.List{5 * time.Second})
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, q := range plan.Queues {
			fmt.Println(q.Name)
		}
	}
	// Output:
	// acme.wait.5s
	// acme.stranded
	// acme.orders.dlq
	// globex.wait.5s
	// globex.stranded
	// globex.orders.dlq
}
