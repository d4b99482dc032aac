package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// lane is a queue and its service, whose handlers wait while the queue is filled.
type lane struct {
	bench *bench
	work  work
	gate  sync.RWMutex
	left  atomic.Int64
	ended chan struct{}
	serve *service
}

type serveFunc func(context.Context, *broker, work) (*service, error)

func (b *bench) newLane(ctx context.Context, start serveFunc, w work) (*lane, error) {
	l := &lane{bench: b, ended: make(chan struct{}, 1)}
	handle, settled := w.handle, w.settled
	w.queue = b.broker.name("lane")
	w.handle = func(body []byte) error {
		l.gate.RLock()
		defer l.gate.RUnlock()
		return handle(body)
	}
	w.settled = func(body []byte) {
		if settled != nil {
			settled(body)
		}
		if l.left.Add(-1) == 0 {
			l.ended <- struct{}{}
		}
	}
	l.work = w
	var err error
	l.serve, err = start(ctx, b.broker, w)
	return l, err
}

// batch lets n messages be handled and waits until settled of them have been. The clock starts when
// all are in the queue.
func (l *lane) batch(ctx context.Context, n, settled int, of load) (values, error) {
	l.gate.Lock()
	l.left.Store(int64(settled))
	err := l.bench.broker.fill(l.work.queue, n, of)
	if err != nil {
		l.gate.Unlock()
		return nil, err
	}
	return l.bench.measured(n, func() error {
		l.gate.Unlock()
		return l.wait(ctx)
	})
}

func (l *lane) wait(ctx context.Context) error {
	select {
	case <-l.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(patience):
		return fmt.Errorf("%d messages are not settled after %v", l.left.Load(), patience)
	}
}

func (l *lane) end() error {
	if l == nil || l.serve == nil {
		return nil
	}
	return errors.Join(l.serve.stop(), l.bench.broker.delete(append(l.serve.waits, l.work.queue)...))
}

// empty purges the wait queues.
func (l *lane) empty() error {
	var problems []error
	for _, wait := range l.serve.waits {
		problems = append(problems, l.bench.broker.purge(wait))
	}
	return errors.Join(problems...)
}

// failing lets every message fail: it is consumed, handed over to a wait queue, confirmed, acked.
func (b *bench) failing(ctx context.Context) ([]result, error) {
	return scale([]int{1, 8, 64}, func(inFlight int) ([]result, error) {
		entries := []contender{
			{name: millpond, start: serveMillpond, share: max(1, 4/float64(inFlight)), prefetch: prefetch},
			{name: raw, start: serveRaw, share: 1, prefetch: prefetch},
			{name: wmDefault, start: serveWatermill(0), share: 0.3},
			{name: wmPooled, start: serveWatermill(inFlight), share: 1},
		}
		return b.failingWith(ctx, "failing", float64(inFlight), inFlight, usual, entries)
	})
}

// contender is a service in a contest. A slow one gets only a share of the messages.
type contender struct {
	name     string
	start    serveFunc
	share    float64
	prefetch int // as in work
}

func (b *bench) failingWith(
	ctx context.Context, group string, x float64, inFlight int, of load, contenders []contender,
) (results []result, err error) {
	n := 600 * min(inFlight, 4)
	if group == "pipelined" { // no entry but one waits for confirms
		n = 6000
	}
	if of.bytes > 100_000 {
		n = max(n/20, inFlight)
	}
	c := contest{group: group, x: x, rounds: b.rounds}
	for _, one := range contenders {
		l, started := b.newLane(ctx, one.start, work{
			inFlight: inFlight, prefetch: one.prefetch, delay: time.Hour,
			handle: func([]byte) error { return errFailed },
		})
		defer func() { err = errors.Join(err, l.end()) }()
		if started != nil {
			return nil, started
		}
		n := int(float64(n) * one.share)
		c.entries = append(c.entries, entry{one.name, func(ctx context.Context) (values, error) {
			measured, err := l.batch(ctx, n, n, of)
			return measured, errors.Join(err, l.empty())
		}})
	}
	return c.hold(ctx, b)
}

// healthy lets one message in ten fail once, and measures the rate of the others.
func (b *bench) healthy(ctx context.Context) ([]result, error) {
	return scale([]int{1, 8, 64}, func(inFlight int) ([]result, error) {
		return b.healthyWith(ctx, inFlight)
	})
}

func (b *bench) healthyWith(ctx context.Context, inFlight int) (results []result, err error) {
	c := contest{group: "healthy", x: float64(inFlight), rounds: b.rounds}
	for _, one := range []struct {
		name  string
		start serveFunc
		n     int
		fails bool
	}{
		{millpond, serveMillpond, 8000, true},
		{millpondNoFailures, serveMillpond, 8000, false},
		{rawPipelined, serveRawPipelined, 8000, true},
		{rawPipelinedNoFailures, serveRawPipelined, 8000, false},
		{raw, serveRaw, 8000, true},
		{rawNoFailures, serveRaw, 8000, false},
		{wmRetry, serveRetry, 20 * inFlight, true},
	} {
		f := &tenth{fails: one.fails, all: make(chan struct{}, 1)}
		l, started := b.newLane(ctx, one.start, work{
			inFlight: inFlight, delay: time.Second, handle: f.handle, settled: f.settled,
		})
		defer func() { err = errors.Join(err, l.end()) }()
		if started != nil {
			return nil, started
		}
		c.entries = append(c.entries, entry{
			one.name, func(ctx context.Context) (values, error) { return f.turn(ctx, l, one.n) },
		})
	}
	return c.hold(ctx, b)
}

// tenth lets every tenth message fail once.
type tenth struct {
	fails bool
	mu    sync.Mutex
	seen  map[int]bool
	left  atomic.Int64 // of the messages that never fail
	all   chan struct{}
}

func (f *tenth) isFailing(body []byte) bool { return f.fails && number(body)%10 == 9 }

func (f *tenth) handle(body []byte) error {
	if !f.isFailing(body) {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	i := number(body)
	if f.seen[i] {
		return nil
	}
	f.seen[i] = true
	return errFailed
}

func (f *tenth) settled(body []byte) {
	if !f.isFailing(body) && f.left.Add(-1) == 0 {
		f.all <- struct{}{}
	}
}

// turn measures the rate of the messages that never fail, and waits for all.
func (f *tenth) turn(ctx context.Context, l *lane, n int) (values, error) {
	healthy, settled := n, n
	if f.fails {
		healthy = n - n/10
		settled = n + n/10
		if len(l.serve.waits) == 0 { // Retry settles each message once
			settled = n
		}
	}
	f.seen = make(map[int]bool)
	f.left.Store(int64(healthy))
	took := make(chan time.Duration, 1)
	l.gate.Lock()
	l.left.Store(int64(settled))
	if err := l.bench.broker.fill(l.work.queue, n, usual); err != nil {
		l.gate.Unlock()
		return nil, err
	}
	begun := time.Now()
	l.gate.Unlock()
	go func() {
		select {
		case <-f.all:
		case <-time.After(patience):
		}
		took <- time.Since(begun)
	}()
	if err := l.wait(ctx); err != nil {
		return nil, err
	}
	last := <-took
	l.bench.counted += last
	return values{rate: float64(healthy) / last.Seconds()}, nil
}
