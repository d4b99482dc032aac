package main

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// policy allows three retries, so four attempts in all.
var policy = backoff.List{300 * time.Millisecond, time.Second, 2 * time.Second}

// service relays the outbox to RabbitMQ and consumes a queue there. Usually these
// are two programs.
type service struct {
	client  *topology.Client
	router  *message.Router
	stopped chan error // what the router's Run returned
}

// start returns once the outbox is relayed and the queue consumed.
func start(ctx context.Context, db *sql.DB, broker, queue string, handle message.NoPublishHandlerFunc, logger watermill.LoggerAdapter) (*service, error) {
	if _, err := db.ExecContext(ctx, createOrders); err != nil {
		return nil, err
	}
	cfg := amqp.NewDurableQueueConfig(broker)
	client, err := topology.Open(ctx, cfg.Connection, topology.PerQueue{}, topology.WithLogger(logger))
	if err != nil {
		return nil, err
	}
	s := &service{client: client, stopped: make(chan error, 1)}
	if s.router, err = message.NewRouter(message.RouterConfig{}, logger); err == nil {
		// The consumer first: the relay's publisher takes a missing queue for an error.
		err = errors.Join(s.consume(cfg, queue, handle, logger), s.relay(db, cfg, logger))
	}
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	go func() { s.stopped <- s.router.Run(context.WithoutCancel(ctx)) }()
	select {
	case <-s.router.Running():
		return s, nil
	case err := <-s.stopped:
		return nil, errors.Join(err, client.Close())
	case <-ctx.Done():
		return nil, errors.Join(context.Cause(ctx), s.close())
	}
}

// relay moves messages from the outbox to RabbitMQ, each confirmed before it is
// acked: one that cannot be published stays in the table, and those behind it.
func (s *service) relay(db *sql.DB, cfg amqp.Config, logger watermill.LoggerAdapter) error {
	from, err := wsql.NewSubscriber(wsql.BeginnerFromStdSQL(db), wsql.SubscriberConfig{
		ConsumerGroup:  "relay",
		SchemaAdapter:  wsql.DefaultPostgreSQLSchema{},
		OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{},
		PollInterval:   100 * time.Millisecond,
	}, logger)
	if err != nil {
		return err
	}
	if err := from.SubscribeInitialize(outbox); err != nil {
		return err
	}
	to, err := s.client.NewPublisher(cfg)
	if err != nil {
		return err
	}
	_, err = forwarder.NewForwarder(from, to, logger, forwarder.Config{ForwarderTopic: outbox, Router: s.router})
	return err
}

// consume retries what fails. The middleware is the consumer's alone: the relay
// has its messages from a table.
func (s *service) consume(cfg amqp.Config, queue string, handle message.NoPublishHandlerFunc, logger watermill.LoggerAdapter) error {
	sub, err := s.client.NewSubscriber(cfg, topology.ForPolicy(policy))
	if err != nil {
		return err
	}
	if err := sub.SubscribeInitialize(queue); err != nil {
		return err
	}
	retry, err := middleware.NewDelayedRetry(s.client, policy, middleware.WithLogger(logger))
	if err != nil {
		return err
	}
	s.router.AddConsumerHandler("orders", queue, sub, handle).AddMiddleware(retry.Middleware)
	return nil
}

func (s *service) close() error {
	return errors.Join(s.router.Close(), <-s.stopped, s.client.Close())
}
