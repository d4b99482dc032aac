package delayed_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/delayed"
	"github.com/millpond-go/millpond/middleware/header"
)

func ExampleNewRepublisher() {
	// A GoChannel does not honour delays; watermill-sql's delayed publisher does.
	pubSub := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 10}, watermill.NopLogger{})
	republisher, err := delayed.NewRepublisher(pubSub,
		delayed.WithDeadLetterTopic(func(string) string { return "given-up" }))
	if err != nil {
		fmt.Println(err)
		return
	}
	policy := backoff.List{time.Millisecond, time.Millisecond}
	retry, err := middleware.NewDelayedRetry(republisher, policy)
	if err != nil {
		fmt.Println(err)
		return
	}
	router := message.NewDefaultRouter(watermill.NopLogger{})
	router.AddSubscriberDecorators(republisher.Subscriber)
	router.AddMiddleware(retry.Middleware)
	router.AddConsumerHandler("billing", "orders", pubSub, func(msg *message.Message) error {
		fmt.Println("attempt", middleware.Attempt(msg.Context()))
		return errors.New("out of stock")
	})
	givenUp, err := pubSub.Subscribe(context.Background(), "given-up")
	if err != nil {
		fmt.Println(err)
		return
	}
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	<-router.Running()

	if err := pubSub.Publish("orders", message.NewMessage("order-1", nil)); err != nil {
		fmt.Println(err)
		return
	}
	dead := <-givenUp
	dead.Ack()
	fmt.Println(dead.UUID, dead.Metadata[header.DeadReason])
	fmt.Println(router.Close(), <-ended, pubSub.Close())
	// Output:
	// attempt 1
	// attempt 2
	// attempt 3
	// order-1 exhausted
	// <nil> <nil> <nil>
}

func ExampleNewRepublisher_problems() {
	_, err := delayed.NewRepublisher(nil, delayed.WithPublishTimeout(-time.Second))
	fmt.Println(err)
	// Output:
	// new delayed republisher: publisher is nil
	// WithPublishTimeout: -1s is not positive
}

// Every option that changes topics, publishers and the log.
func ExampleNewRepublisher_options() {
	pubSub := gochannel.NewGoChannel(gochannel.Config{}, nil)
	options := []delayed.Option{
		delayed.WithRetryTopic(func(topic string) string { return topic + ".again" }),
		delayed.WithDeadLetterPublisher(pubSub), delayed.WithLogger(watermill.NopLogger{}),
	}
	var republisher *delayed.Republisher
	republisher, err := delayed.NewRepublisher(pubSub, options...)
	fmt.Println(republisher != nil, err)
	// Output: true <nil>
}
