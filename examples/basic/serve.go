package main

// The README shows the lines of ServeOrders; a test in internal/tools/docs compares the two.

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond"
	"github.com/millpond-go/millpond/backoff"
)

// ServeOrders handles the queue "orders" until ctx is done.
func ServeOrders(
	ctx context.Context, url string, handleOrder message.NoPublishHandlerFunc,
	logger watermill.LoggerAdapter,
) error {
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	cfg := millpond.QuorumQueue(amqp.NewDurableQueueConfig(url)) // of watermill-amqp
	policy := backoff.List{2 * time.Second, 5 * time.Second, 15 * time.Second}
	retries, err := millpond.Open(ctx, cfg, policy, millpond.WithLogger(logger))
	if err != nil {
		return err
	}
	defer retries.Close()
	router.AddMiddleware(retries.Retry.Middleware)
	router.AddConsumerHandler("orders", "orders", retries.Subscriber, handleOrder)
	return router.Run(ctx)
}
