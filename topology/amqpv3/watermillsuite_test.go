package amqpv3_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/amqpv3"
)

// Watermill's own suite for Pub/Subs passes with our Subscriber and watermill-amqp v3's publisher.

func TestPubSubSuite(t *testing.T) {
	url := testbroker.URL(t)
	group := func(t *testing.T, name string) (message.Publisher, message.Subscriber) {
		queueName := wamqp.GenerateQueueNameTopicNameWithSuffix(name)
		return pubSub(t, wamqp.NewDurablePubSubConfig(url, nil),
			wamqp.NewDurablePubSubConfig(url, queueName))
	}
	tests.TestPubSub(t, features(true), func(t *testing.T) (message.Publisher, message.Subscriber) {
		return group(t, "test")
	}, group)
}

func TestQueueSuite(t *testing.T) {
	url := testbroker.URL(t)
	tests.TestPubSub(t, features(false), func(t *testing.T) (message.Publisher, message.Subscriber) {
		cfg := wamqp.NewDurableQueueConfig(url)
		cfg.Publish.ChannelPoolSize = 25
		return pubSub(t, cfg, cfg)
	}, nil)
}

func features(consumerGroups bool) tests.Features {
	return tests.Features{
		ConsumerGroups: consumerGroups, Persistent: true,
		GuaranteedOrder: true, GuaranteedOrderWithSingleSubscriber: true,
	}
}

func pubSub(t *testing.T, publish, consume wamqp.Config) (message.Publisher, message.Subscriber) {
	t.Helper()
	pub, err := wamqp.NewPublisher(publish, watermill.NopLogger{})
	require.NoError(t, err)
	client := open(t, consume, topology.PerQueue{Type: topology.Classic})
	sub, err := amqpv3.NewSubscriber(client, consume,
		topology.ForPolicy(backoff.List{time.Second}), topology.WithDrainTimeout(time.Second))
	require.NoError(t, err)
	return pub, sub
}
