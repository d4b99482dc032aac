package main

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/examples/internal/program"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// policy allows two retries, so three attempts in all.
var policy = backoff.List{300 * time.Millisecond, 3 * time.Second}

// startOld starts the service without millpond.
func startOld(ctx context.Context, s *shop) (*program.Service, error) {
	sub, err := amqp.NewSubscriber(amqp.NewDurableQueueConfig(s.url), watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	return route(ctx, s, sub, nil, nil)
}

// startFirst starts the first release: the subscriber alone. A nacked message goes straight back
// to the queue, as before, because no message may wait while old instances consume.
func startFirst(ctx context.Context, s *shop) (*program.Service, error) {
	return startNew(ctx, s, nil, topology.WithRequeueOnNack())
}

// startRetrying starts the second release, when no old instance is left.
func startRetrying(ctx context.Context, s *shop) (*program.Service, error) {
	return startNew(ctx, s, policy)
}

// startLeaving starts the release before the old subscriber comes back. A message that fails is
// dead-lettered. So is a message that still waited, because it has more failures than the
// policy allows.
func startLeaving(ctx context.Context, s *shop) (*program.Service, error) {
	return startNew(ctx, s, backoff.None{})
}

// startNew retries by p. If p is nil, it leaves failures to the router.
func startNew(
	ctx context.Context, s *shop, p backoff.Policy, options ...topology.SubscriberOption,
) (service *program.Service, err error) {
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
	var retry *middleware.DelayedRetry
	if p != nil {
		buried := middleware.WithDeadLetterHook(s.buried)
		if retry, err = middleware.NewDelayedRetry(client, p, buried); err != nil {
			return nil, err
		}
	}
	return route(ctx, s, sub, retry, client)
}

// route returns once the queue is consumed. The middleware and the client may be nil.
func route(
	ctx context.Context, s *shop, sub message.Subscriber,
	retry *middleware.DelayedRetry, client *topology.Client,
) (*program.Service, error) {
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return nil, errors.Join(err, sub.Close())
	}
	if retry != nil {
		router.AddMiddleware(retry.Middleware)
	}
	router.AddConsumerHandler("orders", s.queue, sub, s.handle)
	if client == nil {
		return program.Start(ctx, router, nil)
	}
	return program.Start(ctx, router, client)
}
