package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// service consumes the queue like any service that uses the library.
type service struct {
	Name, URL, Queue string
	Ordered, Block   bool
	Concurrency      int
	Delays           []time.Duration
	Heartbeat        time.Duration // 0 is the default of the AMQP client
	Verbose          bool

	Log   string // has the events of an instance
	Fates fates  // of the messages
}

// arguments are the arguments of the queue, ordered or not.
func arguments() amqp.Table {
	return amqp.Table{"x-queue-type": "quorum", "x-single-active-consumer": true}
}

// run consumes until ctx is done. It calls ready once the queue is consumed.
func (s service) run(
	ctx context.Context, handle func(*message.Message) error, ready func(),
) (err error) {
	var logger watermill.LoggerAdapter = watermill.NopLogger{}
	if s.Verbose {
		logger = watermill.NewStdLoggerWithOut(os.Stderr, false, false).
			With(watermill.LogFields{"instance": s.Name})
	}
	config := wamqp.NewDurableQueueConfig(s.URL)
	config.Queue.Arguments = arguments()
	config.Connection.Reconnect = &wamqp.ReconnectConfig{
		BackoffInitialInterval: 200 * time.Millisecond, BackoffMultiplier: 1.5,
		BackoffMaxInterval: time.Second,
	}
	if s.Heartbeat > 0 {
		config.Connection.AmqpConfig = &amqp.Config{Heartbeat: s.Heartbeat}
	}
	client, err := topology.Open(ctx, config.Connection, strategy(s.Ordered, s.Block),
		topology.WithLogger(logger), topology.WithName(s.Name),
		topology.WithConfirmTimeout(5*time.Second))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	retry, err := middleware.NewDelayedRetry(client, backoff.List(s.Delays),
		middleware.WithLogger(logger))
	if err != nil {
		return err
	}
	options := []topology.SubscriberOption{
		topology.For(retry), topology.WithConcurrency(s.Concurrency),
		topology.WithDrainTimeout(5 * time.Second),
	}
	sub, err := client.NewSubscriber(config, options...)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, logger)
	if err != nil {
		return err
	}
	router.AddMiddleware(retry.Middleware)
	router.AddConsumerHandler("handler", s.Queue, sub, handle)
	go func() {
		select {
		case <-router.Running():
			ready()
		case <-ctx.Done():
		}
	}()
	return router.Run(ctx)
}

// instanceEnv makes a process of this program an instance. Its value is the service.
const instanceEnv = "MILLPOND_ORDER_INSTANCE"

// maybeServe runs the whole program if this process was started as an instance, or as the
// operator. Call it first.
func maybeServe() {
	for env, p := range map[string]interface{ serve() error }{
		instanceEnv: &service{}, operatorEnv: &decisions{},
	} {
		text, ok := os.LookupEnv(env)
		if !ok {
			continue
		}
		err := json.Unmarshal([]byte(text), p)
		if err == nil {
			err = p.serve()
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s %s: %v\n", time.Now().Format("15:04:05.000"), text, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// serve is an instance until SIGTERM, or until the parent process has ended.
func (s service) serve() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	log, err := openLog(s.Log)
	if err != nil {
		return err
	}
	defer log.close()
	h := &handler{service: s, log: log}
	for {
		err := s.run(ctx, h.handle, func() {})
		if ctx.Err() != nil {
			return err
		}
		if s.Verbose {
			fmt.Fprintf(os.Stderr, "instance %s: %v\n", s.Name, err)
		}
		rest(ctx, 200*time.Millisecond) // the broker may be down
	}
}

// handler follows the fates of messages, and logs each handling.
type handler struct {
	service
	log   *eventLog
	calls atomic.Uint64
}

var errFate = errors.New("this attempt fails")

func (h *handler) handle(msg *message.Message) error {
	m, _, err := parseBody(msg.Payload)
	if err != nil {
		return middleware.Permanent(err)
	}
	ctx := msg.Context()
	e := event{
		kind: begun, at: time.Now(), instance: h.Name, call: h.calls.Add(1), msg: m,
		attempt: middleware.Attempt(ctx), epoch: epochOf(ctx), over: ctx.Err() != nil,
	}
	h.append(e)
	time.Sleep(h.Fates.work(m, e.attempt)) // as long as a handler that does not heed its context
	e.kind, e.at, e.over, e.outcome = ended, time.Now(), ctx.Err() != nil, handled
	failures := h.Fates.failures(m)
	if isMended(msg.Payload) {
		failures = h.Fates.failuresMended(m)
	}
	if e.attempt <= failures {
		e.outcome, err = failed, errFate
		if e.attempt > len(h.Delays) {
			e.outcome = gaveUp
		}
	}
	h.append(e)
	return err
}

// append ends the process if the event cannot be written: a message whose handling is not logged
// must not be acked.
func (h *handler) append(e event) {
	if err := h.log.append(e); err != nil {
		fmt.Fprintf(os.Stderr, "instance %s: %v\n", h.Name, err)
		os.Exit(4)
	}
}

// rest waits for d, and reports whether ctx is not done.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
