package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// producing is the number of messages on their way at once.
const producing = 16

// produce publishes numbered messages like a careful AMQP client until ctx is done: each once,
// mandatory and confirmed. The next message of a key follows the confirm of the one before, so the
// queue has them in their order. Only confirmed messages count.
func (r *run) produce(ctx context.Context) {
	var wg sync.WaitGroup
	for w := range min(producing, r.Keys) {
		wg.Go(func() { r.producer(ctx, w, min(producing, r.Keys)) })
	}
	wg.Wait()
}

// producer publishes messages of the keys that are w modulo workers.
func (r *run) producer(ctx context.Context, w, workers int) {
	ticker := time.NewTicker(time.Second * time.Duration(workers) / time.Duration(r.Rate))
	defer ticker.Stop()
	random := rand.New(rand.NewPCG(r.Seed, uint64(w)))
	next := make([]int, (r.Keys-w+workers-1)/workers)
	for tries := w; rest(ctx, 200*time.Millisecond); tries++ {
		ch, hangUp, err := dial(r.producers[tries%len(r.producers)])
		if err != nil {
			continue // the next node then
		}
		returned := ch.NotifyReturn(make(chan amqp.Return, 1))
		for err == nil && ctx.Err() == nil {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				continue
			}
			i := random.IntN(len(next))
			next[i]++
			m := id{w + 1 + i*workers, next[i]}
			msg := m.publishing()
			msg.Priority = uint8(r.Fates.priority(m))
			if err = publishOne(ch, returned, r.lines.of(m).queue, msg); err == nil {
				err = r.log.append(event{Kind: sent, id: m})
			}
		}
		hangUp()
	}
}

// publishOne publishes to the queue key on a channel of dial, and returns nil once the queue has
// the message. returned is the channel's NotifyReturn, or nil.
func publishOne(
	ch *amqp.Channel, returned <-chan amqp.Return, key string, msg amqp.Publishing,
) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	msg.DeliveryMode = amqp.Persistent
	confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", key, true, false, msg)
	if err != nil {
		return err
	}
	ok, err := confirm.WaitContext(ctx)
	if err != nil {
		return err
	}
	select {
	case <-returned: // before its confirm (F4)
		return errors.New("returned")
	default:
	}
	if !ok {
		return errors.New("not confirmed")
	}
	return nil
}

// dial opens a channel in confirm mode on a new connection. Every step that a frozen node could
// hold up is bounded.
func dial(url string) (ch *amqp.Channel, hangUp func(), err error) {
	conn, err := amqp.DialConfig(url, amqp.Config{
		Dial: amqp.DefaultDial(3 * time.Second), Heartbeat: 5 * time.Second,
	})
	if err != nil {
		return nil, nil, err
	}
	hangUp = func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }
	ch, err = conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		hangUp()
	}
	return ch, hangUp, err
}

// rest waits for d, and reports whether ctx is not done.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
