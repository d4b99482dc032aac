package main

// The README shows ServeOrders; a test in internal/tools/docs compares the two.

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

var ErrInvalidOrder = errors.New("invalid order")

// ServeOrders handles the queue "orders" until ctx is done.
func ServeOrders(
	ctx context.Context, url string, handleOrder message.NoPublishHandlerFunc,
	logger watermill.LoggerAdapter,
) error {
	cfg := amqp.NewDurableQueueConfig(url) // of watermill-amqp
	client, err := topology.Open(ctx, cfg.Connection, topology.PerQueue{}, topology.WithLogger(logger))
	if err != nil {
		return err
	}
	defer client.Close()
	policy := backoff.List{2 * time.Second, 5 * time.Second, 15 * time.Second}
	retry, err := middleware.NewDelayedRetry(client, policy,
		middleware.WithClassifier(middleware.PermanentErrors(ErrInvalidOrder)))
	if err != nil {
		return err
	}
	sub, err := client.NewSubscriber(cfg, topology.For(retry)) // in place of amqp.NewSubscriber
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	router.AddMiddleware(retry.Middleware)
	router.AddConsumerHandler("orders", "orders", sub, handleOrder)
	return router.Run(ctx)
}
