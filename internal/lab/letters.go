package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/order"
	"github.com/millpond-go/millpond/middleware/header"
)

// readLetters takes dead letters off a queue once a second, as an operator does. It logs each once.
func (r *run) readLetters(ctx context.Context, queue string) {
	seen := map[string]bool{} // nonces
	for rest(ctx, time.Second) {
		_ = r.nemesis.admin(func(ch *amqp.Channel) error { // again in a second
			for ctx.Err() == nil {
				d, ok, err := ch.Get(queue, false)
				if err != nil || !ok {
					return err
				}
				if e := letterOf(d); !seen[e.Copy] {
					seen[e.Copy] = true
					err = r.log.append(e)
				}
				if err = errors.Join(err, d.Ack(false)); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// letterOf returns the event of a dead letter. A letter that cannot be understood has Failed.
func letterOf(d amqp.Delivery) event {
	m, _, err := parseID(string(d.Body))
	text := func(key string) string { s, _ := d.Headers[key].(string); return s }
	e := event{Kind: letter, id: m, Copy: text(keys.Publish), Text: text(header.DeadReason)}
	if err != nil || e.Copy == "" {
		e.Failed, e.Text = true, string(d.Body)
	}
	return e
}

// inspect reads all that is on the broker after the instances have ended: dead letters, which it
// logs, and the messages in other queues.
func (r *run) inspect(ctx context.Context) error {
	rest(ctx, 3*time.Second) // the figures of queues are as old as a tick
	list, err := r.cluster.Node(0).RunCtl(ctx, "list_queues", "--no-table-headers", "name", "messages")
	if err != nil {
		return err
	}
	h := r.history
	h.left, h.tokens = map[id]string{}, map[string]int{}
	for row := range strings.Lines(list) {
		var name string
		var depth int
		if _, err := fmt.Sscan(row, &name, &depth); err != nil {
			return fmt.Errorf("list_queues: %q: %w", row, err)
		}
		messages, err := contents(ctx, r.cluster.Node(0).URL(), name, depth)
		if err != nil {
			return fmt.Errorf("read queue %q: %w", name, err)
		}
		for _, d := range messages {
			m, _, err := parseID(string(d.Body))
			note, _ := d.Headers[keys.Line].(string)
			if err != nil && order.ParseNote(note).Kind == order.Block { // of a letter that blocks its key
				m, _, err = parseID(d.MessageId)
			}
			switch {
			case strings.HasSuffix(name, ".originals"):
			case slices.ContainsFunc(r.lines, func(l line) bool { return l.dead() == name }):
				if err := r.log.append(letterOf(d)); err != nil {
					return err
				}
			case err != nil:
				h.tokens[name]++
			default:
				h.left[m] = name
			}
		}
	}
	return nil
}

// contents returns the messages of a queue without a consumer, and leaves them there. It consumes,
// because a queue with a single active consumer refuses basic.get.
func contents(ctx context.Context, url, name string, depth int) (all []amqp.Delivery, err error) {
	if depth == 0 {
		return nil, nil
	}
	ch, hangUp, err := dial(url)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	deliveries, err := ch.ConsumeWithContext(ctx, name, "", false, false, false, false, amqp.Table{})
	for err == nil && len(all) < depth {
		select {
		case d, ok := <-deliveries:
			if !ok {
				return all, errors.New("the broker ended the consumer")
			}
			all = append(all, d)
		case <-time.After(10 * time.Second):
			return all, nil // the rest is in the hands of a broker that counts and does not deliver
		}
	}
	return all, err
}
