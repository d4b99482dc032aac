package main

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	lateDelay    = 500 * time.Millisecond
	lateMessages = 300
	latePause    = 7 * time.Millisecond // about 150 a second
)

// late measures the time between the end of a delay and the return of the message to its handler,
// while many other messages wait and none is due.
func (b *bench) late(ctx context.Context, waiting int) ([]result, error) {
	return b.lanes(ctx, contest{group: "waiting", x: float64(waiting), rounds: 3}, bothHands,
		func(contender) (work, func(context.Context, *lane) (values, error)) {
			f := &failOnce{each: 1}
			return work{inFlight: 8, delay: lateDelay, handle: f.handle}, f.trickle
		})
}

// failOnce lets one message of each fail once, by their numbers.
type failOnce struct {
	each int // 0: none fails

	mu     sync.Mutex
	failed map[int]time.Time
	lates  []time.Duration // of those that came again
}

func (f *failOnce) isFailing(body []byte) bool { return f.each > 0 && number(body)%f.each == 0 }

func (f *failOnce) handle(body []byte) error {
	if !f.isFailing(body) {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	at, ok := f.failed[number(body)]
	if !ok {
		f.failed[number(body)] = time.Now()
		return errFailed
	}
	f.lates = append(f.lates, time.Since(at)-lateDelay)
	return nil
}

// trickle publishes messages one after the other.
func (f *failOnce) trickle(ctx context.Context, l *lane) (values, error) {
	f.failed, f.lates = map[int]time.Time{}, nil
	l.left.Store(2 * lateMessages)
	ticker := time.NewTicker(latePause)
	defer ticker.Stop()
	publisher, err := dialRaw(l.bench.broker.node.URL(), 1)
	if err != nil {
		return nil, err
	}
	defer func() { _ = publisher.close() }()
	for i := range lateMessages {
		<-ticker.C
		if err := publisher.publish("", l.work.queue, usual.numbered(i)); err != nil {
			return nil, err
		}
	}
	if err := l.wait(ctx); err != nil {
		return nil, err
	}
	slices.Sort(f.lates)
	at := func(q float64) float64 {
		return float64(f.lates[int(q*float64(len(f.lates)-1))].Microseconds()) / 1000
	}
	return values{p50: at(0.5), p99: at(0.99)}, nil
}
