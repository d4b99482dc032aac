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

// Service handles a queue with retries.
type Service struct {
	URL, Queue string
	Handle     message.NoPublishHandlerFunc
	Logger     watermill.LoggerAdapter

	// What tests change. Zero is what the service does by itself.
	retriesURL     string                                          // the connection for hand-overs; URL
	confirmTimeout time.Duration                                   // 10 s
	policy         backoff.Policy                                  // 1s 5s 30s
	compose        func(*message.Router, *middleware.DelayedRetry) // DelayedRetry alone
	ready          func()                                          // called once it consumes
}

// Run handles messages until ctx is done.
func (s Service) Run(ctx context.Context) (err error) {
	policy := s.policy
	if policy == nil {
		policy = backoff.List{time.Second, 5 * time.Second, 30 * time.Second}
	}
	options := []topology.Option{topology.WithLogger(s.Logger)}
	if s.confirmTimeout > 0 {
		options = append(options, topology.WithConfirmTimeout(s.confirmTimeout))
	}
	cfg := amqp.NewDurableQueueConfig(s.URL)
	conn := cfg.Connection
	if s.retriesURL != "" {
		conn.AmqpURI = s.retriesURL
	}
	client, err := topology.Open(ctx, conn, topology.PerQueue{}, options...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	sub, err := client.NewSubscriber(cfg, topology.ForPolicy(policy))
	if err != nil {
		return err
	}
	retry, err := middleware.NewDelayedRetry(client, policy, middleware.WithLogger(s.Logger))
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, s.Logger)
	if err != nil {
		return err
	}
	if s.compose != nil {
		s.compose(router, retry)
	} else {
		router.AddMiddleware(retry.Middleware)
	}
	router.AddConsumerHandler("payments", s.Queue, sub, s.Handle)
	if s.ready != nil {
		go func() {
			select {
			case <-router.Running():
				s.ready()
			case <-ctx.Done():
			}
		}()
	}
	return router.Run(ctx)
}
