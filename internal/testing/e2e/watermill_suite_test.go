package e2e_test

import (
	"context"
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

// TestPubSubSuite runs Watermill's suite for Pub/Subs on our Subscriber and the publisher of
// watermill-amqp, with the features that watermill-amqp claims for a Pub/Sub.
func TestPubSubSuite(t *testing.T) {
	url := testbroker.URL(t)
	group := func(t *testing.T, consumerGroup string) (message.Publisher, message.Subscriber) {
		queue := wamqp.GenerateQueueNameTopicNameWithSuffix(consumerGroup)
		return suitePubSub(t, wamqp.NewDurablePubSubConfig(url, nil),
			wamqp.NewDurablePubSubConfig(url, queue))
	}
	tests.TestPubSub(t, tests.Features{
		ConsumerGroups: true, GuaranteedOrder: true, GuaranteedOrderWithSingleSubscriber: true,
		Persistent: true,
	}, func(t *testing.T) (message.Publisher, message.Subscriber) { return group(t, "test") }, group)
}

// TestQueueSuite runs the suite with the features that watermill-amqp claims for a queue.
func TestQueueSuite(t *testing.T) {
	runQueueSuite(t, tests.Features{
		GuaranteedOrder: true, GuaranteedOrderWithSingleSubscriber: true, Persistent: true,
	})
}

// TestQueueSuiteInFlight runs it with eight messages in flight, which keep no order.
func TestQueueSuiteInFlight(t *testing.T) {
	runQueueSuite(t, tests.Features{Persistent: true}, topology.WithConcurrency(8))
}

func runQueueSuite(t *testing.T, features tests.Features, options ...topology.SubscriberOption) {
	cfg := rig.QueueConfig(testbroker.URL(t))
	cfg.Publish.ChannelPoolSize = 25
	tests.TestPubSub(t, features, func(t *testing.T) (message.Publisher, message.Subscriber) {
		return suitePubSub(t, cfg, cfg, options...)
	}, nil)
}

func suitePubSub(
	t *testing.T, publish, consume wamqp.Config, options ...topology.SubscriberOption,
) (message.Publisher, message.Subscriber) {
	t.Helper()
	pub, err := wamqp.NewPublisher(publish, watermill.NopLogger{})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), rig.Patience)
	defer cancel()
	client, err := topology.Open(ctx, consume.Connection, topology.PerQueue{Type: topology.Classic})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	sub, err := client.NewSubscriber(consume, append(options,
		topology.ForPolicy(backoff.List{time.Second}), topology.WithDrainTimeout(time.Second))...)
	require.NoError(t, err)
	return pub, sub
}
