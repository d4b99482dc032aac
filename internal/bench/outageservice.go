package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/budget"
	"github.com/millpond-go/millpond/middleware/header"
	outages "github.com/millpond-go/millpond/middleware/outage"
	"github.com/millpond-go/millpond/topology"
)

// outageEnv makes a process of this program a service of the fleet. Its value is the
// configuration.
const outageEnv = "MILLPOND_BENCH_OUTAGE"

// outageService is the configuration of a service in another process.
type outageService struct {
	Name, URL, Queue, Downstream string
	Contender                    string
	Ramp                         time.Duration
	Verbose                      bool
}

// The contenders of an outage.
const (
	noBudget  = "none"
	perBudget = "budget"
	brake     = "brake"
)

const (
	// outageConcurrency is the number of messages that one process handles at once. The fleet of
	// 16 could call the downstream thousands of times a second.
	outageConcurrency = 8
	outagePrefetch    = 16
	callTimeout       = 2 * time.Second
	// budgetWindow is short, because one process gets a dozen messages a second.
	budgetWindow  = 2 * time.Second
	budgetMinimum = 10
)

// outagePolicy lasts longer than the outage, so that no message is dead because of it.
func outagePolicy() backoff.List {
	policy := backoff.List{time.Second, 5 * time.Second}
	for range 20 {
		policy = append(policy, 15*time.Second)
	}
	return policy
}

// note is a line that a service writes for the bench.
type note struct {
	Kind     middleware.EventKind `json:"kind"`
	At       time.Time            `json:"at"`
	Service  string               `json:"service"`
	Message  string               `json:"message,omitempty"`
	Failures int                  `json:"failures,omitempty"`
	Brake    *header.BrakeState   `json:"brake,omitempty"`
}

// noteReady says that a service consumes.
const noteReady = "ready"

// maybeServeOutage runs the whole program if this process was started as a service of the fleet.
func maybeServeOutage() {
	text, ok := os.LookupEnv(outageEnv)
	if !ok {
		return
	}
	var s outageService
	err := json.Unmarshal([]byte(text), &s)
	if err == nil {
		err = s.run()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: service %s: %v\n", s.Name, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run consumes until SIGTERM, or until the bench has ended.
func (s outageService) run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	var logger watermill.LoggerAdapter = watermill.NopLogger{}
	if s.Verbose {
		logger = watermill.NewStdLoggerWithOut(os.Stderr, false, false)
	}
	cfg := consumerConfig(s.URL, outagePrefetch)
	policy := outagePolicy()
	client, err := topology.Open(ctx, cfg.Connection, topology.PerQueue{}, topology.WithName(s.Name),
		topology.WithLogger(logger))
	if err != nil {
		return err
	}
	fail := func(err error) error { return errors.Join(err, client.Close()) }
	tell := s.notes(os.Stdout)
	options := []middleware.Option{
		middleware.WithLogger(logger),
		middleware.WithObserver(middleware.ObserverFunc(func(_ context.Context, e middleware.Event) {
			tell(noteOf(e))
		})),
	}
	budget, probing, err := s.budget()
	if err != nil {
		return fail(err)
	}
	if budget != nil {
		options = append(options, middleware.WithBudget(budget))
	}
	retry, err := middleware.NewDelayedRetry(client, policy, options...)
	if err != nil {
		return fail(err)
	}
	sub, err := client.NewSubscriber(cfg, topology.For(retry),
		topology.WithConcurrency(outageConcurrency))
	if err != nil {
		return fail(err)
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, logger)
	if err != nil {
		return fail(err)
	}
	caller := newCaller(s.Downstream, probing)
	router.AddMiddleware(retry.Middleware)
	router.AddConsumerHandler("handler", s.Queue, sub, caller.handle)
	go func() {
		<-router.Running()
		tell(note{Kind: noteReady, At: time.Now()})
	}()
	return errors.Join(router.Run(ctx), client.Close())
}

// budget returns the budget of the contender, and a function that reports whether a handler that
// is called now is a probe.
func (s outageService) budget() (b *budget.Budget, probing func() bool, err error) {
	cfg := budget.Config{Window: budgetWindow, Share: 0.5, Minimum: budgetMinimum}
	switch s.Contender {
	case noBudget:
		return nil, func() bool { return false }, nil
	case perBudget:
		cfg.Probes = 1
		b, err := budget.New(cfg)
		if err != nil {
			return nil, nil, err
		}
		return b, b.Closed, nil
	case brake:
		cfg.Brake = outages.Brake{Name: s.Queue, Ramp: s.Ramp}
		b, err := budget.New(cfg)
		if err != nil {
			return nil, nil, err
		}
		return b, func() bool { return b.State().Stopped }, nil
	}
	return nil, nil, fmt.Errorf("there is no contender %q", s.Contender)
}

// notes returns a function that writes notes, one a line.
func (s outageService) notes(out io.Writer) func(note) {
	var mu sync.Mutex
	encoder := json.NewEncoder(out)
	return func(n note) {
		n.Service = s.Name
		mu.Lock()
		defer mu.Unlock()
		if err := encoder.Encode(n); err != nil {
			fmt.Fprintf(os.Stderr, "bench: service %s: %v\n", s.Name, err)
			os.Exit(4) // an event that is not told would be missing from the figures
		}
	}
}

func noteOf(e middleware.Event) note {
	return note{
		Kind: e.Kind, At: e.At, Message: e.MessageID, Failures: e.Failures, Brake: e.Brake,
	}
}

// caller calls the downstream.
type caller struct {
	client  *http.Client
	url     string
	probing func() bool
}

func newCaller(url string, probing func() bool) *caller {
	transport := &http.Transport{MaxIdleConnsPerHost: outageConcurrency}
	return &caller{&http.Client{Transport: transport, Timeout: callTimeout}, url, probing}
}

var errUnavailable = errors.New("the downstream answers 503")

func (c *caller) handle(msg *message.Message) error {
	req, err := http.NewRequestWithContext(msg.Context(), http.MethodPost, c.url+string(msg.Payload),
		http.NoBody)
	if err != nil {
		return middleware.Permanent(err)
	}
	if c.probing() {
		req.Header.Set(probeHeader, "1")
	}
	req.Header.Set(sentHeader, strconv.FormatInt(time.Now().UnixNano(), 10))
	resp, err := c.client.Do(req)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusServiceUnavailable:
		return middleware.Retryable(errUnavailable)
	}
	return middleware.Permanent(errors.New(resp.Status))
}
