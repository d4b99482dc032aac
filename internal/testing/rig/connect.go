package rig

import (
	"context"
	"errors"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// Connect calls connect until the broker answers in time, and requires its success. A short
// confirm timeout makes the timeout of connecting short, too, and a busy broker misses it.
func Connect[T any](t testing.TB, connect func() (T, error)) T {
	t.Helper()
	var made T
	var err error
	WaitFor(t, "the broker to answer a connect", func() bool {
		made, err = connect()
		return !errors.Is(err, context.DeadlineExceeded)
	})
	require.NoError(t, err)
	return made
}

// OpenClient opens a client and closes it at the end of the test.
func OpenClient(
	t testing.TB, url string, strategy topology.Strategy, options ...topology.Option,
) *topology.Client {
	t.Helper()
	client, err := topology.Open(context.Background(), ConnectionConfig(url), strategy, options...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

// OpenSubscriber opens a client and makes its subscriber. The client closes both.
func OpenSubscriber(
	t testing.TB, url string, strategy topology.Strategy, policy backoff.Policy,
	options ...topology.Option,
) (*topology.Client, *topology.Subscriber) {
	t.Helper()
	client := OpenClient(t, url, strategy, options...)
	sub, err := client.NewSubscriber(QueueConfig(url), topology.ForPolicy(policy))
	require.NoError(t, err)
	return client, sub
}

// NewPublisher makes a publisher of a client and closes it at the end of the test.
func NewPublisher(
	t testing.TB, client *topology.Client, url string, options ...topology.PublisherOption,
) *topology.Publisher {
	t.Helper()
	pub, err := client.NewPublisher(QueueConfig(url), options...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pub.Close()) })
	return pub
}

// Operator opens a client without a subscriber, and returns the plan of a queue.
func Operator(
	t testing.TB, url, queue string, strategy topology.Strategy, policy backoff.Policy,
	options ...topology.Option,
) (*topology.Client, topology.Plan) {
	t.Helper()
	plan, err := topology.PlanFor(strategy, queue, policy)
	require.NoError(t, err)
	return OpenClient(t, url, strategy, options...), plan
}

// Provision declares the main queue, a quorum queue with a high delivery limit, and its plan.
func Provision(
	t testing.TB, url string, client *topology.Client, queue string, policy backoff.Policy,
) {
	t.Helper()
	cfg := QueueConfig(url)
	cfg.Queue.Arguments = amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1 << 30)}
	sub, err := client.NewSubscriber(cfg, topology.ForPolicy(policy))
	require.NoError(t, err)
	require.NoError(t, sub.SubscribeInitialize(queue))
	require.NoError(t, sub.Close())
}

// SubscribeError subscribes as cfg says, ends that, and returns the error of the first call
// that failed. It is nil if the queue was consumed.
func SubscribeError(
	t testing.TB, client *topology.Client, cfg wamqp.Config, queue string, policy backoff.Policy,
) error {
	t.Helper()
	sub, err := client.NewSubscriber(cfg, topology.ForPolicy(policy))
	if err == nil {
		_, err = sub.Subscribe(t.Context(), queue)
		require.NoError(t, sub.Close())
	}
	return err
}

// QueueConfig returns watermill-amqp's configuration of a durable queue.
func QueueConfig(url string) wamqp.Config { return wamqp.NewDurableQueueConfig(url) }

// ConnectionConfig returns watermill-amqp's configuration of a connection.
func ConnectionConfig(url string) wamqp.ConnectionConfig { return QueueConfig(url).Connection }

// QuorumQueue makes the main queue a quorum queue.
func QuorumQueue(cfg *wamqp.Config) { cfg.Queue.Arguments = amqp.Table{"x-queue-type": "quorum"} }

// QuickReconnect shortens the pauses between dials.
func QuickReconnect(cfg *wamqp.Config) {
	cfg.Connection.Reconnect = &wamqp.ReconnectConfig{
		BackoffInitialInterval: 20 * time.Millisecond, BackoffMultiplier: 1.5,
		BackoffMaxInterval: 200 * time.Millisecond,
	}
}

// Prefetch sets the number of messages that the broker sends ahead to a consumer.
func Prefetch(n int) func(*wamqp.Config) {
	return func(cfg *wamqp.Config) { cfg.Consume.Qos.PrefetchCount = n }
}

// OnTopic binds the main queue to a topic exchange.
func OnTopic(exchange, key string) func(*wamqp.Config) {
	return func(cfg *wamqp.Config) {
		cfg.Exchange = wamqp.ExchangeConfig{
			GenerateName: func(string) string { return exchange }, Type: "topic", Durable: true,
		}
		cfg.QueueBind.GenerateRoutingKey = func(string) string { return key }
	}
}

// InFlight lets a subscriber handle n messages at once.
func InFlight(n int) []topology.SubscriberOption {
	return []topology.SubscriberOption{topology.WithConcurrency(n)}
}

// QuickDeadLettering shortens the 180 s after which an at-least-once queue of a node tries
// again. A busy broker may hold messages that long after a restart (F23).
var QuickDeadLettering = testbroker.WithAdvancedConfig(
	"[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 5000}]}].")
