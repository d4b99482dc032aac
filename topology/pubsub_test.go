package topology_test

import (
	"context"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// Watermill's own suite for Pub/Subs, our Subscriber beside watermill-amqp's
// publisher, with the features that watermill-amqp claims there.

func TestPubSubSuite(t *testing.T) {
	url := testbroker.URL(t)
	features := tests.Features{
		ConsumerGroups:                      true,
		ExactlyOnceDelivery:                 false,
		GuaranteedOrder:                     true,
		GuaranteedOrderWithSingleSubscriber: true,
		Persistent:                          true,
	}
	group := func(t *testing.T, consumerGroup string) (message.Publisher, message.Subscriber) {
		cfg := wamqp.NewDurablePubSubConfig(url, wamqp.GenerateQueueNameTopicNameWithSuffix(consumerGroup))
		return pubSub(t, wamqp.NewDurablePubSubConfig(url, nil), cfg)
	}
	tests.TestPubSub(t, features, func(t *testing.T) (message.Publisher, message.Subscriber) {
		return group(t, "test")
	}, group)
}

func TestQueueSuite(t *testing.T) {
	url := testbroker.URL(t)
	features := tests.Features{
		ConsumerGroups:                      false,
		ExactlyOnceDelivery:                 false,
		GuaranteedOrder:                     true,
		GuaranteedOrderWithSingleSubscriber: true,
		Persistent:                          true,
	}
	tests.TestPubSub(t, features, func(t *testing.T) (message.Publisher, message.Subscriber) {
		cfg := wamqp.NewDurableQueueConfig(url)
		cfg.Publish.ChannelPoolSize = 25
		return pubSub(t, cfg, cfg)
	}, nil)
}

// The same with eight messages in flight, which keep no order.
func TestQueueSuiteInFlight(t *testing.T) {
	url := testbroker.URL(t)
	features := tests.Features{Persistent: true}
	tests.TestPubSub(t, features, func(t *testing.T) (message.Publisher, message.Subscriber) {
		cfg := wamqp.NewDurableQueueConfig(url)
		cfg.Publish.ChannelPoolSize = 25
		return pubSub(t, cfg, cfg, topology.WithConcurrency(8))
	}, nil)
}

func pubSub(t *testing.T, publish, consume wamqp.Config, options ...topology.SubscriberOption) (message.Publisher, message.Subscriber) {
	t.Helper()
	pub, err := wamqp.NewPublisher(publish, watermill.NopLogger{})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), rig.Patience)
	defer cancel()
	client, err := topology.Open(ctx, consume.Connection, topology.PerQueue{Type: topology.Classic})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	sub, err := client.NewSubscriber(consume,
		append(options, topology.ForPolicy(backoff.List{time.Second}), topology.WithDrainTimeout(time.Second))...)
	require.NoError(t, err)
	return pub, sub
}
