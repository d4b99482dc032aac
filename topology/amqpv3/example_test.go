package amqpv3_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp3 "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/amqpv3"
)

// The front door with v3's configuration; everything else is package millpond.
func ExampleOpen() {
	cfg := amqpv3.QuorumQueue(wamqp3.NewDurableQueueConfig("amqp://guest:guest@127.0.0.1:5672/"))
	policy := backoff.List{time.Second, time.Minute}
	retries, err := amqpv3.Open(context.Background(), cfg, policy)
	if err != nil {
		log.Print(err)
		return
	}
	defer retries.Close()
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		log.Print(err)
		return
	}
	router.AddMiddleware(retries.Retry.Middleware)
	router.AddConsumerHandler("orders", "orders", retries.Subscriber,
		func(*message.Message) error { return nil })
}

// The constructors of the parts take v3's configuration; everything else is package topology.
func ExampleOpenClient() {
	cfg := wamqp3.NewDurableQueueConfig("amqp://guest:guest@127.0.0.1:5672/")
	client, err := amqpv3.OpenClient(context.Background(), cfg.Connection, topology.PerQueue{})
	if err != nil {
		log.Print(err)
		return
	}
	defer client.Close()
	var retry *middleware.DelayedRetry // of middleware.NewDelayedRetry(client, policy)
	sub, err := amqpv3.NewSubscriber(client, cfg, retry)
	if retry == nil { // a program without the middleware
		sub, err = amqpv3.NewSubscriberWithoutRetry(client, cfg)
	}
	if err != nil {
		log.Print(err)
		return
	}
	defer sub.Close()
	pub, err := amqpv3.NewPublisher(client, cfg)
	if err != nil {
		log.Print(err)
		return
	}
	defer pub.Close()
}

func ExampleQuorumQueue() {
	cfg := amqpv3.QuorumQueue(wamqp3.NewDurableQueueConfig("amqp://guest:guest@127.0.0.1:5672/"))
	fmt.Println(cfg.Queue.Arguments)
	// Output: map[x-delivery-limit:2147483647 x-queue-type:quorum]
}
