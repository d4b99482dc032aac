package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/middleware/header"
)

// filler is the body of messages that fill the dead-letter queue.
const filler = "filler"

// letters takes dead letters off their queue, as an operator does, and logs them. With back it
// moves stranded messages to their source queues instead.
type letters struct {
	urls  []string
	queue string
	log   *eventLog
	back  func(id) string

	turn  sync.Mutex // held while reading, or to keep the reader out
	moved atomic.Int64

	seen map[string]bool // nonces
}

// run reads until ctx is done.
func (l *letters) run(ctx context.Context) {
	l.seen = map[string]bool{}
	for tries := 0; ctx.Err() == nil; tries++ {
		_ = l.connected(ctx, l.urls[tries%len(l.urls)]) // the next node then
		rest(ctx, 300*time.Millisecond)
	}
}

func (l *letters) connected(ctx context.Context, url string) error {
	ch, hangUp, err := dial(url)
	if err != nil {
		return err
	}
	defer hangUp()
	for rest(ctx, 50*time.Millisecond) {
		if err := l.empty(ctx, ch); err != nil {
			return err
		}
	}
	return nil
}

// empty reads until the queue is empty.
func (l *letters) empty(ctx context.Context, ch *amqp.Channel) error {
	l.turn.Lock()
	defer l.turn.Unlock()
	for ctx.Err() == nil {
		d, ok, err := ch.Get(l.queue, false)
		if err != nil || !ok {
			return err
		}
		if err := l.take(ch, d); err != nil {
			return err
		}
		if err := d.Ack(false); err != nil {
			return err
		}
	}
	return nil
}

// take logs a letter, or moves it back, before its ack.
func (l *letters) take(ch *amqp.Channel, d amqp.Delivery) error {
	e := letterOf(d)
	if string(d.Body) == filler || l.seen[e.Copy] {
		return nil
	}
	if l.back != nil {
		l.moved.Add(1)
		return publishOne(ch, nil, l.back(e.id), amqp.Publishing{
			Headers: d.Headers, Body: d.Body, MessageId: d.MessageId, Priority: d.Priority,
		})
	}
	l.seen[e.Copy] = true
	return l.log.append(e)
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

// contents returns the messages of a queue without a consumer, and leaves them there. It consumes,
// because a queue with a single active consumer refuses basic.get.
func contents(ctx context.Context, url, name string, depth int) (all []amqp.Delivery, err error) {
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
