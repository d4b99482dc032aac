package amqpv3_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/amqpv3"
)

const (
	grace    = 5 * time.Millisecond
	ceiling  = 10 * time.Second
	patience = 60 * time.Second
)

var errFailed = errors.New("the shop is closed")

func TestMain(m *testing.M) {
	testbroker.Main(m, func() error { return goleak.Find() })
}

func open(t *testing.T, cfg wamqp.Config, strategy topology.Strategy) *topology.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	client, err := amqpv3.Open(ctx, cfg.Connection, strategy)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

// attempt is a call of the handler.
type attempt struct {
	number int
	at     time.Time
	msg    *message.Message
}

// run consumes topic with delayed retries until the test ends, and returns the handler's calls.
// The message of an attempt is a copy.
func run(
	t *testing.T, client *topology.Client, cfg wamqp.Config, topic string, policy backoff.Policy,
	handler message.NoPublishHandlerFunc,
) <-chan attempt {
	t.Helper()
	sub, err := amqpv3.NewSubscriber(client, cfg, topology.ForPolicy(policy))
	require.NoError(t, err)
	retry, err := middleware.NewDelayedRetry(client, policy)
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(retry.Middleware)
	attempts := make(chan attempt, 10)
	router.AddConsumerHandler("handler", topic, sub, func(msg *message.Message) error {
		attempts <- attempt{middleware.Attempt(msg.Context()), time.Now(), msg.Copy()}
		return handler(msg)
	})
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	t.Cleanup(func() {
		require.NoError(t, router.Close())
		require.NoError(t, <-ended)
	})
	select {
	case <-router.Running():
	case <-time.After(patience):
		t.Fatalf("waited %s for the router to run", patience)
	}
	return attempts
}

func receive(t *testing.T, attempts <-chan attempt) attempt {
	t.Helper()
	select {
	case a := <-attempts:
		return a
	case <-time.After(patience):
		t.Fatalf("waited %s for an attempt", patience)
		panic("unreachable")
	}
}

// take waits for a message in a queue and acks it.
func take(t *testing.T, url, queue string) (got amqp.Delivery) {
	t.Helper()
	ch := testbroker.Channel(t, url)
	testbroker.WaitFor(t, "a message in "+queue, patience, func() bool {
		d, ok, err := ch.Get(queue, true)
		require.NoError(t, err)
		got = d
		return ok
	})
	return got
}
