package amqpv3_test

import (
	"context"
	"crypto/tls"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/amqpv3"
)

// Given a message from watermill-amqp v3's own publisher and a handler that always fails, then each
// attempt has the message as it arrived. Then the message is in the dead-letter queue.
func TestAMessageOfWatermillsPublisherIsRetried(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	cfg := wamqp.NewDurableQueueConfig(url)
	client := open(t, cfg, topology.PerQueue{})
	policy := backoff.List{time.Second}
	attempts := run(t, client, cfg, queue, policy, func(msg *message.Message) error {
		msg.Metadata["customer"] = "changed"
		return rig.ErrFailed
	})
	pub, err := wamqp.NewPublisher(cfg, watermill.NopLogger{})
	require.NoError(t, err)
	defer pub.Close()
	sent := message.NewMessage(watermill.NewUUID(), message.Payload("order 1"))
	sent.Metadata["customer"] = "7"
	require.NoError(t, pub.Publish(queue, sent))
	for attempt := 1; attempt <= 2; attempt++ {
		a := rig.Await(t, attempts)
		require.Equal(t, attempt, a.Attempt)
		require.Equal(t, sent.UUID, a.Msg.UUID)
		require.Equal(t, "order 1", string(a.Msg.Payload))
		require.Equal(t, "7", a.Msg.Metadata["customer"])
	}
	require.Equal(t, "exhausted", rig.Take(t, url, queue+".dlq").Headers[header.DeadReason])
}

// In v3, the binding's routing key is made from the topic, and a TopologyBuilder is told both.
func TestTopologyBuilderIsToldTheTopic(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	exchange := queue + ".exchange"
	t.Cleanup(func() { _ = testbroker.Channel(t, url).ExchangeDelete(exchange, false, false) })
	cfg := wamqp.NewDurableTopicConfig(url, exchange, queue)
	cfg.Exchange.Durable = true
	built := &builder{told: make(chan wamqp.BuildTopologyParams, 10)}
	cfg.TopologyBuilder = built
	client := open(t, cfg, topology.PerQueue{Type: topology.Classic})
	policy := backoff.List{100 * time.Millisecond}
	attempts := run(t, client, cfg, "order.*", policy, func(msg *message.Message) error {
		key := middleware.StateOf(msg.Context()).OriginRoutingKey
		require.Equal(t, "order.created", key)
		if middleware.Attempt(msg.Context()) == 1 {
			return rig.ErrFailed
		}
		return nil
	})
	require.Equal(t, wamqp.BuildTopologyParams{
		Topic: "order.*", QueueName: queue, ExchangeName: exchange, RoutingKey: "order.*",
	}, <-built.told)

	pub, err := amqpv3.NewPublisher(client, cfg)
	require.NoError(t, err)
	require.NoError(t, pub.Publish("order.created", message.NewMessage(watermill.NewUUID(), nil)))
	err = pub.Publish("parcel.sent", message.NewMessage(watermill.NewUUID(), nil))
	require.Error(t, err, "no queue takes it")
	require.Equal(t, 1, rig.Await(t, attempts).Attempt)
	require.Equal(t, 2, rig.Await(t, attempts).Attempt)
}

type builder struct {
	wamqp.DefaultTopologyBuilder
	told chan wamqp.BuildTopologyParams
}

func (b *builder) BuildTopology(
	ch *amqp.Channel, params wamqp.BuildTopologyParams, cfg wamqp.Config,
	logger watermill.LoggerAdapter,
) error {
	b.told <- params
	return b.DefaultTopologyBuilder.BuildTopology(ch, params, cfg, logger)
}

func TestPublisherHonoursDelays(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	cfg := wamqp.NewDurableQueueConfig(url)
	client := open(t, cfg, topology.PerQueue{Type: topology.Classic})
	attempts := run(t, client, cfg, queue, backoff.List{time.Second},
		func(*message.Message) error { return nil })
	pub, err := amqpv3.NewPublisher(client, cfg, topology.WithDelays(time.Second))
	require.NoError(t, err)
	msg := message.NewMessage(watermill.NewUUID(), nil)
	delay.Message(msg, delay.For(time.Second))
	began := time.Now()
	require.NoError(t, pub.Publish(queue, msg))
	first := rig.Await(t, attempts)
	require.Equal(t, 1, first.Attempt)
	require.GreaterOrEqual(t, first.At.Sub(began), time.Second-rig.Grace)
}

// A configuration of v3 is refused as one of v2 would be, with every problem named.
func TestConfigurationsThatWouldLoseMessagesAreRefused(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	client := open(t, wamqp.NewDurableQueueConfig(url), topology.PerQueue{})

	cfg := wamqp.NewNonDurableQueueConfig(url)
	cfg.Queue.AutoDelete, cfg.Queue.Exclusive, cfg.Consume.NoRequeueOnNack = true, true, true
	cfg.Consume.Qos = wamqp.QosConfig{PrefetchSize: 1}
	cfg.Queue.Arguments = amqp.Table{"x-overflow": "reject-publish"}
	cfg.Marshaler, cfg.TopologyBuilder = nil, nil
	cfg.Exchange.GenerateName, cfg.Queue.GenerateName = nil, nil
	_, err := amqpv3.NewSubscriberWithoutRetry(client, cfg)
	rig.RequireTexts(t, err,
		"Queue.Durable", "Queue.AutoDelete", "Queue.Exclusive", "Consume.NoRequeueOnNack",
		"PrefetchCount is 0", "PrefetchSize", "x-overflow", "Marshaler is nil",
		"TopologyBuilder is nil", "Exchange.GenerateName is nil", "Queue.GenerateName is nil")

	cfg.Publish = wamqp.PublishConfig{Immediate: true, Transactional: true}
	_, err = amqpv3.NewPublisher(client, cfg)
	rig.RequireTexts(t, err, "Publish.Immediate", "Publish.Transactional",
		"Publish.GenerateRoutingKey is nil", "Marshaler is nil", "TopologyBuilder is nil")
}

func TestTwoTLSConfigurationsAreRefused(t *testing.T) {
	t.Parallel()
	cfg := wamqp.NewDurableQueueConfig("amqps://user:s3cr3t@127.0.0.1:1/")
	cfg.Connection.TLSConfig = &tls.Config{ServerName: "a"}
	cfg.Connection.AmqpConfig = &amqp.Config{TLSClientConfig: &tls.Config{ServerName: "b"}}
	_, err := amqpv3.OpenClient(context.Background(), cfg.Connection, topology.PerQueue{})
	require.ErrorContains(t, err, "are both set: set one")
	require.NotContains(t, err.Error(), "s3cr3t")
}
