package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/adaptive"
	"github.com/millpond-go/millpond/middleware/budget"
	"github.com/millpond-go/millpond/middleware/outage"
	"github.com/millpond-go/millpond/topology"
)

const (
	stormy     = 2 * time.Minute // everything fails
	calm       = 30 * time.Second
	perTick    = 10
	stormTick  = 10 * time.Millisecond
	stormTotal = int((stormy+calm)/stormTick) * perTick
)

// scaleStorm measures what a service does while everything fails, and a thousand messages come each
// second.
func (b *bench) scaleStorm(ctx context.Context) (results []result, err error) {
	policy := backoff.Exponential{Initial: time.Second, Factor: 2, Max: 16 * time.Second, Retries: 50}
	health, err := adaptive.New(10 * time.Second)
	if err != nil {
		return nil, err
	}
	brake, err := budget.New(budget.Config{
		Share: 0.5, Brake: outage.Brake{Name: "storm", Ramp: 10 * time.Second},
	})
	if err != nil {
		return nil, err
	}
	for _, one := range []struct {
		name   string
		policy backoff.Policy
		option middleware.Option
	}{
		{"delays alone", policy, middleware.WithObserver()},
		{
			"Adaptive",
			backoff.Adaptive{Policy: policy, Health: health.Recent},
			middleware.WithObserver(health),
		},
		{"Brake", policy, middleware.WithBudget(brake)},
	} {
		measured, err := b.storm(ctx, one.policy, one.option)
		if err != nil {
			return results, fmt.Errorf("%s: %w", one.name, err)
		}
		results = b.add(results, "storm", 0, one.name, measured)
	}
	return results, nil
}

// fresh is what a service in a storm counts.
type fresh struct {
	over time.Time // of the storm

	mu    sync.Mutex
	seen  [stormTotal]bool
	left  int
	calls int // during the storm
	worst time.Duration
	done  chan struct{}
}

func (f *fresh) handle(msg *message.Message) error {
	i, sent := number(msg.Payload), int64(binary.BigEndian.Uint64(msg.Payload[8:]))
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.seen[i] {
		f.seen[i] = true
		f.worst = max(f.worst, time.Since(time.Unix(0, sent)))
	}
	if time.Now().Before(f.over) {
		f.calls++
		return errFailed
	}
	if f.left--; f.left == 0 {
		close(f.done)
	}
	return nil
}

func (b *bench) storm(
	ctx context.Context, policy backoff.Policy, option middleware.Option,
) (values, error) {
	cfg, queue := consumerConfig(b.broker.node.URL(), 16), b.broker.name("storm")
	client, err := topology.Open(ctx, cfg.Connection, topology.PerQueue{},
		topology.WithLogger(watermill.NopLogger{}))
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }()
	retry, err := middleware.NewDelayedRetry(client, policy, option)
	if err != nil {
		return nil, err
	}
	sub, err := client.NewSubscriber(cfg, retry, topology.WithConcurrency(8))
	if err != nil {
		return nil, err
	}
	f := &fresh{left: stormTotal, done: make(chan struct{}), over: time.Now().Add(stormy)}
	stop, err := route(ctx, func(router *message.Router) {
		router.AddMiddleware(retry.Middleware)
		router.AddConsumerHandler("handler", queue, sub, f.handle)
	})
	if err != nil {
		return nil, err
	}
	used := processorTime(b.broker.node.Pid())
	err = b.broker.do(func(ch *amqp.Channel) error { return rain(ch, queue) })
	used = processorTime(b.broker.node.Pid()) - used
	select {
	case <-f.done:
	case <-time.After(patience):
		err = errors.Join(err, fmt.Errorf("%d messages are left", f.left))
	}
	return values{
		"s, worst wait of a new message": f.worst.Seconds(),
		"calls a second in the storm":    float64(f.calls) / stormy.Seconds(),
		"% of a processor, broker":       100 * used.Seconds() / (stormy + calm).Seconds(),
		"s until all is done, then":      time.Since(f.over).Seconds(),
	}, errors.Join(err, stop())
}

// rain publishes messages that have the time in their bodies.
func rain(ch *amqp.Channel, queue string) error {
	tick := time.NewTicker(stormTick)
	defer tick.Stop()
	for i := 0; i < stormTotal; i += perTick {
		<-tick.C
		var last *amqp.DeferredConfirmation
		for n := range perTick {
			msg := usual.numbered(i + n)
			binary.BigEndian.PutUint64(msg.Body[8:], uint64(time.Now().UnixNano()))
			var err error
			if last, err = ch.PublishWithDeferredConfirm("", queue, true, false, msg); err != nil {
				return err
			}
		}
		if !last.Wait() {
			return errors.New("not confirmed")
		}
	}
	return nil
}
