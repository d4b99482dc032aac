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

// policy allows two retries, so three attempts in all.
var policy = backoff.List{300 * time.Millisecond, 3 * time.Second}

// instance is a running service.
type instance struct {
	router  *message.Router
	stopped chan error // what the router's Run returned
	client  *topology.Client
}

// startOld is the service as it was: nothing of millpond in it.
func startOld(ctx context.Context, s *shop) (*instance, error) {
	sub, err := amqp.NewSubscriber(amqp.NewDurableQueueConfig(s.url), watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	return route(ctx, s, sub, nil)
}

// startFirst is the first release: the subscriber alone. What is nacked goes
// straight back, as before: nothing may wait while old instances consume.
func startFirst(ctx context.Context, s *shop) (*instance, error) {
	return startNew(ctx, s, nil, topology.WithRequeueOnNack())
}

// startRetrying is the second release, when no old instance is left.
func startRetrying(ctx context.Context, s *shop) (*instance, error) { return startNew(ctx, s, policy) }

// startLeaving is the release before the old subscriber comes back: what fails is
// dead-lettered, and what still waits is as it returns, for its failures are more
// than the policy allows.
func startLeaving(ctx context.Context, s *shop) (*instance, error) {
	return startNew(ctx, s, backoff.None{})
}

// startNew retries by p, or leaves failures to the router where it is nil.
func startNew(ctx context.Context, s *shop, p backoff.Policy, options ...topology.SubscriberOption) (i *instance, err error) {
	cfg := amqp.NewDurableQueueConfig(s.url)
	client, err := topology.Open(ctx, cfg.Connection, topology.PerQueue{})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, client.Close())
		}
	}()
	sub, err := client.NewSubscriber(cfg, append(options, topology.ForPolicy(policy))...)
	if err != nil {
		return nil, err
	}
	var middlewares []message.HandlerMiddleware
	if p != nil {
		retry, err := middleware.NewDelayedRetry(client, p, middleware.WithDeadLetterHook(s.buried))
		if err != nil {
			return nil, err
		}
		middlewares = append(middlewares, retry.Middleware)
	}
	i, err = route(ctx, s, sub, middlewares)
	if err != nil {
		return nil, err
	}
	i.client = client
	return i, nil
}

// route returns once the queue is consumed.
func route(ctx context.Context, s *shop, sub message.Subscriber, middlewares []message.HandlerMiddleware) (*instance, error) {
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return nil, errors.Join(err, sub.Close())
	}
	router.AddMiddleware(middlewares...)
	router.AddConsumerHandler("orders", s.queue, sub, s.handle)
	i := &instance{router: router, stopped: make(chan error, 1)}
	go func() { i.stopped <- router.Run(context.WithoutCancel(ctx)) }()
	select {
	case <-router.Running():
		return i, nil
	case err := <-i.stopped:
		return nil, errors.Join(err, sub.Close())
	}
}

func (i *instance) close() error {
	err := errors.Join(i.router.Close(), <-i.stopped)
	if i.client != nil {
		err = errors.Join(err, i.client.Close())
	}
	return err
}
