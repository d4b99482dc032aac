package inorder

import (
	"cmp"
	"context"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/clock"
	"github.com/millpond-go/millpond/internal/consumer"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/order"
)

// This file has what a step says of the copies of its message.

// Task implements consumer.Step.
func (t *step) Task() consumer.Task {
	switch {
	case t.Follows:
		return consumer.Follow
	case t.blamed:
		return consumer.Blame
	}
	return consumer.Handle
}

// Epoch implements consumer.Step.
func (t *step) Epoch() uint64 { return t.lane.epoch.Load() }

// Copy implements consumer.Step.
func (t *step) Copy(headers amqp.Table) { t.write(order.Wait, headers) }

// Dying implements consumer.Step: where dead letters block their keys, it writes the mark of this
// one to the line, unless it is there already. A message without a key keeps no other waiting.
func (t *step) Dying(ctx, gone context.Context) error {
	if !t.lane.q.Block || t.blocks || t.Key == "" {
		return nil
	}
	if t.isMarked() {
		t.blocks = true
		return nil
	}
	ctx, end := t.While(ctx, gone)
	defer end()
	headers := amqp.Table{}
	t.write(order.Block, headers)
	err := t.lane.cfg.Group.Publisher.Publish(ctx, "", t.lane.q.Line, amqp.Publishing{
		DeliveryMode: amqp.Persistent, Timestamp: clock.Now(), MessageId: t.Item.Raw.MessageId,
		Headers: headers,
	})
	t.blocks = err == nil
	return err
}

// Dead implements consumer.Step.
func (t *step) Dead(headers amqp.Table) {
	if t.Key != "" {
		headers[keys.DeadKey] = t.Key
	}
	headers[keys.DeadLine] = t.note(order.Block).String()
}

// isMarked reports whether the mark of the message is in the line although the message is, too.
func (t *step) isMarked() bool { return t.Mark != (order.ID{}) }

// unmark returns the mark that an earlier process has left, to be acked, if the message is not dead
// after all. Its copy, if there is one, is in the line. l.mu is held.
func (l *lane) unmark(t *step, end consumer.Outcome) []consumer.Arrival {
	if !t.isMarked() || end.Died && t.blocks || !end.Acked {
		return nil
	}
	return l.line.Release(t.Key, t.Mark)
}

// write adds the headers of a copy in the line, or of a mark.
func (t *step) write(kind order.Kind, headers amqp.Table) {
	headers[keys.Line] = t.note(kind).String()
	if t.Key != "" {
		headers[keys.Key] = t.Key
	}
}

// note returns the note of a copy of the message, or of its mark.
func (t *step) note(kind order.Kind) order.Note {
	note := order.Note{Kind: kind, Seq: t.Seq, ID: t.ID, First: t.First}
	if kind == order.Block {
		note.ID = cmp.Or(t.Mark, t.ID)
	}
	return note
}
