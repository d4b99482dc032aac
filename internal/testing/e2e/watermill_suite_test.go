package e2e_test

import (
	"os"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// TestPubSubStress runs Watermill's suite for Pub/Subs, with the features that watermill-amqp
// claims for a Pub/Sub: ten times at once with MILLPOND_LONG, and then with all its messages.
func TestPubSubStress(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	group := func(t *testing.T, consumerGroup string) (message.Publisher, message.Subscriber) {
		queue := wamqp.GenerateQueueNameTopicNameWithSuffix(consumerGroup)
		return suitePubSub(t, wamqp.NewDurablePubSubConfig(url, nil),
			wamqp.NewDurablePubSubConfig(url, queue))
	}
	suite, long := tests.TestPubSub, os.Getenv("MILLPOND_LONG") != ""
	if long {
		suite = tests.TestPubSubStressTest
	}
	suite(t, tests.Features{
		ConsumerGroups: true, GuaranteedOrder: true, GuaranteedOrderWithSingleSubscriber: true,
		Persistent: true, ForceShort: !long,
	}, func(t *testing.T) (message.Publisher, message.Subscriber) { return group(t, "test") }, group)
}

// TestQueueSuiteInFlight runs the suite on a queue with eight messages in flight, which keep no
// order, and with the publisher of watermill-amqp. Package amqpv3 runs it with one in flight.
func TestQueueSuiteInFlight(t *testing.T) {
	t.Parallel()
	cfg := rig.QueueConfig(testbroker.URL(t))
	cfg.Publish.ChannelPoolSize = 25
	tests.TestPubSub(t, tests.Features{Persistent: true},
		func(t *testing.T) (message.Publisher, message.Subscriber) {
			pub, err := wamqp.NewPublisher(cfg, watermill.NopLogger{})
			require.NoError(t, err)
			ours, sub := suitePubSub(t, cfg, cfg, topology.WithConcurrency(8))
			require.NoError(t, ours.Close())
			return pub, sub
		}, nil)
}

func suitePubSub(
	t *testing.T, publish, consume wamqp.Config, options ...topology.SubscriberOption,
) (*topology.Publisher, *topology.Subscriber) {
	t.Helper()
	client := rig.OpenClient(t, publish.Connection.AmqpURI, topology.PerQueue{Type: topology.Classic})
	pub, err := client.NewPublisher(publish)
	require.NoError(t, err)
	sub, err := client.NewSubscriberWithoutRetry(consume, append(options,
		topology.ForPolicy(backoff.List{time.Second}), topology.WithDrainTimeout(time.Second))...)
	require.NoError(t, err)
	return pub, sub
}
