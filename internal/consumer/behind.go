package consumer

import (
	"cmp"
	"context"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/clock"
	"github.com/millpond-go/millpond/internal/order"
	"github.com/millpond-go/millpond/middleware/header"
)

// This file sends messages to the line.

// follow sends a message to the line, behind the messages of its key.
func (d *delivery) follow() {
	d.again("Message cannot be stored behind the messages of its key, holding it", 0)
}

// block writes the mark of a dead letter to the line, unless it is there already. A message without
// a key keeps no other waiting.
func (d *delivery) block(ctx context.Context) error {
	if d.step.blocks || d.step.Key == "" {
		return nil
	}
	if d.step.isMarked() {
		d.step.blocks = true
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
	d.step.blocks = err == nil
	return err
}

// isMarked reports whether the mark of the message is in the line although the message is, too.
func (t *step) isMarked() bool { return t.Mark != (order.ID{}) }

// unmark returns the mark that an earlier process has left, to be acked, if the message is not dead
// after all. Its copy, if there is one, is in the line. o.mu is held.
func (o *inOrder) unmark(d *delivery) []arrival {
	blocks := d.died != nil && d.step.blocks
	if !d.step.isMarked() || blocks || d.life.phase() != acked || d.ctx.Err() != nil {
		return nil
	}
	return o.line.Release(d.step.Key, d.step.Mark)
}

// write adds the headers of a copy in the line.
func (t *step) write(headers amqp.Table) { t.writeAs(order.Wait, headers) }

func (t *step) writeAs(kind order.Kind, headers amqp.Table) {
	headers[header.Line] = t.note(kind).String()
	if t.Key != "" {
		headers[header.Key] = t.Key
	}
}

// writeDead adds the headers of a dead letter.
func (t *step) writeDead(headers amqp.Table) {
	if t.Key != "" {
		headers[header.DeadKey] = t.Key
	}
	headers[header.DeadLine] = t.note(order.Block).String()
}

// note returns the note of a copy of the message, or of its mark.
func (t *step) note(kind order.Kind) order.Note {
	note := order.Note{Kind: kind, Seq: t.Seq, ID: t.ID, First: t.First}
	if kind == order.Block {
		note.ID = cmp.Or(t.Mark, t.ID)
	}
	return note
}
