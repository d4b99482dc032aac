package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
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
	"github.com/millpond-go/millpond/middleware/header"
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
}

// The files of a run.
const (
	eventsFile = "events"
	gateFile   = "gate" // is locked while a wait queue is being deleted
	outFile    = "out"  // is there while the downstream service is out
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
		fmt.Fprintf(os.Stderr, "%s instance %s: %v\n", time.Now().Format("15:04:05.000"), in.Name, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve works until SIGTERM, or until the parent process has ended.
func (in instance) serve() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	go in.dump()
	log, err := openLog(filepath.Join(in.Dir, eventsFile))
	if err != nil {
		return err
	}
	defer log.close()
	if in.Operator {
		return in.decide(ctx, log)
	}
	if in.Samples > 0 {
		go in.sample(log)
	}
	h := &handlers{instance: in, log: log}
	for {
		err := h.run(ctx)
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
	signal.Notify(asked, dumpSignal)
	for range asked {
		if f, err := os.Create(filepath.Join(in.Dir, "goroutines-"+in.Name)); err == nil {
			_ = pprof.Lookup("goroutine").WriteTo(f, 2)
			_ = f.Close()
		}
	}
}

// handlers are the handlers of an instance.
type handlers struct {
	instance
	log     *eventLog
	calls   atomic.Uint64
	probing func() bool // whether the brake is stopped
}

// run consumes until ctx is done.
func (h *handlers) run(ctx context.Context) (err error) {
	var logger watermill.LoggerAdapter = watermill.NopLogger{}
	if h.Verbose {
		logger = watermill.NewStdLoggerWithOut(os.Stderr, false, false).
			With(watermill.LogFields{"instance": h.Name})
	}
	all, err := newLines(h.settings)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, logger)
	if err != nil {
		return err
	}
	var clients []*topology.Client
	defer func() {
		for _, client := range clients {
			err = errors.Join(err, client.Close())
		}
	}()
	for _, l := range all {
		config := h.config(l)
		client, err := topology.Open(ctx, config.Connection, l.strategy,
			topology.WithBrokers(h.URLs[1:]...), topology.WithLogger(logger),
			topology.WithName(identity(h.Name, l.name)),
			topology.WithConfirmTimeout(cmp.Or(h.Timeout, 5*time.Second)))
		if err != nil {
			return err
		}
		clients = append(clients, client)
		if err := h.consume(l, config, client, router, logger); err != nil {
			return err
		}
	}
	return router.Run(ctx)
}

func (h *handlers) config(l line) wamqp.Config {
	config := wamqp.NewDurableQueueConfig(h.URLs[0])
	config.Queue.Arguments = l.arguments
	if h.Prefetch > 0 {
		config.Consume.Qos.PrefetchCount = h.Prefetch
	}
	config.Connection.Reconnect = &wamqp.ReconnectConfig{
		BackoffInitialInterval: 200 * time.Millisecond, BackoffMultiplier: 1.5,
		BackoffMaxInterval: 2 * time.Second,
	}
	if h.Heartbeat > 0 {
		config.Connection.AmqpConfig = &amqp.Config{Heartbeat: h.Heartbeat}
	}
	return config
}

// consume adds the handlers of a line to the router.
func (h *handlers) consume(
	l line, config wamqp.Config, client *topology.Client, router *message.Router,
	logger watermill.LoggerAdapter,
) error {
	budget, err := h.budget(l.queue)
	if err != nil {
		return err
	}
	options := []middleware.Option{middleware.WithLogger(logger)}
	if budget != nil {
		options = append(options, middleware.WithBudget(budget))
	}
	var republisher middleware.Republisher = client
	if last := l.last(h.Delays); last != "" {
		republisher = gated{
			Client: client, gate: filepath.Join(h.Dir, gateFile), delay: h.Delays[len(h.Delays)-1],
		}
	}
	retry, err := middleware.NewDelayedRetry(republisher, backoff.List(h.Delays), options...)
	if err != nil {
		return err
	}
	sub, err := client.NewSubscriber(config, topology.For(retry),
		topology.WithConcurrency(h.Concurrency), topology.WithDrainTimeout(5*time.Second))
	if err != nil {
		return err
	}
	for i := range h.Handlers {
		router.AddConsumerHandler(fmt.Sprintf("%s handler %d", l.name, i), l.queue, sub,
			func(msg *message.Message) error { return h.handle(msg, identity(h.Name, l.name)) }).
			AddMiddleware(retry.Middleware)
	}
	return nil
}

// budget returns the budget with the brake of an outage, and none in other scenarios.
func (h *handlers) budget(queue string) (*budget.Budget, error) {
	h.probing = func() bool { return false }
	if !h.Brake {
		return nil, nil
	}
	// The window is short, because one process gets a dozen messages a second.
	b, err := budget.New(budget.Config{
		Window: 2 * time.Second, Share: 0.5, Minimum: 10,
		Brake: outage.Brake{Name: queue, Ramp: 10 * time.Second},
	})
	if err == nil {
		h.probing = func() bool { return b.State().Stopped }
	}
	return b, err
}

var (
	errFate    = errors.New("this attempt fails")
	errRefused = errors.New("this message fails for good")
	errOut     = errors.New("the downstream service is out")
)

// handle follows the fate of a message, and logs its begin and its end before it answers.
func (h *handlers) handle(msg *message.Message, who string) error {
	m, mended, err := parseID(string(msg.Payload))
	if err != nil {
		return middleware.Permanent(err)
	}
	ctx := msg.Context()
	raw, _ := topology.Received(ctx)
	e := event{
		Kind: begun, Who: who, Call: h.calls.Add(1), id: m, Attempt: middleware.Attempt(ctx),
		Epoch: middleware.StateOf(ctx).Epoch, Redelivered: raw.Redelivered, Probe: h.probing(),
		Priority: int(raw.Priority),
	}
	e.Copy, _ = raw.Headers[keys.Publish].(string)
	_, e.Aside = raw.Headers[keys.Snoozed]
	h.append(e)
	time.Sleep(h.Fates.work(m, e.Attempt)) // as long as a handler that does not heed its context
	e = event{Kind: ended, Who: who, Call: e.Call, id: m, Attempt: e.Attempt, Epoch: e.Epoch}
	e.Outcome, err = h.end(m, mended, e.Attempt)
	h.append(e)
	if errors.Is(err, errFate) && h.Fates.panics(m, e.Attempt) {
		panic(err)
	}
	return err
}

// end returns the outcome of an attempt.
func (h *handlers) end(m id, mended bool, attempt int) (outcome, error) {
	failures := h.Fates.failures(m)
	if mended {
		failures = h.Fates.failuresMended(m)
	}
	if _, err := os.Stat(filepath.Join(h.Dir, outFile)); err == nil {
		return failed, middleware.Retryable(errOut)
	}
	switch {
	case failures < 0:
		return gaveUp, middleware.Permanent(errRefused)
	case attempt > failures:
		return handled, nil
	case attempt > len(h.Delays):
		return gaveUp, errFate
	}
	return failed, errFate
}

// append ends the process if the event cannot be written: a message whose handling is not logged
// must not be acked.
func (in instance) appendTo(log *eventLog, e event) {
	if err := log.append(e); err != nil {
		fmt.Fprintf(os.Stderr, "instance %s: %v\n", in.Name, err)
		os.Exit(4)
	}
}

func (h *handlers) append(e event) { h.appendTo(h.log, e) }

// gated keeps messages out of the last wait queue while it is being deleted: they would be lost
// with it (F10).
type gated struct {
	*topology.Client
	gate  string
	delay time.Duration
}

func (g gated) Republish(
	ctx context.Context, msg *message.Message, delay time.Duration, state header.RetryState,
) (middleware.Republished, error) {
	if delay == g.delay {
		open, err := lockShared(g.gate)
		if err != nil {
			return middleware.Republished{}, err
		}
		defer open()
	}
	return g.Client.Republish(ctx, msg, delay, state)
}

// sample logs figures of the process until it ends.
func (in instance) sample(log *eventLog) {
	for range time.Tick(in.Samples) {
		runtime.GC()
		var mem runtime.MemStats
		runtime.ReadMemStats(&mem)
		figures := map[string]float64{
			"heap": float64(mem.HeapAlloc) / mib, "goroutines": float64(runtime.NumGoroutine()),
		}
		if status, err := os.ReadFile("/proc/self/statm"); err == nil {
			pages, _ := strconv.ParseFloat(strings.Fields(string(status))[1], 64)
			figures["rss"] = pages * float64(os.Getpagesize()) / mib
		}
		in.appendTo(log, event{Kind: sampled, Who: in.Name, Figures: figures})
	}
}

const mib = 1 << 20
