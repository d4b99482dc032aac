package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

var (
	// policy is for answers that say no: a receiver in trouble needs time.
	policy = backoff.List{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second}
	// networkPolicy is for connections that break and answers that do not come.
	networkPolicy = backoff.List{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}
	// retryAfters are what receivers ask for: with wait queues of their own,
	// nobody waits longer than that.
	retryAfters = backoff.List{time.Second, 2 * time.Second, 3 * time.Second}
)

const (
	maxAttempts = 5
	// lanes is how many deliveries are in progress at once. One that is slow
	// holds up its lane alone.
	lanes = 8
)

// service consumes one queue, with delayed retries.
type service struct {
	client  *topology.Client
	router  *message.Router
	sender  *sender
	stopped chan error // what the router's Run returned
}

// startService returns once the queue is consumed.
func startService(ctx context.Context, url, queue string, strategy topology.Strategy, logger watermill.LoggerAdapter) (*service, error) {
	cfg := amqp.NewDurableQueueConfig(url)
	client, err := topology.Open(ctx, cfg.Connection, strategy, topology.WithLogger(logger))
	if err != nil {
		return nil, err
	}
	s := &service{client: client, sender: newSender(), stopped: make(chan error, 1)}
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
	retry, err := newRetry(s.client, logger)
	if err != nil {
		return err
	}
	sub, err := s.client.NewSubscriber(cfg, topology.ForPolicy(append(retry.Policies(), retryAfters)...))
	if err != nil {
		return err
	}
	s.router, err = message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	s.router.AddMiddleware(retry.Middleware)
	for lane := range lanes {
		s.router.AddConsumerHandler(fmt.Sprintf("webhooks-%d", lane+1), queue, sub, s.sender.deliver)
	}
	return nil
}

// newRetry says what becomes of a delivery that failed: byStatus whether it is
// tried again, the two policies when.
func newRetry(republisher middleware.Republisher, logger watermill.LoggerAdapter) (*middleware.DelayedRetry, error) {
	return middleware.NewDelayedRetry(republisher, policy,
		middleware.WithPolicyFor(middleware.Selector{Error: middleware.NetworkErrors()}, networkPolicy),
		middleware.WithClassifier(middleware.ClassifierFunc(byStatus)),
		middleware.WithMaxAttempts(maxAttempts),
		middleware.WithLogger(logger),
	)
}

// close lets the deliveries in progress finish, hands over what failed, and ends
// the connections.
func (s *service) close() error {
	err := errors.Join(s.router.Close(), <-s.stopped, s.client.Close())
	s.sender.client.CloseIdleConnections()
	return err
}
