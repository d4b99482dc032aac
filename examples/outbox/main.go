// Command outbox places orders in PostgreSQL and handles them from RabbitMQ.
//
// One transaction writes the order and its message. Watermill's Forwarder relays the message to
// RabbitMQ, and the consumer retries there. The trace and the tracking number, which the producer
// wrote beside the message, are the same at every attempt.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/millpond-go/millpond"
	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/examples/internal/program"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

const usage = `Usage: AMQP_URL=amqp://… POSTGRES_URL=postgres://… outbox

Places two orders and ends when both are handled; the second fails three times.
It leaves its tables (orders, watermill_outbox and watermill_offsets_outbox) and
its queues (orders, the wait queues and the dead-letter queue).
`

// limit is the time after which the program gives up. It takes about four seconds.
const limit = time.Minute

func main() {
	program.Exit(func(ctx context.Context, _ []string, stdout, stderr io.Writer) int {
		postgres, broker := os.Getenv("POSTGRES_URL"), os.Getenv("AMQP_URL")
		err := run(ctx, postgres, broker, "orders", stdout)
		switch {
		case err == nil:
			return 0
		case errors.Is(err, errUsage):
			fmt.Fprintf(stderr, "outbox: %v\n\n%s", err, usage)
			return 2
		}
		fmt.Fprintf(stderr, "outbox: %v\n", err)
		return 1
	})
}

var (
	errUsage   = errors.New("AMQP_URL and POSTGRES_URL are needed")
	errNoStock = errors.New("out of stock")
)

func run(ctx context.Context, postgres, broker, queue string, out io.Writer) (err error) {
	if postgres == "" || broker == "" {
		return errUsage
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	db, err := sql.Open("pgx", postgres)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()

	handled := make(chan string, 2)
	s, err := start(ctx, db, broker, queue, func(msg *message.Message) error {
		attempt := middleware.Attempt(msg.Context())
		tracking := msg.Metadata[trackingKey]
		fmt.Fprintf(out, "order %s, attempt %d, tracking %s\n", msg.Payload, attempt, tracking)
		if tracking == "parcel of bread" && attempt < 4 {
			return errNoStock
		}
		fmt.Fprintf(out, "order %s is handled\n", msg.Payload)
		handled <- string(msg.Payload)
		return nil
	}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()

	for _, item := range []string{"flour", "bread"} {
		tracking := message.Metadata{trackingKey: "parcel of " + item}
		if _, err := placeOrder(ctx, db, queue, item, tracking); err != nil {
			return fmt.Errorf("place an order: %w", err)
		}
	}
	return program.Await(ctx, handled, 2, "the orders")
}

// outbox is the topic of the messages to relay. Their table is named after it.
const outbox = "outbox"

// trackingKey is metadata of the producer.
const trackingKey = "tracking-number"

const createOrders = `CREATE TABLE IF NOT EXISTS orders (
	id SERIAL PRIMARY KEY, item TEXT NOT NULL)`

// placeOrder writes the order and its message in one transaction: both exist afterwards, or
// neither. It returns the order's number, which is the message's payload.
func placeOrder(
	ctx context.Context, db *sql.DB, queue, item string, metadata message.Metadata,
) (order int, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tx.Rollback())
		}
	}()
	row := tx.QueryRowContext(ctx, `INSERT INTO orders (item) VALUES ($1) RETURNING id`, item)
	if err := row.Scan(&order); err != nil {
		return 0, err
	}
	// The relay has created the table: creating it here could end the transaction.
	pub, err := wsql.NewPublisher(wsql.TxFromStdSQL(tx),
		wsql.PublisherConfig{SchemaAdapter: wsql.DefaultPostgreSQLSchema{}}, nil)
	if err != nil {
		return 0, err
	}
	msg := message.NewMessage(watermill.NewUUID(), message.Payload(strconv.Itoa(order)))
	maps.Copy(msg.Metadata, metadata)
	msg.SetContext(ctx)
	relayed := forwarder.NewPublisher(pub, forwarder.PublisherConfig{ForwarderTopic: outbox})
	if err := relayed.Publish(queue, msg); err != nil {
		return 0, err
	}
	if item == "" {
		return 0, errors.New("an order of nothing")
	}
	return order, tx.Commit()
}

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
	cfg := millpond.QuorumQueue(amqp.NewDurableQueueConfig(broker))
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
	retry, err := middleware.NewDelayedRetry(s.client, policy)
	if err != nil {
		return err
	}
	sub, err := s.client.NewSubscriber(s.cfg, retry)
	if err != nil {
		return err
	}
	if err := sub.SubscribeInitialize(queue); err != nil {
		return err
	}
	s.router.AddConsumerHandler("orders", queue, sub, handle).AddMiddleware(retry.Middleware)
	return nil
}
