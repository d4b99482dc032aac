package rig

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/memnet"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
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
	return OpenWith(t, ConnectionConfig(url), strategy, options...)
}

// OpenSubscriber opens a client and makes its subscriber. The client closes both.
func OpenSubscriber(
	t testing.TB, url string, strategy topology.Strategy, policy backoff.Policy,
	options ...topology.Option,
) (*topology.Client, *topology.Subscriber) {
	t.Helper()
	client := OpenClient(t, url, strategy, options...)
	sub, err := client.NewSubscriberWithoutRetry(QueueConfig(url), topology.ForPolicy(policy))
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

// Provision declares the main queue, a quorum queue with a high delivery limit, and its plan.
func Provision(
	t testing.TB, url string, strategy topology.Strategy, queue string, policy backoff.Policy,
) topology.Plan {
	t.Helper()
	cfg := QueueConfig(url)
	cfg.Queue.Arguments = amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1 << 30)}
	sub, err := OpenClient(t, url, strategy).NewSubscriberWithoutRetry(cfg, topology.ForPolicy(policy))
	require.NoError(t, err)
	require.NoError(t, sub.SubscribeInitialize(queue))
	require.NoError(t, sub.Close())
	return PlanFor(t, queue, strategy, policy)
}

// SubscribeError subscribes as cfg says, ends that, and returns the error of the first call
// that failed. It is nil if the queue was consumed.
func SubscribeError(
	t testing.TB, client *topology.Client, cfg wamqp.Config, queue string, policy backoff.Policy,
) error {
	t.Helper()
	sub, err := client.NewSubscriberWithoutRetry(cfg, topology.ForPolicy(policy))
	if err == nil {
		_, err = sub.Subscribe(t.Context(), queue)
		require.NoError(t, sub.Close())
	}
	return err
}

// QueueConfig returns watermill-amqp's configuration of a durable queue, on a broker or a peer.
func QueueConfig(url string) wamqp.Config {
	cfg := wamqp.NewDurableQueueConfig(url)
	if strings.Contains(url, memnet.Suffix) {
		cfg.Connection.AmqpConfig = &amqp.Config{Dial: memnet.Dial}
	}
	return cfg
}

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

// OpenLogged opens a client, keeps its log, and closes the client at the end of the test.
func OpenLogged(
	t testing.TB, url string, strategy topology.Strategy, options ...topology.Option,
) (*topology.Client, *Logs) {
	t.Helper()
	logs := &Logs{}
	return OpenClient(t, url, strategy, append(options, topology.WithLogger(logs))...), logs
}

// OpenWith opens a client with a connection's configuration, and closes it at the end of the test.
func OpenWith(
	t testing.TB, conn wamqp.ConnectionConfig, strategy topology.Strategy,
	options ...topology.Option,
) *topology.Client {
	t.Helper()
	client, err := topology.Open(t.Context(), conn, strategy, options...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

// OpenOperator opens an operator and closes it at the end of the test.
func OpenOperator(t testing.TB, url string, options ...operate.Option) *operate.Operator {
	t.Helper()
	o, err := operate.Open(context.Background(), url, options...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, o.Close()) })
	return o
}

// PlanFor returns the plan of a queue.
func PlanFor(
	t testing.TB, queue string, strategy topology.Strategy, policy backoff.Policy,
) topology.Plan {
	t.Helper()
	plan, err := topology.PlanFor(strategy, queue, policy)
	require.NoError(t, err)
	return plan
}

// Verify returns the findings of Verify.
func Verify(t testing.TB, o *operate.Operator, plan topology.Plan) []operate.Finding {
	t.Helper()
	report, err := o.Verify(t.Context(), plan)
	require.NoError(t, err)
	return report.Findings
}

// Findings returns the findings of Verify as "severity problem kind name". It logs them, and
// requires the same at a second look.
func Findings(t testing.TB, o *operate.Operator, plan topology.Plan) []string {
	t.Helper()
	findings := Verify(t, o, plan)
	require.Equal(t, findings, Verify(t, o, plan))
	names := []string{}
	for _, f := range findings {
		t.Log(f)
		names = append(names, string(f.Severity)+" "+string(f.Problem)+" "+f.Kind+" "+f.Name)
	}
	return names
}

// BlindFindings is Findings of an operator without a management API. It requires that the last
// finding says so, and leaves it out.
func BlindFindings(t testing.TB, o *operate.Operator, plan topology.Plan) []string {
	t.Helper()
	names := Findings(t, o, plan)
	require.NotEmpty(t, names)
	require.Equal(t, "warning unchecked broker ", names[len(names)-1])
	return names[:len(names)-1]
}

// ShellWords splits a command as a shell does.
func ShellWords(t testing.TB, command string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", "printf '%s\\n' "+command).Output()
	require.NoError(t, err)
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}
