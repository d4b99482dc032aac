package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

type config struct {
	length, every time.Duration
	rate          int
	out           io.Writer
}

const (
	handlers = 8
	// drainLimit is the time for the last messages.
	drainLimit = 30 * time.Second
)

// soak returns the problems that it finds. An error means that the run could not be done.
func soak(ctx context.Context, c config) (problems []string, err error) {
	// Entries of quorum queues stay in memory until their log is rolled over. By default that is
	// after 512 MiB, so ten minutes would not show whether the memory grows.
	node, err := testbroker.Start(ctx, testbroker.WithConfig("raft.wal_max_size_bytes = 33554432"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	l := &load{queue: "orders", due: make(map[int]time.Time)}
	router, client, err := serve(ctx, node.URL(), l)
	if err != nil {
		return nil, err
	}
	running := make(chan error, 1)
	go func() { running <- router.Run(context.WithoutCancel(ctx)) }()
	defer func() { err = errors.Join(err, router.Close(), <-running, client.Close()) }()
	select {
	case <-router.Running():
	case err := <-running:
		running <- err
		return nil, err
	}
	fmt.Fprintf(c.out,
		"RabbitMQ %s, %d messages a second for %s, a fifth of them fail once or twice, waiting for %v\n",
		node.Version(), c.rate, c.length, delays)
	return measure(ctx, c, node, l)
}

// serve makes the service to watch.
func serve(ctx context.Context, url string, l *load) (*message.Router, *topology.Client, error) {
	cfg := wamqp.NewDurableQueueConfig(url)
	cfg.Queue.Arguments = amqp.Table{"x-queue-type": "quorum"}
	cfg.Consume.Qos.PrefetchCount = 20
	client, err := topology.Open(ctx, cfg.Connection, topology.PerQueue{})
	if err != nil {
		return nil, nil, err
	}
	sub, err := client.NewSubscriber(cfg, topology.ForPolicy(delays))
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	retry, err := middleware.NewDelayedRetry(client, delays)
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	router.AddMiddleware(retry.Middleware)
	for i := range handlers {
		router.AddConsumerHandler(fmt.Sprint("handler ", i), l.queue, sub, l.handle)
	}
	return router, client, nil
}

// measure loads the service and prints a line in each interval.
func measure(ctx context.Context, c config, node *testbroker.Node, l *load) ([]string, error) {
	publishing, stop := context.WithCancel(ctx)
	published := make(chan error, 1)
	go func() { published <- l.publish(publishing, node.URL(), c.rate) }()
	s := newSampler(node, l)
	err := s.run(ctx, c)
	stop()
	if err := errors.Join(err, <-published); err != nil {
		return nil, err
	}
	problems := s.verdict()
	for deadline := time.Now().Add(drainLimit); l.handled.Load() < l.sent.Load() &&
		time.Now().Before(deadline); {
		time.Sleep(50 * time.Millisecond)
	}
	sent, handled := l.sent.Load(), l.handled.Load()
	fmt.Fprintf(c.out, "%d messages confirmed, %d handled\n", sent, handled)
	if got := float64(sent) / c.length.Seconds(); got < 0.9*float64(c.rate) {
		fmt.Fprintf(c.out, "the machine was too busy for %d messages a second: it had %.0f\n", c.rate,
			got)
	}
	if sent != handled {
		problems = append(problems, fmt.Sprintf("%d messages were confirmed, and %d handled", sent,
			handled))
	}
	return problems, nil
}

// minSamples is the number of samples for a verdict. The first one is not counted, because caches
// and pools fill then.
const minSamples = 6

// series is one figure over time.
type series struct {
	name string
	unit string
	// A rise over the whole run of up to abs, and of up to rel times the series' median, is no growth.
	abs, rel float64
	values   []float64
}

// growth returns a text if the series grows. It fits a line to the values, by least squares.
func (s series) growth() string {
	if len(s.values) < minSamples {
		return fmt.Sprintf("%s: %d samples are too few for a verdict, want %d", s.name, len(s.values),
			minSamples)
	}
	values := s.values[1:]
	rise := slope(values) * float64(len(values)-1)
	median := slices.Sorted(slices.Values(values))[len(values)/2]
	if allowed := s.abs + s.rel*median; rise > allowed {
		return fmt.Sprintf("%s rises by %.1f %s, allowed are %.1f", s.name, rise, s.unit, allowed)
	}
	return ""
}

// slope returns the rise from one value to the next.
func slope(values []float64) float64 {
	n := float64(len(values))
	var sumX, sumY, sumXY, sumXX float64
	for i, y := range values {
		x := float64(i)
		sumX, sumY, sumXY, sumXX = sumX+x, sumY+y, sumXY+x*y, sumXX+x*x
	}
	return (n*sumXY - sumX*sumY) / (n*sumXX - sumX*sumX)
}

// delays before the second and the third attempt.
var delays = backoff.List{200 * time.Millisecond, 500 * time.Millisecond}

// failures returns the number of failures of message n. A fifth of all fail, half of these twice.
func failures(n int) int {
	switch n % 10 {
	case 3:
		return 1
	case 7:
		return 2
	}
	return 0
}

// load has the messages, their publishers and their handler.
type load struct {
	queue string

	next    atomic.Int64
	handled atomic.Int64
	sent    atomic.Int64

	mu       sync.Mutex
	due      map[int]time.Time // of the messages that wait
	lateness []time.Duration
}

var errFailed = errors.New("this attempt fails")

func (l *load) handle(msg *message.Message) error {
	n, err := strconv.Atoi(string(msg.Payload))
	if err != nil {
		return middleware.Permanent(err)
	}
	attempt := middleware.Attempt(msg.Context())
	l.mu.Lock()
	defer l.mu.Unlock()
	if due, waited := l.due[n]; waited {
		l.lateness = append(l.lateness, time.Since(due))
		delete(l.due, n)
	}
	if attempt <= failures(n) {
		l.due[n] = time.Now().Add(delays[attempt-1])
		return errFailed
	}
	l.handled.Add(1)
	return nil
}

func (l *load) handledCount() int { return int(l.handled.Load()) }

// takeLateness returns the lateness of the messages that came back since the last call.
func (l *load) takeLateness() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := l.lateness
	l.lateness = make([]time.Duration, 0, cap(taken))
	return taken
}

// publishing is the number of messages that are published at once.
const publishing = 16

// publish publishes rate messages a second, each confirmed, until ctx is done.
func (l *load) publish(ctx context.Context, url string, rate int) error {
	conn, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	errs := make([]error, publishing)
	var wg sync.WaitGroup
	for i := range publishing {
		ch, err := conn.Channel()
		if err == nil {
			err = ch.Confirm(false)
		}
		if err != nil {
			return errors.Join(err, conn.Close())
		}
		wg.Go(func() { errs[i] = l.produce(ctx, ch, rate) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (l *load) produce(ctx context.Context, ch *amqp.Channel, rate int) error {
	ticker := time.NewTicker(time.Second * publishing / time.Duration(rate))
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		n := int(l.next.Add(1))
		confirm, err := ch.PublishWithDeferredConfirm("", l.queue, true, false,
			amqp.Publishing{Body: []byte(strconv.Itoa(n)), DeliveryMode: amqp.Persistent})
		if err != nil {
			return err
		}
		if !confirm.Wait() {
			return fmt.Errorf("message %d was not confirmed", n)
		}
		l.sent.Add(1)
	}
}
