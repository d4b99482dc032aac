package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// producers publish numbered messages like a careful AMQP client: each once, mandatory and
// confirmed. The next message of a key follows the confirm of the one before, so the queue has
// them in their order. Only confirmed messages count.
type producers struct {
	settings
	urls []string
	// to returns the queue of a message.
	to  func(id) string
	log *eventLog

	confirmed, unknown atomic.Int64
}

// producing is the number of messages on their way at once.
const producing = 16

// run publishes until ctx is done.
func (p *producers) run(ctx context.Context) {
	var wg sync.WaitGroup
	workers := min(producing, p.Keys)
	for w := range workers {
		wg.Go(func() { p.work(ctx, w, workers) })
	}
	wg.Wait()
}

// work publishes messages of the keys that are w modulo workers.
func (p *producers) work(ctx context.Context, w, workers int) {
	ticker := time.NewTicker(time.Second * time.Duration(workers) / time.Duration(p.Rate))
	defer ticker.Stop()
	r := rand.New(rand.NewPCG(p.Fates.Seed, uint64(w)))
	next := make([]int, (p.Keys-w+workers-1)/workers)
	due := func() (id, bool) {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return id{}, false
		}
		i := r.IntN(len(next))
		next[i]++
		return id{w + 1 + i*workers, next[i]}, true
	}
	for tries := w; ctx.Err() == nil; tries++ {
		_ = p.connected(p.urls[tries%len(p.urls)], due) // the next node then
		rest(ctx, 200*time.Millisecond)
	}
}

// connected publishes on one connection, until something is wrong with it.
func (p *producers) connected(url string, due func() (id, bool)) error {
	ch, hangUp, err := dial(url)
	if err != nil {
		return err
	}
	defer hangUp()
	returned := ch.NotifyReturn(make(chan amqp.Return, 1))
	for {
		m, ok := due()
		if !ok {
			return nil
		}
		msg := m.publishing()
		msg.Priority = uint8(p.Fates.priority(m))
		if err := publishOne(ch, returned, p.to(m), msg); err != nil {
			p.unknown.Add(1)
			return err
		}
		if err := p.log.append(event{Kind: sent, id: m}); err != nil {
			return err
		}
		p.confirmed.Add(1)
	}
}

// publishLimit bounds a publish with its confirm.
const publishLimit = 5 * time.Second

// publishOne publishes to the queue key on a channel of dial, and returns nil once the queue has
// the message. returned is the channel's NotifyReturn, or nil.
func publishOne(
	ch *amqp.Channel, returned <-chan amqp.Return, key string, msg amqp.Publishing,
) error {
	ctx, cancel := context.WithTimeout(context.Background(), publishLimit)
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
