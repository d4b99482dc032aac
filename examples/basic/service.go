package main

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

// policy allows three retries, so four attempts in all.
var policy = backoff.List{300 * time.Millisecond, time.Second, 2 * time.Second}

// service consumes one queue, with delayed retries.
type service struct {
	client  *topology.Client
	router  *message.Router
	stopped chan error // what the router's Run returned
}

// startService returns once the queue is consumed.
func startService(
	ctx context.Context, url, queue string, strategy topology.Strategy,
	handle message.NoPublishHandlerFunc, logger watermill.LoggerAdapter,
) (*service, error) {
	cfg := amqp.NewDurableQueueConfig(url)
	client, err := topology.Open(ctx, cfg.Connection, strategy, topology.WithLogger(logger))
	if err != nil {
		return nil, err
	}
	s := &service{client: client, stopped: make(chan error, 1)}
	if err := s.route(cfg, queue, handle, logger); err != nil {
		return nil, errors.Join(err, client.Close())
	}

	// Cancelling the context of Run would do as well; the demo closes the router.
	go func() { s.stopped <- s.router.Run(context.WithoutCancel(ctx)) }()
	select {
	case <-s.router.Running():
		return s, nil
	case err := <-s.stopped:
		s.stopped <- err
		return nil, errors.Join(err, s.close())
	case <-ctx.Done():
		return nil, errors.Join(context.Cause(ctx), s.close())
	}
}

// route is what a service with delayed retries has that others have not: the
// subscriber of the client, and the middleware.
func (s *service) route(cfg amqp.Config, queue string, handle message.NoPublishHandlerFunc, logger watermill.LoggerAdapter) error {
	sub, err := s.client.NewSubscriber(cfg, topology.ForPolicy(policy))
	if err != nil {
		return err
	}
	retry, err := middleware.NewDelayedRetry(s.client, policy,
		middleware.WithClassifier(middleware.PermanentErrors(errInvalidOrder)),
		middleware.WithLogger(logger),
	)
	if err != nil {
		return err
	}
	s.router, err = message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	s.router.AddMiddleware(retry.Middleware)
	s.router.AddConsumerHandler("orders", queue, sub, handle)
	return nil
}

// close lets the order in progress finish, hands over what failed, and ends the
// connections.
func (s *service) close() error {
	return errors.Join(s.router.Close(), <-s.stopped, s.client.Close())
}
