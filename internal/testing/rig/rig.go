// Package rig starts services for scenarios on a real broker and looks at the broker for them.
//
// [Start] starts one service: a client, a subscriber, the middleware and a router on one queue.
// All that a helper declares or opens is removed or closed at the end of the test. Every helper
// fails the test when the broker refuses.
package rig

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/memnet"
	"github.com/millpond-go/millpond/internal/testing/passage"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

const (
	// Grace is how early a message may come by the client's clock (F20).
	Grace = 5 * time.Millisecond
	// Ceiling is how late a message may come on a busy machine before a test fails.
	Ceiling = 10 * time.Second
	// Patience bounds every wait on a condition.
	Patience = 3 * time.Minute
)

// ErrFailed is the error of a handler that fails.
var ErrFailed = errors.New("the shop is closed")

// Config says how Start makes a service. Policy and one of Handle and Handler are required.
type Config struct {
	URL          string // default: the shared broker
	PublisherURL string // of the connection that republishes; default: URL
	AdminURL     string // may delete the declared queues; default: URL
	Queue        string // default: a queue of the test's own
	Keep         bool   // leave the declared queues at the end of the test

	Strategy          topology.Strategy // default: PerQueue
	Policy            backoff.Policy
	UnknownPolicy     bool // make the subscriber without For
	Configure         func(*wamqp.Config)
	Rounds            *passage.Rounds // watches the service's connections, if it is set
	ClientOptions     []topology.Option
	SubscriberOptions []topology.SubscriberOption
	RetryOptions      []middleware.Option

	Handle       func(*message.Message) error // a handler that produces nothing
	Handler      message.HandlerFunc          // a handler that may produce messages
	Publisher    message.Publisher            // of the messages that Handler produces
	PublishTopic string
	RouterConfig message.RouterConfig
	Context      context.Context             // of the router's Run; default: Background
	Outer        []message.HandlerMiddleware // outside DelayedRetry, the first outermost
	Inner        []message.HandlerMiddleware // inside DelayedRetry, the first outermost
	Verbose      bool                        // keep debug and trace lines of the log, too
	Forgotten    bool                        // the broker forgets a consumer: the watchdog may bark
}

// WatchdogLine begins the line of the watchdog. It stands in no log of a healthy service.
const WatchdogLine = "The queue has messages and delivers none to this process"

// withDefaults returns the configuration with every missing field filled in.
func (c Config) withDefaults(t testing.TB) Config {
	t.Helper()
	if c.URL == "" {
		c.URL = testbroker.URL(t)
	}
	if c.PublisherURL == "" {
		c.PublisherURL = c.URL
	}
	if c.AdminURL == "" {
		c.AdminURL = c.URL
	}
	if c.Queue == "" {
		c.Queue = testbroker.Queue(t)
	}
	if c.Context == nil {
		c.Context = context.Background()
	}
	if c.Strategy == nil {
		c.Strategy = topology.PerQueue{}
	}
	if handle := c.Handle; handle != nil {
		c.Handler = func(msg *message.Message) ([]*message.Message, error) { return nil, handle(msg) }
	}
	c.Handler = Inside(c.Handler, c.Inner...)
	return c
}

// Service is a running service on one queue.
type Service struct {
	T          testing.TB
	URL, Queue string
	Client     *topology.Client
	Subscriber *topology.Subscriber
	Plan       topology.Plan // empty if the declared queues stay
	Logs       *Logs
	Stop       func() // closes the router and the client, once

	router *message.Router
}

// Start starts a service, waits until it consumes, and stops it at the end of the test. A test
// that failed prints the log of the service.
func Start(t testing.TB, c Config) *Service {
	t.Helper()
	c = c.withDefaults(t)
	delays, _ := backoff.Delays(c.Policy)
	if c.UnknownPolicy {
		delays = nil
	}
	s := &Service{T: t, URL: c.URL, Queue: c.Queue, Logs: &Logs{verbose: c.Verbose}}
	if !c.Keep {
		s.Plan = RemovePlan(t, c.AdminURL, c.Strategy, c.Queue, delays)
	}
	cfg := QueueConfig(c.URL)
	if strings.Contains(c.URL+c.PublisherURL, memnet.Suffix) {
		cfg.Connection.AmqpConfig = &amqp.Config{Dial: memnet.Dial}
	}
	cfg.Connection.Reconnect = &wamqp.ReconnectConfig{
		BackoffInitialInterval: 500 * time.Millisecond, BackoffMultiplier: 1.5,
		BackoffMaxInterval: 2 * time.Second,
	}
	if c.Configure != nil {
		c.Configure(&cfg)
	}
	if c.Rounds != nil {
		c.Rounds.Watch(&cfg.Connection)
	}
	conn := cfg.Connection
	conn.AmqpURI = c.PublisherURL

	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	logger := topology.WithLogger(s.Logs)
	s.Client = Connect(t, func() (*topology.Client, error) {
		return topology.Open(ctx, conn, c.Strategy, append(c.ClientOptions, logger)...)
	})
	retry := Retry(t, s.Client, c.Policy, s.Logs, c.RetryOptions...)
	s.Subscriber = Connect(t, func() (*topology.Subscriber, error) {
		if c.UnknownPolicy {
			return s.Client.NewSubscriberWithoutRetry(cfg, c.SubscriberOptions...)
		}
		return s.Client.NewSubscriber(cfg, retry, c.SubscriberOptions...)
	})
	s.router = Router(t, c.RouterConfig, s.Logs, retry, c.Outer...)
	if c.Publisher != nil {
		s.router.AddHandler("handler", c.Queue, s.Subscriber, c.PublishTopic, c.Publisher, c.Handler)
	} else {
		s.router.AddConsumerHandler("handler", c.Queue, s.Subscriber, func(msg *message.Message) error {
			_, err := c.Handler(msg)
			return err
		})
	}
	s.run(c)
	return s
}

// run runs the router and arranges the end of the service.
func (s *Service) run(c Config) {
	s.T.Helper()
	ended := runUntil(c.Context, s.T, s.router)
	s.Stop = sync.OnceFunc(func() {
		if err := s.router.Close(); c.RouterConfig.CloseTimeout == 0 {
			require.NoError(s.T, err)
		}
		require.NoError(s.T, s.Client.Close())
		require.NoError(s.T, <-ended)
		if !c.Forgotten {
			require.Zero(s.T, s.Logs.Said(WatchdogLine), WatchdogLine)
		}
	})
	s.T.Cleanup(func() {
		s.Stop()
		if s.T.Failed() {
			s.Logs.Dump(s.T)
		}
	})
}

// Retry makes a DelayedRetry.
func Retry(
	t testing.TB, client *topology.Client, policy backoff.Policy, logger watermill.LoggerAdapter,
	options ...middleware.Option,
) *middleware.DelayedRetry {
	t.Helper()
	options = append(options, middleware.WithLogger(logger))
	retry, err := middleware.NewDelayedRetry(client, policy, options...)
	require.NoError(t, err)
	return retry
}

// Router makes a router with a DelayedRetry, and with other middlewares outside it.
func Router(
	t testing.TB, config message.RouterConfig, logger watermill.LoggerAdapter,
	retry *middleware.DelayedRetry, outer ...message.HandlerMiddleware,
) *message.Router {
	t.Helper()
	router, err := message.NewRouter(config, logger)
	require.NoError(t, err)
	router.AddMiddleware(outer...)
	router.AddMiddleware(retry.Middleware)
	return router
}

// Runner is a router, or a component that has a router inside.
type Runner interface {
	Run(ctx context.Context) error
	Running() chan struct{}
}

// Run runs a router, waits until its handlers consume, and returns a channel that gets the
// router's error when it ends.
func Run(t testing.TB, router Runner) (ended <-chan error) {
	t.Helper()
	return runUntil(context.Background(), t, router)
}

func runUntil(ctx context.Context, t testing.TB, router Runner) (ended <-chan error) {
	t.Helper()
	over := make(chan error, 1)
	go func() { over <- router.Run(ctx) }()
	select {
	case <-router.Running():
	case err := <-over:
		t.Fatalf("the router did not start: %v", err)
	case <-time.After(Patience):
		t.Fatal("the router did not start")
	}
	return over
}

// Publish publishes a message to the service's queue, as a plain AMQP client does, and waits
// for the confirm.
func (s *Service) Publish(msg amqp.Publishing) {
	s.T.Helper()
	Publish(s.T, s.URL, "", s.Queue, msg)
}

// Send publishes persistent messages with these bodies to the service's queue.
func (s *Service) Send(bodies ...string) {
	s.T.Helper()
	messages := make([]amqp.Publishing, len(bodies))
	for i, body := range bodies {
		messages[i] = Message(body)
	}
	Post(s.T, s.URL, s.Queue, messages...)
}

// DeadLetter waits for a message in the service's dead-letter queue and takes it.
func (s *Service) DeadLetter() amqp.Delivery {
	s.T.Helper()
	return Take(s.T, s.URL, s.Queue+".dlq")
}

// RequireDead requires the reason and the number of failures of a dead letter.
func RequireDead(t testing.TB, dead amqp.Delivery, reason, failures string) {
	t.Helper()
	require.Equal(t, reason, dead.Headers[header.DeadReason])
	require.Equal(t, failures, dead.Headers[header.DeadFailures])
}

// Depth counts the ready messages of the queue with the service's queue name and a suffix.
// Depth("") is the main queue, Depth(".dlq") the dead-letter queue.
func (s *Service) Depth(suffix string) int {
	s.T.Helper()
	return testbroker.Depth(s.T, s.URL, s.Queue+suffix)
}

// Waiting counts the messages in the wait queues of the service's plan.
func (s *Service) Waiting() int {
	s.T.Helper()
	return Waiting(s.T, s.URL, s.Plan)
}

// RequireNothingLeft stops the service and requires an empty queue and so many dead letters.
func (s *Service) RequireNothingLeft(dead int) {
	s.T.Helper()
	s.Stop()
	require.Equal(s.T, 0, s.Depth(""), "messages left in the queue")
	require.Equal(s.T, dead, s.Depth(".dlq"), "dead letters")
}

// RequireOneConnection requires that the consumer never had to begin again.
func (s *Service) RequireOneConnection() {
	s.T.Helper()
	text := s.Logs.Text()
	require.Equal(s.T, 1, strings.Count(text, " Consuming "), text)
	require.NotContains(s.T, text, "Connection to RabbitMQ lost")
}

// WaitFor waits until cond holds and fails the test after Patience. The text completes the
// sentence "waited for …".
func WaitFor(t testing.TB, condition string, cond func() bool) {
	t.Helper()
	testbroker.WaitFor(t, condition, Patience, cond)
}

// AwaitDepth waits for n ready messages in a queue.
func AwaitDepth(t testing.TB, url, queue string, n int) {
	t.Helper()
	WaitFor(t, fmt.Sprintf("%d messages in %q", n, queue), func() bool {
		return testbroker.Depth(t, url, queue) == n
	})
}

// AwaitLine waits until the log of the service contains every text.
func (s *Service) AwaitLine(texts ...string) {
	s.T.Helper()
	for _, text := range texts {
		WaitFor(s.T, fmt.Sprintf("%q in the log", text), func() bool { return s.Logs.Said(text) > 0 })
	}
}

// Each runs a parallel subtest for each case.
func Each[C any](t *testing.T, cases map[string]C, run func(t *testing.T, c C)) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, c)
		})
	}
}

// OnEachStrategy runs a parallel subtest for each of Strategies, or for those that are named.
func OnEachStrategy(
	t *testing.T, run func(t *testing.T, strategy topology.Strategy), names ...string,
) {
	t.Helper()
	for name, strategy := range Strategies {
		if len(names) == 0 || slices.Contains(names, name) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				run(t, strategy(t))
			})
		}
	}
}

// DeleteQueue deletes a queue at once.
func DeleteQueue(t testing.TB, url, queue string) {
	t.Helper()
	_, err := testbroker.Channel(t, url).QueueDelete(queue, false, false, false)
	require.NoError(t, err)
}

// RequireTexts requires an error that contains every text, and logs it.
func RequireTexts(t testing.TB, err error, texts ...string) {
	t.Helper()
	for _, text := range texts {
		require.ErrorContains(t, err, text)
	}
	t.Log(err)
}
