package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

const (
	starts = "seconds to start"
	mib    = "broker MiB"
)

// bothHands are the contenders of a scale.
var bothHands = []contender{
	{name: millpond, start: serveMillpond, share: 1}, {name: raw, start: serveRaw, share: 1},
}

func (b *bench) scalePayload(ctx context.Context) ([]result, error) {
	return scale([]int{100, 1 << 10, 10 << 10, 100 << 10, 1 << 20}, func(n int) ([]result, error) {
		of := load{bytes: n, headers: usual.headers}
		return b.failingWith(ctx, "payload", float64(n), 8, of, bothHands)
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

// scaleWaiting measures lateness, the rate of failing messages and the broker's memory while ever
// more messages wait.
func (b *bench) scaleWaiting(ctx context.Context) ([]result, error) {
	parked := b.broker.name("parked")
	if err := b.broker.declareWait(parked, parked+".none", 12*time.Hour); err != nil {
		return nil, err
	}
	there := 0
	results, err := scale([]int{1000, 10_000, 100_000, 1_000_000}, func(n int) ([]result, error) {
		if err := b.broker.fill(parked, 0, n-there, usual); err != nil {
			return nil, err
		}
		there = n
		results := []result{{
			Group: "waiting", X: float64(n), Entry: "broker", Metric: mib,
			Samples: []float64{memory("status", "VmRSS:", b.broker.node.Pid())},
		}}
		late, err := b.late(ctx, n)
		if err != nil {
			return nil, err
		}
		failing, err := b.failingWith(ctx, "waiting", float64(n), 8, usual, bothHands)
		return append(append(results, late...), failing...), err
	})
	return results, errors.Join(err, b.broker.delete(parked))
}

// scaleHandlers measures the time until many handlers, each with its own queue, all consume: at the
// start, when everything is declared.
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
	client, err := topology.Open(ctx, cfg.Connection, strategy,
		topology.WithLogger(watermill.NopLogger{}))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	sub, err := client.NewSubscriberWithoutRetry(cfg, topology.ForPolicy(policy))
	if err != nil {
		return nil, err
	}
	retry, err := middleware.NewDelayedRetry(client, policy)
	if err != nil {
		return nil, err
	}
	var names, declared []string
	for range n {
		queue := b.broker.name("handler")
		plan, err := topology.PlanFor(strategy, queue, policy)
		if err != nil {
			return nil, err
		}
		names, declared = append(names, queue), append(declared, queue)
		for _, q := range plan.Queues {
			declared = append(declared, q.Name)
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
	measured = values{starts: time.Since(begun).Seconds()}
	return measured, errors.Join(stop(), b.broker.delete(declared...))
}
