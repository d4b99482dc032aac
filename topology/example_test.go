package topology_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/management"
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
	sub, err := client.NewSubscriberWithoutRetry(cfg, topology.ForPolicy(policy))
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

// A client with every option. Most programs need WithLogger alone.
func ExampleOpen_options() {
	options := []topology.Option{
		topology.WithLogger(watermill.NewSlogLogger(nil)),
		topology.WithName("shop"),
		topology.WithBrokers("amqp://shop:secret@rabbit-2/", "amqp://shop:secret@rabbit-3/"),
		topology.WithCredentials(func(context.Context) (user, password string, err error) {
			return "shop", "from the vault", nil
		}),
		topology.WithConfirmTimeout(5 * time.Second),
		topology.WithManagement(management.At("https://watcher:secret@rabbit-1:15671/")),
		topology.WithObserver(middleware.ObserverFunc(
			func(_ context.Context, e middleware.Event) { log.Print(e.Kind) })),
		topology.WithPreProvisioned(),
		topology.WithControlUsers("shop", "anna"),
		topology.WithoutClusterCheck(),
	}
	conn := wamqp.ConnectionConfig{AmqpURI: "amqp://shop:secret@rabbit-1/"}
	client, err := topology.Open(context.Background(), conn, topology.PerQueue{}, options...)
	if err != nil {
		log.Print(err)
		return
	}
	defer client.Close()
	log.Print(client.Healthy())
}

// A subscriber with every option; the DelayedRetry names the policies.
func ExampleClient_NewSubscriber() {
	var client *topology.Client // of Open
	cfg := wamqp.NewDurableQueueConfig("amqp://shop:secret@rabbit-1/")
	policy := backoff.List{time.Second, time.Minute}
	retry, err := middleware.NewDelayedRetry(client, policy)
	if err != nil {
		log.Print(err)
		return
	}
	another, err := middleware.NewDelayedRetry(client, backoff.None{})
	if err != nil {
		log.Print(err)
		return
	}
	options := []topology.SubscriberOption{
		topology.For(another),                              // of another handler
		topology.ForPolicy(backoff.List{10 * time.Minute}), // delays that errors ask for
		topology.WithConcurrency(16),
		topology.WithPrefetch(64),
		topology.WithDrainTimeout(10 * time.Second),
		topology.WithHandlerWarning(time.Minute),
		topology.WithConsumerTimeout(15 * time.Minute),
		topology.WithTimestampWindow(time.Hour, time.Minute),
		topology.WithOldInstances(), // only during a rollout
	}
	var sub *topology.Subscriber
	if sub, err = client.NewSubscriber(cfg, retry, options...); err != nil {
		log.Print(err)
		return
	}
	defer sub.Close()
}

// A handler looks at the delivery as it arrived, with the types of AMQP.
func ExampleReceived() {
	handle := func(msg *message.Message) error {
		if delivery, ok := topology.Received(msg.Context()); ok {
			log.Print(delivery.RoutingKey, delivery.Headers["x-tenant"])
		}
		return nil
	}
	_ = handle
}

// onePerTenant is a strategy of a user: each tenant has its own wait queues.
type onePerTenant struct{ tenant string }

func (s onePerTenant) Plan(queue string, delays []time.Duration) (topology.Plan, error) {
	return topology.Shared{Prefix: s.tenant, Type: topology.Classic}.Plan(queue, delays)
}

// A strategy is a value with one method. ValidatePlan refuses a plan that could lose messages.
func ExampleStrategy() {
	var strategy topology.Strategy = onePerTenant{"acme"}
	plan, err := topology.PlanFor(strategy, "orders", backoff.List{5 * time.Second})
	fmt.Println(plan.Queues[0].Name, err)
	// Output: acme.wait.5s.classic <nil>
}

// A plan written by hand: one wait queue behind an exchange.
func ExampleWaitQueue_plan() {
	wait := topology.WaitQueue("orders.later", time.Second, topology.Route{RoutingKey: "orders"})
	dead := amqp091.Table{"x-queue-type": string(topology.Quorum), "x-delivery-limit": 1 << 30}
	plan := topology.Plan{
		Queue:     "orders",
		Exchanges: []topology.Exchange{{Name: "orders.in", Kind: "fanout"}},
		Queues:    []topology.Queue{wait, {Name: "orders.dlq", Arguments: dead}},
		Bindings:  []topology.Binding{{Exchange: "orders.in", Queue: "orders.later"}},
		WaitSteps: []topology.Route{{Exchange: "orders.in", Delay: time.Second, Hops: 1}},
		Dead:      topology.Route{RoutingKey: "orders.dlq"},
	}
	fmt.Println(topology.ValidatePlan(plan))
	route, err := plan.Route(topology.Retry{Delay: time.Second})
	fmt.Println(route.Exchange, err)
	// Output:
	// <nil>
	// orders.in <nil>
}

// Plans are data: the exchanges of Via, the levels, the permissions of two plans together.
func ExamplePlan() {
	policy := backoff.List{time.Second}
	through, err := topology.PlanFor(topology.PerQueue{Via: []string{"events"}}, "orders", policy)
	if err != nil {
		fmt.Println(err)
		return
	}
	levels, err := topology.PlanFor(topology.Levels{Max: time.Minute}, "mail", policy)
	if err != nil {
		fmt.Println(err)
		return
	}
	var via *topology.Via = through.Via
	var routes *topology.LevelRoutes = levels.Levels
	var both topology.Permissions = through.Permissions(false).Join(levels.Permissions(false))
	kinds := []topology.QueueType{topology.Quorum, topology.Classic}
	fmt.Println(via.Exchanges, via.Through)
	fmt.Println(routes)
	fmt.Println(both.Read, kinds)
	// Output:
	// [events] millpond.via
	// any delay in steps of 100ms up to 1m42.3s, 1 % more for fewer levels
	// ^(orders)$|^(mail)$ [quorum classic]
}

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

// A new message that is delivered in an hour. (It has no "Output:" because it needs a broker.)
func ExamplePublisher_Publish() {
	var client *topology.Client // of Open
	cfg := wamqp.NewDurableQueueConfig("amqp://shop:secret@rabbit-1/")
	options := []topology.PublisherOption{topology.WithDelays(time.Hour, 24*time.Hour)}
	var pub *topology.Publisher
	pub, err := client.NewPublisher(cfg, options...)
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
	sub, err := client.NewSubscriberWithoutRetry(queue)
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
