package main

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
)

// late measures the lateness at the handler while many other messages wait and none is due.
func (b *bench) late(ctx context.Context) ([]result, error) {
	return b.lateWith(ctx, "late", 0, b.waiting, b.rounds, bothHands)
}

const (
	lateDelay    = 500 * time.Millisecond
	lateMessages = 300
	latePause    = 7 * time.Millisecond // about 150 a second
)

func (b *bench) lateWith(
	ctx context.Context, group string, x float64, waiting, rounds int, contenders []contender,
) (results []result, err error) {
	// They wait in another queue, so that they can be as many and wait as long as this takes.
	parked := b.broker.name("parked")
	if err := errors.Join(b.broker.declareWait(parked, parked+".none", time.Hour),
		b.broker.fill(parked, waiting, usual)); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.broker.delete(parked)) }()
	c := contest{group: group, x: x, rounds: rounds}
	for _, one := range contenders {
		e, end, err := b.lateEntry(ctx, one, lateDelay)
		defer func() { err = errors.Join(err, end()) }()
		if err != nil {
			return nil, err
		}
		c.entries = append(c.entries, e)
	}
	return c.hold(ctx, b)
}

// lateEntry lets messages fail once, one after the other, and measures the time between the end of
// their delay and their return to the handler.
func (b *bench) lateEntry(ctx context.Context, one contender, delay time.Duration) (entry,
	func() error, error,
) {
	var (
		mu     sync.Mutex
		failed map[int]time.Time
		lates  []time.Duration
	)
	handle := func(body []byte) error {
		now := time.Now()
		mu.Lock()
		defer mu.Unlock()
		i := number(body)
		if at, ok := failed[i]; ok {
			lates = append(lates, now.Sub(at)-delay)
			return nil
		}
		failed[i] = time.Now()
		return errFailed
	}
	l, err := b.newLane(ctx, one.start, work{inFlight: 8, delay: delay, handle: handle})
	if err != nil {
		return entry{}, l.end, err
	}
	return entry{one.name, func(ctx context.Context) (values, error) {
		mu.Lock()
		failed, lates = make(map[int]time.Time), nil
		mu.Unlock()
		l.left.Store(2 * lateMessages)
		ticker := time.NewTicker(latePause)
		defer ticker.Stop()
		publisher, err := dialRaw(b.broker.node.URL(), 1)
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
		mu.Lock()
		defer mu.Unlock()
		slices.Sort(lates)
		at := func(q float64) float64 {
			return float64(lates[int(q*float64(len(lates)-1))].Microseconds()) / 1000
		}
		return values{p50: at(0.5), p99: at(0.99)}, nil
	}}, l.end, nil
}

// memory measures the memory that waiting messages cost the process.
func (b *bench) memory(ctx context.Context) ([]result, error) {
	const n = 100_000
	turn := func(name string, wait func(context.Context) (end func() error, err error)) entry {
		return entry{name, func(ctx context.Context) (values, error) {
			before := inUse()
			end, err := wait(ctx)
			if err != nil {
				return nil, err
			}
			grown := float64(inUse()) - float64(before)
			return values{kibPerMessage: max(grown, 0) / 1024 / n}, end()
		}}
	}
	return contest{group: "memory", rounds: 1, entries: []entry{
		turn(millpond, func(ctx context.Context) (func() error, error) {
			l, err := b.newLane(ctx, serveMillpond, work{
				inFlight: 64, delay: time.Hour, handle: func([]byte) error { return errFailed },
			})
			if err != nil {
				return l.end, err
			}
			_, err = l.batch(ctx, n, n, usual)
			return l.end, err
		}),
		turn(wmRetry, func(ctx context.Context) (func() error, error) {
			ctx, cancel := context.WithCancel(ctx)
			var begun, ended sync.WaitGroup
			h := wmiddleware.Retry{
				MaxRetries: 1, InitialInterval: time.Hour, Logger: watermill.NopLogger{},
			}.Middleware(
				func(*message.Message) ([]*message.Message, error) {
					begun.Done()
					return nil, errFailed
				})
			begun.Add(n)
			for i := range n {
				msg := message.NewMessageWithContext(ctx, "", usual.numbered(i).Body)
				ended.Go(func() { _, _ = h(msg) })
			}
			begun.Wait()
			time.Sleep(time.Second) // the last ones set their timers
			return func() error { cancel(); ended.Wait(); return nil }, nil
		}),
	}}.hold(ctx, b)
}

// inUse returns the size of the heap and the stacks after a collection.
func inUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}
