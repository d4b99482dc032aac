package rig

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/budget"
	"github.com/millpond-go/millpond/middleware/outage"
	"github.com/millpond-go/millpond/topology"
)

// Braked says how StartBraked makes a service.
type Braked struct {
	URL, Queue string
	Name       string // of the brake; default: the queue
	Instance   string // the name of the client
	Handle     func(*message.Message) error
	Options    []topology.Option
}

// StartBraked starts a service with a brake, which four failures of eight stop, and waits until it
// consumes. It ends with the test.
func StartBraked(t testing.TB, b Braked) *Logs {
	t.Helper()
	budget, err := budget.New(budget.Config{
		Share: 0.5, Minimum: 4, Delay: time.Second,
		Brake: outage.Brake{Name: b.Name, Ramp: 500 * time.Millisecond},
	})
	require.NoError(t, err)
	logs := &Logs{}
	cfg := QueueConfig(b.URL)
	cfg.Queue.Arguments = amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int32(1 << 30)}
	policy := backoff.List{time.Second, time.Hour}
	RemovePlan(t, b.URL, topology.PerQueue{}, b.Queue, policy)
	testbroker.Delete(t, b.Queue)
	options := append([]topology.Option{topology.WithLogger(logs), topology.WithName(b.Instance)},
		b.Options...)
	client, err := topology.Open(t.Context(), cfg.Connection, topology.PerQueue{}, options...)
	require.NoError(t, err)
	retry, err := middleware.NewDelayedRetry(client, policy, middleware.WithBudget(budget))
	require.NoError(t, err)
	sub, err := client.NewSubscriber(cfg, topology.For(retry))
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, logs)
	require.NoError(t, err)
	router.AddMiddleware(retry.Middleware)
	router.AddConsumerHandler("handler", b.Queue, sub, b.Handle)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	<-router.Running()
	t.Cleanup(func() {
		require.NoError(t, router.Close())
		require.NoError(t, client.Close())
		require.NoError(t, <-ended)
		if t.Failed() {
			logs.Dump(t)
		}
	})
	return logs
}
