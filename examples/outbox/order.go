package main

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"strconv"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
)

// outbox is the topic, so the table, in which messages wait to be relayed.
const outbox = "outbox"

// trackingKey is the producer's own metadata.
const trackingKey = "tracking-number"

const createOrders = `CREATE TABLE IF NOT EXISTS orders (id SERIAL PRIMARY KEY, item TEXT NOT NULL)`

// placeOrder writes the order and its message in one transaction: both are there
// or neither. It returns the order's number, which is the message's payload.
func placeOrder(ctx context.Context, db *sql.DB, queue, item string, metadata message.Metadata) (order int, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tx.Rollback())
		}
	}()
	if err := tx.QueryRowContext(ctx, `INSERT INTO orders (item) VALUES ($1) RETURNING id`, item).Scan(&order); err != nil {
		return 0, err
	}
	// The table is there already: creating one may end the transaction.
	pub, err := wsql.NewPublisher(wsql.TxFromStdSQL(tx), wsql.PublisherConfig{SchemaAdapter: wsql.DefaultPostgreSQLSchema{}}, nil)
	if err != nil {
		return 0, err
	}
	msg := message.NewMessage(watermill.NewUUID(), message.Payload(strconv.Itoa(order)))
	maps.Copy(msg.Metadata, metadata)
	msg.SetContext(ctx)
	if err := forwarder.NewPublisher(pub, forwarder.PublisherConfig{ForwarderTopic: outbox}).Publish(queue, msg); err != nil {
		return 0, err
	}
	if item == "" {
		return 0, errors.New("an order of nothing")
	}
	return order, tx.Commit()
}
