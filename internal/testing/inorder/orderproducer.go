package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/testing/chaos"
)

// producer publishes the messages of each key one after the other: the next one after the confirm
// of the one before. So the queue has them in their order. A message whose confirm is lost is
// published again, so that the queue may have it twice; its first copy may come late, when later
// messages of the key are in the queue already.
type producer struct {
	url, queue string
	seed       uint64
	keys, rate int // messages a second, all keys together

	again atomic.Int64 // publishes of a message that was published before

	mu        sync.Mutex
	total     int
	confirmed map[int][]time.Time // of each key: when its messages were confirmed, from number 1
}

// producing is the number of messages on their way at once.
const producing = 16

func newProducer(url, queue string, seed uint64, keys, rate int) *producer {
	return &producer{
		url: url, queue: queue, seed: seed, keys: keys, rate: rate, confirmed: map[int][]time.Time{},
	}
}

// run publishes until stop is closed. Then every message that was published is confirmed, unless
// ctx is done before.
func (p *producer) run(ctx context.Context, stop <-chan struct{}) {
	var wg sync.WaitGroup
	workers := min(producing, p.keys)
	for w := range workers {
		wg.Go(func() { p.work(ctx, stop, w, workers) })
	}
	wg.Wait()
}

// work publishes messages of the keys that are w modulo workers.
func (p *producer) work(ctx context.Context, stop <-chan struct{}, w, workers int) {
	line := &line{url: p.url}
	defer line.close()
	ticker := time.NewTicker(time.Second * time.Duration(workers) / time.Duration(p.rate))
	defer ticker.Stop()
	r := rand.New(rand.NewPCG(p.seed, uint64(w)))
	own := (p.keys - w + workers - 1) / workers
	next := make([]int, own)
	for {
		select {
		case <-stop:
			return
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		i := r.IntN(own)
		next[i]++
		if m := (id{w + 1 + i*workers, next[i]}); p.publish(ctx, line, m) {
			p.confirm(m, time.Now())
		}
	}
}

// publish publishes a message until it is confirmed, and reports whether it was.
func (p *producer) publish(ctx context.Context, line *line, m id) bool {
	published, sent := time.Now(), false
	for ctx.Err() == nil {
		err := line.open()
		if err == nil {
			if sent {
				p.again.Add(1)
			}
			sent = true
			err = line.publish(p.queue, m.publishing(published))
		}
		if err == nil {
			return true
		}
		rest(ctx, 100*time.Millisecond)
	}
	return false
}

func (p *producer) confirm(m id, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.confirmed[m.key] = append(p.confirmed[m.key], at)
	p.total++
}

// confirmedAt returns when a message was confirmed; ok is false if it is not yet.
func (p *producer) confirmedAt(m id) (at time.Time, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if of := p.confirmed[m.key]; m.n <= len(of) {
		return of[m.n-1], true
	}
	return at, false
}

// counts returns the number of confirmed messages of each key, and of all.
func (p *producer) counts() (byKey map[int]int, total int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	byKey = make(map[int]int, len(p.confirmed))
	for key, of := range p.confirmed {
		byKey[key] = len(of)
	}
	return byKey, p.total
}

// line is a connection of the producer, which is made again after an error.
type line struct {
	url      string
	ch       *amqp.Channel
	hangUp   func()
	returned <-chan amqp.Return
}

// open connects, unless the connection lives.
func (l *line) open() error {
	if l.ch != nil {
		return nil
	}
	ch, hangUp, err := chaos.Dial(l.url)
	if err != nil {
		return err
	}
	l.ch, l.hangUp, l.returned = ch, hangUp, ch.NotifyReturn(make(chan amqp.Return, 1))
	return nil
}

func (l *line) publish(queue string, msg amqp.Publishing) error {
	err := chaos.PublishOne(l.ch, l.returned, queue, msg)
	if err != nil {
		l.close()
	}
	return err
}

func (l *line) close() {
	if l.ch != nil {
		l.hangUp()
		l.ch = nil
	}
}
