package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/budget"
	"github.com/millpond-go/millpond/middleware/outage"
	"github.com/millpond-go/millpond/topology"
)

// instanceEnv makes a process of this program an instance of a run. Its value is the instance.
const instanceEnv = "MILLPOND_LAB_INSTANCE"

// instance is a process of a run. It consumes like any service that uses the library, or it
// decides about blocked keys.
type instance struct {
	settings
	Name     string
	URLs     []string // it tries the first one first
	Dir      string   // has the log of events, and other files of the run
	Operator bool

	log   *eventLog
	calls *atomic.Uint64
}

// The files of a run.
const (
	eventsFile = "events"
	outFile    = "out" // is there while the downstream service is out
)

// maybeServe runs the whole program if this process was started as an instance. Call it first.
func maybeServe() {
	text, ok := os.LookupEnv(instanceEnv)
	if !ok {
		return
	}
	var in instance
	err := json.Unmarshal([]byte(text), &in)
	if err == nil {
		err = in.serve()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "instance %s: %v\n", in.Name, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve works until SIGTERM, or until the parent process has ended.
func (in instance) serve() (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	go in.dump()
	if in.log, err = openLog(filepath.Join(in.Dir, eventsFile)); err != nil {
		return err
	}
	defer in.log.close()
	if in.Operator {
		return in.decide(ctx)
	}
	if in.Samples > 0 {
		go in.sample()
	}
	in.calls = &atomic.Uint64{}
	for {
		err := in.consume(ctx)
		if ctx.Err() != nil {
			return err
		}
		if in.Verbose {
			fmt.Fprintf(os.Stderr, "instance %s: %v\n", in.Name, err)
		}
		rest(ctx, 200*time.Millisecond) // the broker may be down
	}
}

// dump writes the goroutines to a file whenever SIGUSR1 asks for them.
func (in instance) dump() {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	for range asked {
		if f, err := os.Create(filepath.Join(in.Dir, "goroutines-"+in.Name)); err == nil {
			_ = pprof.Lookup("goroutine").WriteTo(f, 2)
			_ = f.Close()
		}
	}
}

// consume consumes from all lines until ctx is done.
func (in instance) consume(ctx context.Context) (err error) {
	var logger watermill.LoggerAdapter = watermill.NopLogger{}
	if in.Verbose {
		logger = watermill.NewStdLoggerWithOut(os.Stderr, false, false).
			With(watermill.LogFields{"instance": in.Name})
	}
	all, err := newLines(in.settings)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, logger)
	if err != nil {
		return err
	}
	config := wamqp.NewDurableQueueConfig(in.URLs[0])
	if in.Prefetch > 0 {
		config.Consume.Qos.PrefetchCount = in.Prefetch
	}
	config.Connection.Reconnect = &wamqp.ReconnectConfig{
		BackoffInitialInterval: 200 * time.Millisecond, BackoffMultiplier: 1.5,
		BackoffMaxInterval: 2 * time.Second,
	}
	if in.Heartbeat > 0 {
		config.Connection.AmqpConfig = &amqp.Config{Heartbeat: in.Heartbeat}
	}
	for _, l := range all {
		who := identity(in.Name, l.name)
		client, failed := topology.Open(ctx, config.Connection, l.strategy,
			topology.WithBrokers(in.URLs[1:]...), topology.WithLogger(logger), topology.WithName(who),
			topology.WithConfirmTimeout(confirmTimeout))
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, client.Close()) }()
		probing, options, err := in.brake(l.queue)
		if err != nil {
			return err
		}
		retry, err := middleware.NewDelayedRetry(client, backoff.List(in.Delays),
			append(options, middleware.WithLogger(logger))...)
		if err != nil {
			return err
		}
		config.Queue.Arguments = l.arguments
		sub, err := client.NewSubscriber(config, retry,
			topology.WithConcurrency(in.Concurrency), topology.WithDrainTimeout(5*time.Second))
		if err != nil {
			return err
		}
		router.AddConsumerHandler(l.name, l.queue, sub, func(msg *message.Message) error {
			return in.handle(msg, who, probing())
		}).AddMiddleware(retry.Middleware)
	}
	return router.Run(ctx)
}

// brake returns the option for the brake of an outage, and none in other scenarios. probing reports
// whether the brake is stopped.
func (in instance) brake(queue string) (probing func() bool, _ []middleware.Option, _ error) {
	if !in.Brake {
		return func() bool { return false }, nil, nil
	}
	// The window is short, because one process gets a dozen messages a second.
	b, err := budget.New(budget.Config{
		Window: 2 * time.Second, Share: 0.5, Minimum: 10,
		Brake: outage.Brake{Name: queue, Ramp: 10 * time.Second},
	})
	if err != nil {
		return nil, nil, err
	}
	return func() bool { return b.State().Stopped }, []middleware.Option{middleware.WithBudget(b)}, nil
}

var (
	errFate    = errors.New("this attempt fails")
	errRefused = errors.New("this message fails for good")
	errOut     = errors.New("the downstream service is out")
)

// handle follows the fate of a message, and logs its begin and its end before it answers.
func (in instance) handle(msg *message.Message, who string, probe bool) error {
	m, mended, err := parseID(string(msg.Payload))
	if err != nil {
		return middleware.Permanent(err)
	}
	ctx := msg.Context()
	raw, _ := topology.Received(ctx)
	e := event{
		Kind: begun, Who: who, Call: in.calls.Add(1), id: m, Attempt: middleware.Attempt(ctx),
		Epoch: middleware.StateOf(ctx).Epoch, Redelivered: raw.Redelivered, Probe: probe,
		Priority: int(raw.Priority),
	}
	e.Copy, _ = raw.Headers[keys.Publish].(string)
	_, e.Aside = raw.Headers[keys.Snoozed]
	in.append(e)
	time.Sleep(in.Fates.work(m, e.Attempt)) // as long as a handler that does not heed its context
	e = event{Kind: ended, Who: who, Call: e.Call, id: m, Attempt: e.Attempt, Epoch: e.Epoch}
	e.Outcome, err = in.end(m, mended, e.Attempt)
	in.append(e)
	if errors.Is(err, errFate) && in.Fates.panics(m, e.Attempt) {
		panic(err)
	}
	return err
}

// end returns the outcome of an attempt.
func (in instance) end(m id, mended bool, attempt int) (outcome, error) {
	failures := in.Fates.failures(m)
	if mended {
		failures = in.Fates.failuresMended(m)
	}
	if _, err := os.Stat(filepath.Join(in.Dir, outFile)); err == nil {
		return failed, middleware.Retryable(errOut)
	}
	switch {
	case failures < 0:
		return gaveUp, middleware.Permanent(errRefused)
	case attempt > failures:
		return handled, nil
	case attempt > len(in.Delays):
		return gaveUp, errFate
	}
	return failed, errFate
}

// append ends the process if the event cannot be written: a message whose handling is not logged
// must not be acked.
func (in instance) append(e event) {
	if err := in.log.append(e); err != nil {
		fmt.Fprintf(os.Stderr, "instance %s: %v\n", in.Name, err)
		os.Exit(4)
	}
}
