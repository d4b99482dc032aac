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
	handle := w.handle
	w.queue = b.broker.name("lane")
	w.handle = func(body []byte) error {
		l.gate.RLock()
		defer l.gate.RUnlock()
		return handle(body)
	}
	w.settled = func(body []byte) {
		if w.uncounted != nil && w.uncounted(body) {
			return
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

// batch lets n messages be handled and waits until settled of them have been, which are measured.
// The clock starts when all are in the queue.
func (l *lane) batch(ctx context.Context, n, settled int, of load) (values, error) {
	l.gate.Lock()
	l.left.Store(int64(settled))
	err := l.bench.broker.fill(l.work.queue, 0, n, of)
	if err != nil {
		l.gate.Unlock()
		return nil, err
	}
	return l.bench.measured(settled, func() error {
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

// contender is a service in a contest. A slow one gets only a share of the messages.
type contender struct {
	name     string
	start    serveFunc
	share    float64
	prefetch int // as in work
}

// lanes lets contenders take turns, each in a lane of its own. of returns the work of one and its
// turn.
func (b *bench) lanes(
	ctx context.Context, c contest, contenders []contender,
	of func(contender) (work, func(context.Context, *lane) (values, error)),
) (results []result, err error) {
	for _, one := range contenders {
		w, turn := of(one)
		w.prefetch = one.prefetch
		l, started := b.newLane(ctx, one.start, w)
		defer func() { err = errors.Join(err, l.end()) }()
		if started != nil {
			return nil, started
		}
		c.entries = append(c.entries, entry{one.name, func(ctx context.Context) (values, error) {
			return turn(ctx, l)
		}})
	}
	return c.hold(ctx, b)
}

// failing lets every message fail: it is consumed, handed over to a wait queue, confirmed, acked.
func (b *bench) failing(ctx context.Context) ([]result, error) {
	return scale([]int{1, 8, 64}, func(inFlight int) ([]result, error) {
		entries := []contender{
			{name: millpond, start: serveMillpond, share: max(1, 4/float64(inFlight)), prefetch: prefetch},
			{name: raw, start: serveRaw, share: 1, prefetch: prefetch},
		}
		return b.failingWith(ctx, "failing", float64(inFlight), inFlight, usual, entries)
	})
}

func (b *bench) failingWith(
	ctx context.Context, group string, x float64, inFlight int, of load, contenders []contender,
) ([]result, error) {
	n := 600 * min(inFlight, 4)
	if group == "pipelined" { // no entry but one waits for confirms
		n = 6000
	}
	if of.bytes > 100_000 {
		n = max(n/20, inFlight)
	}
	return b.lanes(ctx, contest{group: group, x: x, rounds: b.rounds}, contenders,
		func(one contender) (work, func(context.Context, *lane) (values, error)) {
			n := int(float64(n) * one.share)
			w := work{
				inFlight: inFlight, delay: time.Hour, handle: func([]byte) error { return errFailed },
			}
			return w, func(ctx context.Context, l *lane) (values, error) {
				measured, err := l.batch(ctx, n, n, of)
				return measured, errors.Join(err, b.broker.purge(l.serve.waits...))
			}
		})
}

// healthy lets one message in ten fail once, and measures the rate of the others.
func (b *bench) healthy(ctx context.Context) ([]result, error) {
	return scale([]int{1, 8, 64}, func(inFlight int) ([]result, error) {
		c := contest{group: "healthy", x: float64(inFlight), rounds: b.rounds}
		return b.lanes(ctx, c, []contender{
			{name: millpond, start: serveMillpond},
			{name: millpondNoFailures, start: serveMillpond},
			{name: rawPipelined, start: serveRawPipelined},
			{name: rawPipelinedNoFailures, start: serveRawPipelined},
		}, func(one contender) (work, func(context.Context, *lane) (values, error)) {
			f := &failOnce{}
			if one.name == millpond || one.name == rawPipelined {
				f.each = 10
			}
			return work{
				inFlight: inFlight, delay: time.Second, handle: f.handle, uncounted: f.isFailing,
			}, f.rate
		})
	})
}

// rate measures the rate of the messages that never fail, and waits for the others.
func (f *failOnce) rate(ctx context.Context, l *lane) (values, error) {
	const n = 8000
	failing := 0
	if f.each > 0 {
		failing = n / f.each
	}
	f.failed, f.lates = map[int]time.Time{}, nil
	measured, err := l.batch(ctx, n, n-failing, usual)
	for begun := time.Now(); err == nil; time.Sleep(10 * time.Millisecond) {
		f.mu.Lock()
		returned := len(f.lates)
		f.mu.Unlock()
		if returned == failing {
			break
		}
		if time.Since(begun) > patience {
			err = fmt.Errorf("%d of %d messages returned in %v", returned, failing, patience)
		}
	}
	return measured, err
}
