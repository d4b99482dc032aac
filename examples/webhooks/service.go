package main

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/examples/internal/webhook"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// lanes is how many deliveries are in progress at once. One that is slow holds up none but itself.
const lanes = 8

// service consumes one queue, with delayed retries.
type service struct {
	client  *topology.Client
	router  *message.Router
	sender  *webhook.Sender
	stopped chan error // what the router's Run returned
}

// startService returns once the queue is consumed.
func startService(ctx context.Context, url, queue string, strategy topology.Strategy,
	logger watermill.LoggerAdapter) (*service, error) {
	cfg := amqp.NewDurableQueueConfig(url)
	client, err := topology.Open(ctx, cfg.Connection, strategy, topology.WithLogger(logger))
	if err != nil {
		return nil, err
	}
	s := &service{client: client, sender: webhook.NewSender(lanes), stopped: make(chan error, 1)}
	if err := s.route(cfg, queue, logger); err != nil {
		return nil, errors.Join(err, client.Close())
	}

	go func() { s.stopped <- s.router.Run(context.WithoutCancel(ctx)) }()
	select {
	case <-s.router.Running():
		return s, nil
	case err := <-s.stopped:
		s.stopped <- err
		return nil, errors.Join(err, s.close())
	case <-ctx.Done():
		return nil, errors.Join(errInterrupted, s.close())
	}
}

func (s *service) route(cfg amqp.Config, queue string, logger watermill.LoggerAdapter) error {
	retry, err := webhook.NewRetry(s.client, middleware.WithLogger(logger))
	if err != nil {
		return err
	}
	sub, err := s.client.NewSubscriber(cfg, topology.ForPolicy(append(retry.Policies(),
		webhook.RetryAfters)...), topology.WithConcurrency(lanes))
	if err != nil {
		return err
	}
	s.router, err = message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	s.router.AddMiddleware(retry.Middleware)
	s.router.AddConsumerHandler("webhooks", queue, sub, s.sender.Deliver)
	return nil
}

// close lets the deliveries in progress finish, hands over what failed, and ends the connections.
func (s *service) close() error {
	err := errors.Join(s.router.Close(), <-s.stopped, s.client.Close())
	s.sender.Close()
	return err
}
