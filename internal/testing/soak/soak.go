package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

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
	// drainLimit is how long the last messages may take.
	drainLimit = 30 * time.Second
)

// soak returns what is not as it should be; the error says why it could not be done.
func soak(ctx context.Context, c config) (problems []string, err error) {
	node, err := testbroker.Start(ctx)
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

// serve is the service that is watched.
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

// measure loads the service and prints a line every now and then.
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
		fmt.Fprintf(c.out, "the machine was too busy for %d messages a second: it were %.0f\n", c.rate,
			got)
	}
	if sent != handled {
		problems = append(problems, fmt.Sprintf("%d messages were confirmed, and %d handled", sent,
			handled))
	}
	return problems, nil
}
