package topology_test

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

type placeOrder struct{ ID string }

type orderPlaced struct{ ID string }

type orderShipped struct{ ID string }

// app is a router with a client, to which tests add handlers of their own.
type app struct {
	t      *testing.T
	url    string
	policy backoff.Policy
	client *topology.Client
	router *message.Router
	logs   *rig.Logs
}

func newApp(t *testing.T, url string, policy backoff.Policy) *app {
	t.Helper()
	a := &app{t: t, url: url, policy: policy, logs: &rig.Logs{}}
	var err error
	a.client, err = topology.Open(t.Context(), rig.ConnectionConfig(url), topology.PerQueue{}, topology.WithLogger(a.logs))
	require.NoError(t, err)
	a.router, err = message.NewRouter(message.RouterConfig{}, a.logs)
	require.NoError(t, err)
	return a
}

func (a *app) subscriber() (message.Subscriber, error) {
	return a.client.NewSubscriber(rig.QueueConfig(a.url), topology.ForPolicy(a.policy))
}

func (a *app) publisher() *topology.Publisher { return rig.NewPublisher(a.t, a.client, a.url) }

func (a *app) retry(policy backoff.Policy, options ...middleware.Option) message.HandlerMiddleware {
	a.t.Helper()
	retry, err := middleware.NewDelayedRetry(a.client, policy, append(options, middleware.WithLogger(a.logs))...)
	require.NoError(a.t, err)
	return retry.Middleware
}

// runnable is a router, or what has one inside.
type runnable interface {
	Run(ctx context.Context) error
	Running() chan struct{}
	Close() error
}

// run runs until the end of the test, or until stop is called.
func (a *app) run(service runnable) (stop func()) {
	a.t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- service.Run(context.Background()) }()
	select {
	case <-service.Running():
	case err := <-ended:
		a.t.Fatalf("did not start: %v", err)
	case <-time.After(rig.Patience):
		a.t.Fatal("did not start")
	}
	stop = sync.OnceFunc(func() {
		require.NoError(a.t, service.Close())
		require.NoError(a.t, a.client.Close())
		require.NoError(a.t, <-ended)
		if a.t.Failed() {
			a.logs.Dump(a.t)
		}
	})
	a.t.Cleanup(stop)
	return stop
}

var jsonNames = cqrs.JSONMarshaler{GenerateName: cqrs.StructName}

func (a *app) commands(queue string, ackErrors bool) *cqrs.CommandProcessor {
	a.t.Helper()
	p, err := cqrs.NewCommandProcessorWithConfig(a.router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) { return queue, nil },
		SubscriberConstructor: func(cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return a.subscriber()
		},
		Marshaler: jsonNames, Logger: a.logs, AckCommandHandlingErrors: ackErrors,
	})
	require.NoError(a.t, err)
	return p
}

func (a *app) commandBus(queue string) *cqrs.CommandBus {
	a.t.Helper()
	bus, err := cqrs.NewCommandBusWithConfig(a.publisher(), cqrs.CommandBusConfig{
		GeneratePublishTopic: func(cqrs.CommandBusGeneratePublishTopicParams) (string, error) { return queue, nil }, Marshaler: jsonNames,
	})
	require.NoError(a.t, err)
	return bus
}

// A command handler that fails is retried, and its context knows the attempt.
func TestCommandIsRetried(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	attempts, ids := make(chan int, 10), make(chan string, 10)
	a := newApp(t, url, rig.Quickly(2))
	a.router.AddMiddleware(a.retry(rig.Quickly(2)))
	require.NoError(t, a.commands(queue, false).AddHandlers(cqrs.NewCommandHandler("place", func(ctx context.Context, cmd *placeOrder) error {
		attempts <- middleware.Attempt(ctx)
		ids <- cmd.ID
		if middleware.LastAttempt(ctx) {
			return nil
		}
		return rig.ErrFailed
	})))
	stop := a.run(a.router)
	require.NoError(t, a.commandBus(queue).Send(t.Context(), &placeOrder{ID: "7"}))
	rig.AwaitAttempts(t, attempts, 1, 2, 3)
	for range 3 {
		require.Equal(t, "7", <-ids)
	}
	stop()
	require.Zero(t, testbroker.Depth(t, url, queue))
	require.Zero(t, testbroker.Depth(t, url, queue+".dlq"))
}

// A command that cannot be unmarshalled fails inside DelayedRetry as well: a
// classifier makes that permanent.
func TestCommandThatCannotBeReadIsDeadLettered(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	a := newApp(t, url, rig.Quickly(2))
	a.router.AddMiddleware(a.retry(rig.Quickly(2), middleware.WithClassifier(middleware.PermanentType[*json.SyntaxError]())))
	require.NoError(t, a.commands(queue, false).AddHandlers(cqrs.NewCommandHandler("place", func(context.Context, *placeOrder) error {
		t.Error("handler was called")
		return nil
	})))
	a.run(a.router)
	msg := message.NewMessage("id-1", []byte("{"))
	msg.Metadata.Set("name", jsonNames.Name(placeOrder{}))
	require.NoError(t, a.publisher().Publish(queue, msg))
	dead := rig.Take(t, url, queue+".dlq")
	require.Equal(t, "permanent", dead.Headers[header.DeadReason])
	require.Equal(t, "1", dead.Headers[header.DeadFailures])
	require.Equal(t, "place", dead.Headers[header.DeadHandler])
}

// AckCommandHandlingErrors takes every error away inside DelayedRetry: nothing is
// retried and nothing dead-lettered.
func TestAckCommandHandlingErrorsLeavesNothingToRetry(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	attempts := make(chan int, 10)
	a := newApp(t, url, rig.Quickly(2))
	a.router.AddMiddleware(a.retry(rig.Quickly(2)))
	require.NoError(t, a.commands(queue, true).AddHandlers(cqrs.NewCommandHandler("place", func(ctx context.Context, _ *placeOrder) error {
		attempts <- middleware.Attempt(ctx)
		return rig.ErrFailed
	})))
	stop := a.run(a.router)
	bus := a.commandBus(queue)
	for range 2 {
		require.NoError(t, bus.Send(t.Context(), &placeOrder{}))
	}
	rig.AwaitAttempts(t, attempts, 1, 1)
	stop()
	require.Zero(t, testbroker.Depth(t, url, queue))
	require.Zero(t, testbroker.Depth(t, url, queue+".dlq"))
	require.Zero(t, testbroker.Depth(t, url, queue+".wait.100ms"))
}

// At handler level each command has a policy of its own.
func TestCommandsWithPoliciesOfTheirOwn(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	a := newApp(t, url, rig.Quickly(2))
	retries := map[string]int{testbroker.Queue(t): 0, testbroker.Queue(t): 2}
	for queue, n := range retries {
		h, err := a.commands(queue, false).AddHandler(cqrs.NewCommandHandler(queue, func(context.Context, *placeOrder) error { return rig.ErrFailed }))
		require.NoError(t, err)
		h.AddMiddleware(a.retry(backoff.Limit{Policy: rig.Quickly(100), Retries: n}))
	}
	a.run(a.router)
	for queue, n := range retries {
		require.NoError(t, a.commandBus(queue).Send(t.Context(), &placeOrder{}))
		dead := rig.Take(t, url, queue+".dlq")
		require.Equal(t, map[int]string{0: "1", 2: "3"}[n], dead.Headers[header.DeadFailures])
	}
}
