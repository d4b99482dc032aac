package main

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// The metrics.
const (
	rate         = "per second"
	nanoseconds  = "ns"
	allocs       = "allocations"
	microseconds = "CPU µs" // of client and broker, per message
	clients      = "client CPU µs"
	brokers      = "broker CPU µs"
	p50          = "p50 ms"
	p99          = "p99 ms"
)

const (
	bare      = "handler alone"
	recoverer = "watermill Recoverer"
)

// patience ends a turn that makes no progress.
const patience = 3 * time.Minute

// success calls a handler that succeeds, in a loop, with a message of the real Subscriber.
func (b *bench) success(ctx context.Context) ([]result, error) {
	client, msg, err := b.delivered(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }()
	defer msg.Ack()
	retry, err := middleware.NewDelayedRetry(client, backoff.List{time.Second})
	if err != nil {
		return nil, err
	}
	handler := func(*message.Message) ([]*message.Message, error) { return nil, nil }
	of := func(name string, h message.HandlerFunc, n int) entry {
		return entry{name, func(context.Context) (values, error) {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			begun := time.Now()
			for range n {
				if _, err := h(msg); err != nil {
					return nil, err
				}
			}
			took := time.Since(begun)
			runtime.ReadMemStats(&after)
			return values{
				nanoseconds: float64(took.Nanoseconds()) / float64(n),
				// Whole ones, because other goroutines may allocate meanwhile.
				allocs: float64((after.Mallocs - before.Mallocs) / uint64(n)),
			}, nil
		}}
	}
	const n = 5_000_000
	return contest{group: "success", rounds: b.rounds, entries: []entry{
		of(bare, handler, n), of(recoverer, wmiddleware.Recoverer(handler), n),
		of(millpond, retry.Middleware(handler), n),
		of(wmRetry, wmiddleware.Retry{MaxRetries: 3, InitialInterval: time.Second}.Middleware(handler),
			n/10),
	}}.hold(ctx, b)
}

// delivered returns a message with ten metadata keys, as the Subscriber hands it out.
func (b *bench) delivered(ctx context.Context) (*topology.Client, *message.Message, error) {
	queue := b.broker.name("success")
	cfg := consumerConfig(b.broker.node.URL(), 1)
	client, err := topology.Open(ctx, cfg.Connection, topology.PerQueue{},
		topology.WithLogger(watermill.NopLogger{}))
	if err != nil {
		return nil, nil, err
	}
	sub, err := client.NewSubscriberWithoutRetry(cfg, topology.ForPolicy(backoff.List{time.Second}))
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	messages, err := sub.Subscribe(context.WithoutCancel(ctx), queue)
	if err == nil {
		err = b.broker.fill(queue, 0, 1, load{bytes: 1024, headers: 10})
	}
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	return client, <-messages, nil
}

// publish has messages confirmed in a quorum queue.
func (b *bench) publish(ctx context.Context) ([]result, error) {
	return scale([]int{1, 8, 64}, func(callers int) ([]result, error) {
		return b.publishWith(ctx, callers)
	})
}

func (b *bench) publishWith(ctx context.Context, callers int) ([]result, error) {
	queue, url := b.broker.name("publish"), b.broker.node.URL()
	if err := b.broker.declare(queue, quorum); err != nil {
		return nil, err
	}
	l, err := link.Open(ctx, link.Config{
		URL: url, Logger: watermill.NopLogger{}, ConnectTimeout: patience, WriteTimeout: patience,
	})
	if err != nil {
		return nil, err
	}
	// The publisher that retries and dead letters go through.
	client := publisher.New(l, publisher.Config{Timeout: patience, NonceHeader: keys.Publish})
	byHand, err := dialRaw(url, callers)
	if err != nil {
		return nil, err
	}
	cfg := wamqp.NewDurableQueueConfig(url)
	cfg.Publish.ConfirmDelivery = true
	asItComes, err := wamqp.NewPublisher(cfg, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	defer func() {
		client.Close()
		_, _ = byHand.close(), asItComes.Close()
	}()

	watermillMessage := func(i int) *message.Message {
		m := usual.numbered(i)
		msg := message.NewMessage("", m.Body)
		for key, value := range m.Headers {
			msg.Metadata.Set(key, value.(string))
		}
		return msg
	}
	measured := func(name string, n int, publish func(i int) error) entry {
		return entry{name, func(context.Context) (values, error) {
			defer func() { _ = b.broker.purge(queue) }()
			return b.measured(n, func() error { return inParallel(callers, n, publish) })
		}}
	}
	// About half a second each, on a machine where a confirm takes 0.4 ms.
	n := map[int]int{1: 1000, 8: 4000, 64: 12000}[callers]
	return contest{group: "publish", x: float64(callers), rounds: b.rounds, entries: []entry{
		measured(millpond, n, func(i int) error {
			return client.Publish(ctx, "", queue, usual.numbered(i))
		}),
		measured(raw, n, func(i int) error { return byHand.publish("", queue, usual.numbered(i)) }),
		measured(wmDefault, n/4, func(i int) error {
			return asItComes.Publish(queue, watermillMessage(i))
		}),
	}}.hold(ctx, b)
}

// measured returns the rate and the processor time of f, which handles n messages.
func (b *bench) measured(n int, f func() error) (values, error) {
	client, broker, begun := ownProcessorTime(), processorTime(b.broker.node.Pid()), time.Now()
	if err := f(); err != nil {
		return nil, err
	}
	took := time.Since(begun)
	client, broker = ownProcessorTime()-client, processorTime(b.broker.node.Pid())-broker
	b.counted += took
	each := func(cpu time.Duration) float64 { return float64(cpu.Microseconds()) / float64(n) }
	return values{
		rate: float64(n) / took.Seconds(), microseconds: each(client + broker),
		clients: each(client), brokers: each(broker),
	}, nil
}

func inParallel(callers, n int, f func(i int) error) error {
	var wait sync.WaitGroup
	problems := make([]error, callers)
	for c := range callers {
		wait.Go(func() {
			for i := c; i < n && problems[c] == nil; i += callers {
				problems[c] = f(i)
			}
		})
	}
	wait.Wait()
	return errors.Join(problems...)
}
