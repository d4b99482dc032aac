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
	"github.com/millpond-go/millpond/examples/internal/program"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// policy allows three retries, so four attempts in all.
var policy = backoff.List{300 * time.Millisecond, time.Second, 2 * time.Second}

// start relays the outbox to RabbitMQ and consumes a queue there; usually these are two programs.
// It returns once both run.
func start(
	ctx context.Context, db *sql.DB, broker, queue string,
	handle message.NoPublishHandlerFunc, logger watermill.LoggerAdapter,
) (*program.Service, error) {
	if _, err := db.ExecContext(ctx, createOrders); err != nil {
		return nil, err
	}
	cfg := amqp.NewDurableQueueConfig(broker)
	client, err := topology.Open(ctx, cfg.Connection, topology.PerQueue{}, topology.WithLogger(logger))
	if err != nil {
		return nil, err
	}
	s := &service{client: client, cfg: cfg, logger: logger}
	if s.router, err = message.NewRouter(message.RouterConfig{}, s.logger); err == nil {
		// The consumer declares the queue first: without it, the relay's publisher fails.
		err = errors.Join(s.consume(queue, handle), s.relay(db))
	}
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return program.Start(ctx, s.router, client)
}

// service is a service that starts.
type service struct {
	cfg    amqp.Config
	client *topology.Client
	router *message.Router
	logger watermill.LoggerAdapter
}

// relay moves messages from the outbox to RabbitMQ and acks each after its confirm. A message that
// cannot be published stays in the table, and so do the messages behind it.
func (s *service) relay(db *sql.DB) error {
	from, err := wsql.NewSubscriber(wsql.BeginnerFromStdSQL(db), wsql.SubscriberConfig{
		ConsumerGroup:  "relay",
		SchemaAdapter:  wsql.DefaultPostgreSQLSchema{},
		OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{},
		PollInterval:   100 * time.Millisecond,
	}, s.logger)
	if err != nil {
		return err
	}
	if err := from.SubscribeInitialize(outbox); err != nil {
		return err
	}
	to, err := s.client.NewPublisher(s.cfg)
	if err != nil {
		return err
	}
	_, err = forwarder.NewForwarder(from, to, s.logger,
		forwarder.Config{ForwarderTopic: outbox, Router: s.router})
	return err
}

// consume retries failures. The middleware belongs to this handler alone, because the relay takes
// its messages from a table.
func (s *service) consume(queue string, handle message.NoPublishHandlerFunc) error {
	sub, err := s.client.NewSubscriber(s.cfg, topology.ForPolicy(policy))
	if err != nil {
		return err
	}
	if err := sub.SubscribeInitialize(queue); err != nil {
		return err
	}
	retry, err := middleware.NewDelayedRetry(s.client, policy)
	if err != nil {
		return err
	}
	s.router.AddConsumerHandler("orders", queue, sub, handle).AddMiddleware(retry.Middleware)
	return nil
}
