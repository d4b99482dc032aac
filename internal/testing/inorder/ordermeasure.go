package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/testing/chaos"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
)

// bench is a broker for measurements, with one service in this process at a time.
type bench struct {
	config
	broker *testbroker.Node
	trials int
}

func newBench(ctx context.Context, c config, what string) (*bench, error) {
	var options []testbroker.NodeOption
	if c.Memory {
		options = append(options, testbroker.InMemory())
	}
	node, err := testbroker.Start(ctx, options...)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(c.Out, "RabbitMQ %s, %d keys, %d handlers at once: %s\n", node.Version(), c.Keys,
		c.Concurrency, what)
	return &bench{config: c, broker: node}, nil
}

// queue declares a queue for a trial, and returns its name.
func (b *bench) queue() (string, error) {
	b.trials++
	name := fmt.Sprint("orders-", b.trials)
	return name, declare(b.broker.URL(), name)
}

// serve starts a service on a queue, and returns once it consumes. stop ends it.
func (b *bench) serve(
	ctx context.Context, queue string, ordered bool, handle func(*message.Message) error,
) (stop func() error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	s := service{
		Name: queue, URL: b.broker.URL(), Queue: queue, Ordered: ordered, Concurrency: b.Concurrency,
		Delays: b.Delays, Verbose: b.Verbose,
	}
	ready, over := make(chan struct{}), make(chan error, 1)
	go func() { over <- s.run(ctx, handle, func() { close(ready) }) }()
	stop = func() error { cancel(); return <-over }
	select {
	case <-ready:
		return stop, nil
	case err := <-over:
		cancel()
		return nil, errors.Join(errors.New("the service has ended"), err)
	}
}

// pairs does a trial without order and one with order in each round, and prints the median of their
// ratios: other work on the machine strikes a round or two, and not the median. A round before the
// others does not count.
func (b *bench) pairs(
	rounds int, unit string, trial func(ordered bool) (figure float64, more string, err error),
) error {
	names := map[bool]string{false: "unordered", true: "in order"}
	all := map[bool][]float64{}
	var ratios []float64
	for round := range rounds + 1 {
		figures := map[bool]float64{}
		for _, ordered := range []bool{round%2 == 1, round%2 == 0} {
			figure, more, err := trial(ordered)
			if err != nil {
				return err
			}
			figures[ordered] = figure
			fmt.Fprintf(b.Out, "  round %d  %-10s %10.1f %s  %s\n", round, names[ordered], figure, unit,
				more)
		}
		if round == 0 {
			continue
		}
		ratios = append(ratios, figures[true]/figures[false])
		for ordered, figure := range figures {
			all[ordered] = append(all[ordered], figure)
		}
	}
	for _, ordered := range []bool{false, true} {
		least, median, most := spread(all[ordered])
		fmt.Fprintf(b.Out, "%-10s median %.1f %s, from %.1f to %.1f\n", names[ordered], median, unit,
			least, most)
	}
	least, median, most := spread(ratios)
	fmt.Fprintf(b.Out, "ratio      median %.3f of %d rounds, from %.3f to %.3f\n", median, rounds,
		least, most)
	return nil
}

// spread returns the least, the median and the largest of figures.
func spread(figures []float64) (least, median, most float64) {
	sorted := slices.Sorted(slices.Values(figures))
	return sorted[0], sorted[len(sorted)/2], sorted[len(sorted)-1]
}

// measureSpeed compares how fast a full queue is emptied when no message fails.
func measureSpeed(ctx context.Context, c config, messages, rounds int) (err error) {
	b, err := newBench(ctx, c, fmt.Sprintf("a queue of %d messages is emptied, none fails", messages))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.broker.Close()) }()
	return b.pairs(rounds, "messages/s", func(ordered bool) (float64, string, error) {
		queue, err := b.queue()
		if err == nil {
			err = fill(b.broker.URL(), queue, c.Seed, c.Keys, messages)
		}
		if err != nil {
			return 0, "", err
		}
		var count atomic.Int64
		var first time.Time
		all := make(chan struct{})
		stop, err := b.serve(ctx, queue, ordered, func(*message.Message) error {
			switch count.Add(1) {
			case 1:
				first = time.Now()
			case int64(messages):
				close(all)
			}
			return nil
		})
		if err != nil {
			return 0, "", err
		}
		select {
		case <-all:
		case <-ctx.Done():
			return 0, "", errors.Join(ctx.Err(), stop())
		}
		took := time.Since(first)
		return float64(messages) / took.Seconds(), took.Round(time.Millisecond).String(), stop()
	})
}

// fill publishes messages of random keys, and returns when all are confirmed.
func fill(url, queue string, seed uint64, keys, messages int) error {
	ch, hangUp, err := chaos.Dial(url)
	if err != nil {
		return err
	}
	defer hangUp()
	r := rand.New(rand.NewPCG(seed, 1))
	numbers := make([]int, keys+1)
	var last *amqp.DeferredConfirmation
	for i := range messages {
		key := 1 + r.IntN(keys)
		numbers[key]++
		msg := id{key, numbers[key]}.publishing(time.Now())
		msg.DeliveryMode = amqp.Persistent
		confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false, msg)
		if err != nil {
			return err
		}
		if last = confirm; i%1000 == 999 && !last.Wait() {
			return errors.New("a message was not confirmed")
		}
	}
	if !last.Wait() {
		return errors.New("a message was not confirmed")
	}
	return nil
}

// measureWaits compares the time in the queue of the keys whose messages never fail, while messages
// of the other half fail.
func measureWaits(ctx context.Context, c config, rounds int) (err error) {
	length := c.Length / time.Duration(2*(rounds+1))
	b, err := newBench(ctx, c, fmt.Sprintf("trials of %s with %d messages a second; in one half "+
		"of the keys %d %% of the messages fail; the time in the queue is of the other half",
		length.Round(time.Second), c.Rate, c.Percent))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.broker.Close()) }()
	return b.pairs(rounds, "ms p99", func(ordered bool) (float64, string, error) {
		queue, err := b.queue()
		if err != nil {
			return 0, "", err
		}
		w := &waits{fates: fates{
			Seed: c.Seed, Percent: c.Percent, Dead: c.Dead, Healthy: c.Keys / 2,
		}}
		stop, err := b.serve(ctx, queue, ordered, w.handle)
		if err != nil {
			return 0, "", err
		}
		p := newProducer(b.broker.URL(), queue, c.Seed, c.Keys, c.Rate)
		end := make(chan struct{})
		timer := time.AfterFunc(length, func() { close(end) })
		defer timer.Stop()
		p.run(ctx, end)
		if err := errors.Join(stop(), ctx.Err()); err != nil {
			return 0, "", err
		}
		return w.figures()
	})
}

// waits are the times from the publish of a message to the begin of its handling.
type waits struct {
	fates fates

	mu  sync.Mutex
	all []time.Duration
}

func (w *waits) handle(msg *message.Message) error {
	m, published, err := parseBody(msg.Payload)
	if err != nil {
		return middleware.Permanent(err)
	}
	if m.key <= w.fates.Healthy {
		w.mu.Lock()
		w.all = append(w.all, time.Since(published))
		w.mu.Unlock()
	}
	attempt := middleware.Attempt(msg.Context())
	time.Sleep(w.fates.work(m, attempt))
	if attempt <= w.fates.failures(m) {
		return errFate
	}
	return nil
}

func (w *waits) figures() (p99 float64, more string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.all) < 1000 {
		return 0, "", fmt.Errorf("%d messages are too few for a p99: want 1000", len(w.all))
	}
	slices.Sort(w.all)
	at := func(percent int) float64 {
		return float64(w.all[(len(w.all)-1)*percent/100].Microseconds()) / 1000
	}
	more = fmt.Sprintf("p50 %.1f ms, most %.1f ms, %d messages", at(50), at(100), len(w.all))
	return at(99), more, nil
}

const (
	// busyRate is the number of messages a second of the busy key.
	busyRate = 5
	// caughtUpLimit is how long the busy key may take.
	caughtUpLimit = time.Minute
)

// busyDelays are the delays of the busy key's first message.
var busyDelays = []time.Duration{time.Second, 5 * time.Second, 15 * time.Second}

// errLate means that a busy key had not caught up in time.
var errLate = errors.New("the busy key has not caught up in time")

// measureCatchUp lets the first message of a busy key fail three times, and measures how long after
// its success all messages of the key are handled that were published by then.
func measureCatchUp(ctx context.Context, c config) (err error) {
	c.Delays = busyDelays
	b, err := newBench(ctx, c, fmt.Sprintf("%d messages a second of other keys, of which %d %% fail "+
		"once; %d a second of a key whose first message fails at %v", c.Rate, c.Percent, busyRate,
		busyDelays))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.broker.Close()) }()
	queue, err := b.queue()
	if err != nil {
		return err
	}
	k := &busyKey{fates: fates{Seed: c.Seed, Percent: c.Percent}}
	stop, err := b.serve(ctx, queue, !c.Unordered, k.handle)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()

	end := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { newProducer(b.broker.URL(), queue, c.Seed, c.Keys, c.Rate).run(ctx, end) })
	wg.Go(func() { k.publish(ctx, end, b.broker.URL(), queue) })
	defer wg.Wait()
	defer close(end)
	for rest(ctx, 10*time.Millisecond) {
		published, handled, backlog, since := k.state()
		switch {
		case since == 0:
		case handled >= published:
			fmt.Fprintf(c.Out, "the first message succeeded with %d messages of its key behind it; "+
				"the key had caught up %s later\n", backlog, since.Round(time.Millisecond))
			return nil
		case since > caughtUpLimit:
			return fmt.Errorf("%w: %d of %d messages handled after %s", errLate, handled, published, since)
		}
	}
	return ctx.Err()
}

// busyKey has key 0, which the producer does not use.
type busyKey struct {
	fates fates

	mu                 sync.Mutex
	published, handled int
	backlog            int       // at the success of the first message
	succeeded          time.Time // the first message
}

func (k *busyKey) state() (published, handled, backlog int, since time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.succeeded.IsZero() {
		since = time.Since(k.succeeded)
	}
	return k.published, k.handled, k.backlog, since
}

func (k *busyKey) publish(ctx context.Context, end <-chan struct{}, url, queue string) {
	p, line := newProducer(url, queue, 0, 1, busyRate), &line{url: url}
	defer line.close()
	ticker := time.NewTicker(time.Second / busyRate)
	defer ticker.Stop()
	for n := 1; p.publish(ctx, line, id{0, n}); n++ {
		k.mu.Lock()
		k.published = n
		k.mu.Unlock()
		select {
		case <-ticker.C:
		case <-end:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (k *busyKey) handle(msg *message.Message) error {
	m, _, err := parseBody(msg.Payload)
	if err != nil {
		return middleware.Permanent(err)
	}
	attempt := middleware.Attempt(msg.Context())
	time.Sleep(k.fates.work(m, attempt))
	if m.key != 0 {
		if attempt == 1 && k.fates.failures(m) > 0 {
			return errFate
		}
		return nil
	}
	if m.n == 1 && attempt <= len(busyDelays) {
		return errFate
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.handled++
	if m.n == 1 {
		k.succeeded, k.backlog = time.Now(), k.published-k.handled
	}
	return nil
}
