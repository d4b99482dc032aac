package amqpv3_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/amqpv3"
)

func TestMain(m *testing.M) {
	testbroker.Main(m, func() error { return goleak.Find() })
}

func open(t *testing.T, cfg wamqp.Config, strategy topology.Strategy) *topology.Client {
	t.Helper()
	client := rig.Connect(t, func() (*topology.Client, error) {
		return amqpv3.OpenClient(context.Background(), cfg.Connection, strategy)
	})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

// run consumes topic with delayed retries until the test ends, and returns the handler's calls.
// The message of a call is a copy.
func run(
	t *testing.T, client *topology.Client, cfg wamqp.Config, topic string, policy backoff.Policy,
	handler message.NoPublishHandlerFunc,
) <-chan rig.Arrival {
	t.Helper()
	sub, err := amqpv3.NewSubscriberWithoutRetry(client, cfg, topology.ForPolicy(policy))
	require.NoError(t, err)
	logger := watermill.NopLogger{}
	router := rig.Router(t, message.RouterConfig{}, logger, rig.Retry(t, client, policy, logger))
	calls := make(chan rig.Arrival, 10)
	router.AddConsumerHandler("handler", topic, sub, func(msg *message.Message) error {
		attempt := middleware.Attempt(msg.Context())
		raw, _ := topology.Received(msg.Context())
		calls <- rig.Arrival{At: time.Now(), Msg: msg.Copy(), Attempt: attempt, Raw: raw}
		return handler(msg)
	})
	ended := rig.Run(t, router)
	t.Cleanup(func() {
		require.NoError(t, router.Close())
		require.NoError(t, <-ended)
	})
	return calls
}

// Watermill's own suite for Pub/Subs passes with the configurations of watermill-amqp v3. With
// MILLPOND_LONG it has all its messages. The suites of v2 have them always.

func TestPubSubSuite(t *testing.T) {
	url := testbroker.URL(t)
	group := func(t *testing.T, name string) (message.Publisher, message.Subscriber) {
		queueName := wamqp.GenerateQueueNameTopicNameWithSuffix(name)
		return pubSub(t, wamqp.NewDurablePubSubConfig(url, nil),
			wamqp.NewDurablePubSubConfig(url, queueName))
	}
	suite := tests.TestPubSub
	if long {
		suite = tests.TestPubSubStressTest
	}
	suite(t, features(true), func(t *testing.T) (message.Publisher, message.Subscriber) {
		return group(t, "test")
	}, group)
}

func TestQueueSuite(t *testing.T) {
	cfg := wamqp.NewDurableQueueConfig(testbroker.URL(t))
	tests.TestPubSub(t, features(false), func(t *testing.T) (message.Publisher, message.Subscriber) {
		return pubSub(t, cfg, cfg)
	}, nil)
}

var long = os.Getenv("MILLPOND_LONG") != ""

func features(consumerGroups bool) tests.Features {
	return tests.Features{
		ConsumerGroups: consumerGroups, Persistent: true, ForceShort: !long,
		GuaranteedOrder: true, GuaranteedOrderWithSingleSubscriber: true,
	}
}

func pubSub(t *testing.T, publish, consume wamqp.Config) (message.Publisher, message.Subscriber) {
	t.Helper()
	client := open(t, consume, topology.PerQueue{Type: topology.Classic})
	pub, err := amqpv3.NewPublisher(client, publish)
	require.NoError(t, err)
	sub, err := amqpv3.NewSubscriberWithoutRetry(client, consume,
		topology.ForPolicy(backoff.List{time.Second}), topology.WithDrainTimeout(time.Second))
	require.NoError(t, err)
	return pub, sub
}
