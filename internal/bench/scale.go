package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

const (
	seconds = "seconds"
	queues  = "queues"
	mib     = "broker MiB"
)

// bothHands are the contenders of a scale.
var bothHands = []contender{
	{name: millpond, start: serveMillpond, share: 1}, {name: raw, start: serveRaw, share: 1},
}

func (b *bench) scaleInFlight(ctx context.Context) ([]result, error) {
	return scale([]int{1, 2, 4, 8, 16, 32, 64, 128, 256}, func(n int) ([]result, error) {
		return b.failingWith(ctx, "inflight", float64(n), n, usual, bothHands)
	})
}

func (b *bench) scalePayload(ctx context.Context) ([]result, error) {
	return scale([]int{100, 1 << 10, 10 << 10, 100 << 10, 1 << 20}, func(n int) ([]result, error) {
		of := load{bytes: n, headers: usual.headers}
		return b.failingWith(ctx, "payload", float64(n), 8, of, bothHands)
	})
}

func (b *bench) scaleHeaders(ctx context.Context) ([]result, error) {
	return scale([]int{0, 1, 10, 30, 100}, func(n int) ([]result, error) {
		of := load{bytes: usual.bytes, headers: n}
		return b.failingWith(ctx, "headers", float64(n), 8, of, bothHands)
	})
}

// scale joins the results at every step.
func scale(steps []int, at func(int) ([]result, error)) (results []result, err error) {
	for _, n := range steps {
		r, err := at(n)
		if err != nil {
			return results, err
		}
		results = append(results, r...)
	}
	return results, nil
}

// scaleHops waits on Levels for delays that pass n levels each: 2ⁿ-1 times the resolution, which is
// the shortest one. Twenty levels take 17 minutes.
func (b *bench) scaleHops(ctx context.Context) ([]result, error) {
	const resolution = time.Millisecond
	return scale([]int{1, 2, 4, 6, 8, 10, 12, 14, 16}, func(hops int) ([]result, error) {
		delay := resolution<<hops - resolution
		levels := topology.Levels{
			Resolution: resolution, Max: max(2*delay, time.Second), Tolerance: -1,
			Prefix: b.broker.name("levels"),
		}
		start := func(ctx context.Context, br *broker, w work) (*service, error) {
			return serveWith(ctx, br, w, levels)
		}
		e, end, err := b.lateEntry(ctx, contender{name: "Levels", start: start}, delay)
		if err != nil {
			return nil, errors.Join(err, end())
		}
		rounds := 3
		if hops > 10 {
			rounds = 1
		}
		results, err := contest{
			group: "hops", x: float64(hops), rounds: rounds, entries: []entry{e},
		}.hold(ctx, b)
		return results, errors.Join(err, end())
	})
}

// scaleWaiting measures lateness, the rate of failing messages and the broker's memory while ever
// more messages wait.
func (b *bench) scaleWaiting(ctx context.Context) ([]result, error) {
	var steps []int
	for n := 1000; n <= b.most; n *= 10 {
		steps = append(steps, n)
	}
	parked := b.broker.name("parked")
	if err := b.broker.declareWait(parked, parked+".none", 12*time.Hour); err != nil {
		return nil, err
	}
	there := 0
	results, err := scale(steps, func(n int) ([]result, error) {
		if err := b.broker.fill(parked, n-there, usual); err != nil {
			return nil, err
		}
		there = n
		results := []result{{
			Group: "waiting", X: float64(n), Entry: "broker", Metric: mib,
			Samples: []float64{b.broker.memory()},
		}}
		late, err := b.lateWith(ctx, "waiting", float64(n), 0, 3, bothHands)
		if err != nil {
			return nil, err
		}
		failing, err := b.failingWith(ctx, "waiting", float64(n), 8, usual, bothHands)
		return append(append(results, late...), failing...), err
	})
	return results, errors.Join(err, b.broker.delete(parked))
}

// scaleHandlers measures the time until many handlers, each with its own queue, all consume: at the
// start, when everything is declared, and after the broker has closed all connections.
func (b *bench) scaleHandlers(ctx context.Context) (results []result, err error) {
	policy := backoff.List{time.Second, 10 * time.Second, time.Minute}
	for _, n := range []int{1, 10, 100, 1000} {
		for name, strategy := range map[string]topology.Strategy{
			"PerQueue": topology.PerQueue{},
			"Shared":   topology.Shared{Prefix: b.broker.name("shared")},
			"Levels":   topology.Levels{Prefix: b.broker.name("levels"), Max: time.Hour},
		} {
			measured, err := b.handlers(ctx, n, strategy, policy)
			if err != nil {
				return results, fmt.Errorf("%d handlers, %s: %w", n, name, err)
			}
			b.say("  handlers %d %s %v\n", n, name, measured)
			for metric, value := range measured {
				results = append(results, result{
					Group: "handlers", X: float64(n), Entry: name, Metric: metric, Samples: []float64{value},
				})
			}
		}
	}
	return results, nil
}

func (b *bench) handlers(
	ctx context.Context, n int, strategy topology.Strategy, policy backoff.List,
) (measured values, err error) {
	cfg := consumerConfig(b.broker.node.URL(), 1)
	cfg.Queue.Arguments = nil // classic: the strategies' declarations are measured
	consuming := &counter{want: "Consuming"}
	client, err := topology.Open(ctx, cfg.Connection, strategy, topology.WithLogger(consuming))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	sub, err := client.NewSubscriber(cfg, topology.ForPolicy(policy))
	if err != nil {
		return nil, err
	}
	retry, err := middleware.NewDelayedRetry(client, policy)
	if err != nil {
		return nil, err
	}
	names, declared := []string{}, map[string]bool{}
	for range n {
		queue := b.broker.name("handler")
		plan, err := topology.PlanFor(strategy, queue, policy)
		if err != nil {
			return nil, err
		}
		names, declared[queue] = append(names, queue), true
		for _, q := range plan.Queues {
			declared[q.Name] = true
		}
	}
	begun := time.Now()
	stop, err := route(ctx, func(router *message.Router) {
		router.AddMiddleware(retry.Middleware)
		for _, queue := range names {
			router.AddConsumerHandler(queue, queue, sub, func(*message.Message) error { return nil })
		}
	})
	if err != nil {
		return nil, err
	}
	measured = values{
		seconds + " to start": time.Since(begun).Seconds(), queues: float64(len(declared)),
	}
	consuming.n.Store(0)
	begun = time.Now()
	if _, err := b.broker.node.RunCtl(ctx, "close_all_connections", "bench"); err != nil {
		return nil, errors.Join(err, stop())
	}
	for consuming.n.Load() < int64(n) {
		if time.Since(begun) > patience {
			return nil, errors.Join(fmt.Errorf("%d of %d consume again after %v", consuming.n.Load(), n,
				patience), stop())
		}
		time.Sleep(5 * time.Millisecond)
	}
	measured[seconds+" to be back"] = time.Since(begun).Seconds()
	if err := stop(); err != nil {
		return nil, err
	}
	var list []string
	for queue := range declared {
		list = append(list, queue)
	}
	return measured, b.broker.reconnect(func() error { return b.broker.delete(list...) })
}

// counter counts a line of the log.
type counter struct {
	watermill.NopLogger
	want string
	n    atomic.Int64
}

func (c *counter) Info(msg string, _ watermill.LogFields) {
	if msg == c.want {
		c.n.Add(1)
	}
}

func (c *counter) With(watermill.LogFields) watermill.LoggerAdapter { return c }
