package consumer

import (
	"context"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/clock"
	"github.com/millpond-go/millpond/internal/order"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// This file sends messages to the line.

// follow sends a message to the line, behind the messages of its key.
func (d *delivery) follow() {
	d.settle("Message cannot be stored behind the messages of its key, holding it",
		func(ctx context.Context) error {
			state := d.State
			return d.republish(ctx, d.remaining(), &state)
		}, func() {
			if d.died != nil {
				d.observeSettled(middleware.EventDeadLettered, d.State, nil)
			}
		})
}

// block writes the mark of a dead letter to the line.
func (d *delivery) block(ctx context.Context) error {
	if d.blocks {
		return nil
	}
	ctx, end := d.on.inOrder.whileLeading(ctx, d)
	defer end()
	headers := amqp.Table{}
	d.step.writeAs(order.Block, headers)
	err := d.sub.cfg.Group.Publisher.Publish(ctx, "", d.sub.cfg.Order.Line, amqp.Publishing{
		DeliveryMode: amqp.Persistent, Timestamp: clock.Now(), MessageId: d.raw.MessageId,
		Headers: headers,
	})
	d.blocks = err == nil
	return err
}

// write adds the headers of a copy in the line.
func (t *step) write(headers amqp.Table) { t.writeAs(order.Wait, headers) }

func (t *step) writeAs(kind order.Kind, headers amqp.Table) {
	headers[header.Line] = order.Note{Kind: kind, Seq: t.Seq, ID: t.ID}.String()
	if t.Key != "" {
		headers[header.Key] = t.Key
	}
}

// writeDead adds the headers of a dead letter.
func (t *step) writeDead(headers amqp.Table) {
	if t.Key != "" {
		headers[header.DeadKey] = t.Key
	}
	headers[header.DeadLine] = order.Note{Kind: order.Block, Seq: t.Seq, ID: t.ID}.String()
}
