package millpond_test

import (
	"context"
	"fmt"
	"log"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond"
	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

func TestMain(m *testing.M) { testbroker.Main(m, func() error { return goleak.Find() }) }

// A service with every option of the front door.
func ExampleOpen() {
	cfg := millpond.QuorumQueue(wamqp.NewDurableQueueConfig("amqp://guest:guest@127.0.0.1:5672/"))
	options := []millpond.Option{
		millpond.WithLogger(watermill.NewStdLogger(false, false)),
		millpond.WithStrategy(topology.Shared{}),
		millpond.WithClient(topology.WithName("shop")),
		millpond.WithRetry(middleware.WithMaxAge(time.Hour)),
		millpond.WithSubscriber(topology.WithConcurrency(8)),
	}
	retries, err := millpond.Open(
		context.Background(), cfg, backoff.List{time.Second, time.Minute}, options...)
	if err != nil {
		log.Print(err)
		return
	}
	defer retries.Close()
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		log.Print(err)
		return
	}
	router.AddMiddleware(retries.Retry.Middleware)
	router.AddConsumerHandler("orders", "orders", retries.Subscriber,
		func(*message.Message) error { return nil })
}

func ExampleQuorumQueue() {
	cfg := millpond.QuorumQueue(wamqp.NewDurableQueueConfig("amqp://guest:guest@127.0.0.1:5672/"))
	fmt.Println(cfg.Queue.Arguments)
	// Output: map[x-delivery-limit:2147483647 x-queue-type:quorum]
}

// An instance that still consumes with watermill-amqp reads a message that has waited.
func ExampleRolloutMarshaler() {
	returned := amqp.Delivery{
		Headers: amqp.Table{"x-death": []any{amqp.Table{"count": int64(1)}}, "tenant": "acme"},
		Body:    []byte("order 7"),
	}
	cfg := wamqp.NewDurableQueueConfig("amqp://guest:guest@127.0.0.1:5672/")
	_, err := cfg.Marshaler.Unmarshal(returned)
	fmt.Println(err)
	cfg.Marshaler = millpond.RolloutMarshaler(cfg.Marshaler)
	msg, err := cfg.Marshaler.Unmarshal(returned)
	fmt.Println(string(msg.Payload), msg.Metadata, err)
	// Output:
	// metadata x-death is not a string, but []interface {}{amqp091.Table{"count":1}}
	// order 7 map[tenant:acme] <nil>
}

// Given a policy, a configuration or an option that is refused, when a service opens, then the
// error names it and nothing stays open. Else everything is there until Close.
func TestOpenIsAllOrNothing(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	cfg, policy := wamqp.NewDurableQueueConfig(url), backoff.List{time.Second}
	lossy := cfg
	lossy.Consume.NoRequeueOnNack = true
	noPublish := cfg
	noPublish.Publish.Transactional = true
	for want, open := range map[string]func() (*millpond.Retries, error){
		"option 1 is nil": func() (*millpond.Retries, error) {
			return millpond.Open(t.Context(), cfg, policy, nil)
		},
		"strategy is nil": func() (*millpond.Retries, error) {
			return millpond.Open(t.Context(), cfg, policy, millpond.WithStrategy(nil))
		},
		"policy is nil": func() (*millpond.Retries, error) {
			return millpond.Open(t.Context(), cfg, nil)
		},
		"NoRequeueOnNack": func() (*millpond.Retries, error) {
			return millpond.Open(t.Context(), lossy, policy)
		},
		"Transactional": func() (*millpond.Retries, error) {
			return millpond.Open(t.Context(), noPublish, policy)
		},
	} {
		retries, err := open()
		require.ErrorContains(t, err, want)
		require.Nil(t, retries)
	}
	retries, err := millpond.Open(t.Context(), cfg, policy)
	require.NoError(t, err)
	require.NoError(t, retries.Client.Healthy())
	require.NoError(t, retries.Close())
	require.ErrorIs(t, retries.Client.Healthy(), topology.ErrClosed)
	require.NoError(t, retries.Close())
}

func TestQuorumQueueKeepsOtherArguments(t *testing.T) {
	t.Parallel()
	cfg := wamqp.NewDurableQueueConfig("amqp://localhost/")
	cfg.Queue.Arguments = amqp.Table{"x-single-active-consumer": true, "x-queue-type": "classic"}
	require.Equal(t, amqp.Table{
		"x-single-active-consumer": true, "x-queue-type": "quorum", "x-delivery-limit": int64(1<<31 - 1),
	}, millpond.QuorumQueue(cfg).Queue.Arguments)
	require.Equal(t, "classic", cfg.Queue.Arguments["x-queue-type"])
}
