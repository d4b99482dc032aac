// Package amqpv3 opens millpond with the configuration of watermill-amqp v3. Its functions take a
// Config of v3, and return what their namesakes of packages millpond and topology return:
//
//	cfg := amqpv3.QuorumQueue(amqp.NewDurableQueueConfig(url)) // of watermill-amqp/v3
//	retries, err := amqpv3.Open(ctx, cfg, policy)
//
// Each function turns its configuration into one of v2, and topology checks that one. So the
// same configurations are refused, with the same words.
//
// The package is its own module. Use the version that millpond has.
package amqpv3

import (
	"context"

	"github.com/ThreeDotsLabs/watermill"
	v2 "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond"
	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// Open is millpond.Open for a configuration of v3.
func Open(
	ctx context.Context, cfg amqp.Config, policy backoff.Policy, options ...millpond.Option,
) (*millpond.Retries, error) {
	return millpond.Open(ctx, configV2(cfg), policy, options...)
}

// QuorumQueue is millpond.QuorumQueue for a configuration of v3.
func QuorumQueue(cfg amqp.Config) amqp.Config {
	cfg.Queue.Arguments = millpond.QuorumQueue(configV2(cfg)).Queue.Arguments
	return cfg
}

// OpenClient connects to RabbitMQ as topology.Open does.
func OpenClient(
	ctx context.Context, conn amqp.ConnectionConfig,
	strategy topology.Strategy, options ...topology.Option,
) (*topology.Client, error) {
	return topology.Open(ctx, connectionV2(conn), strategy, options...)
}

// NewSubscriber returns a Subscriber as topology.Client.NewSubscriber does. The differences to
// v2 are watermill-amqp's own: the TopologyBuilder is told the topic, and the routing key of
// the binding is made from the topic instead of the queue's name.
func NewSubscriber(
	client *topology.Client, cfg amqp.Config, retry *middleware.DelayedRetry,
	options ...topology.SubscriberOption,
) (*topology.Subscriber, error) {
	return client.NewSubscriber(configV2(cfg), retry, options...)
}

// NewSubscriberWithoutRetry returns a Subscriber as topology.Client.NewSubscriberWithoutRetry does.
func NewSubscriberWithoutRetry(
	client *topology.Client, cfg amqp.Config, options ...topology.SubscriberOption,
) (*topology.Subscriber, error) {
	return client.NewSubscriberWithoutRetry(configV2(cfg), options...)
}

// NewPublisher returns a Publisher as topology.Client.NewPublisher does.
func NewPublisher(
	client *topology.Client, cfg amqp.Config, options ...topology.PublisherOption,
) (*topology.Publisher, error) {
	return client.NewPublisher(configV2(cfg), options...)
}

// Where both versions have the same fields, the conversions below convert whole structs. They
// stop compiling when one version gets a field that the other lacks.

func connectionV2(conn amqp.ConnectionConfig) v2.ConnectionConfig {
	return v2.ConnectionConfig{
		AmqpURI: conn.AmqpURI, AmqpConfig: conn.AmqpConfig, TLSConfig: conn.TLSConfig,
		Reconnect: (*v2.ReconnectConfig)(conn.Reconnect),
	}
}

func configV2(cfg amqp.Config) v2.Config {
	converted := v2.Config{
		Connection: connectionV2(cfg.Connection),
		Marshaler:  cfg.Marshaler,
		Exchange: v2.ExchangeConfig{
			GenerateName: cfg.Exchange.GenerateName, Type: cfg.Exchange.Type,
			Durable: cfg.Exchange.Durable, AutoDeleted: cfg.Exchange.AutoDeleted,
			Internal: cfg.Exchange.Internal, NoWait: cfg.Exchange.NoWait,
			Arguments: cfg.Exchange.Arguments,
		},
		Queue: v2.QueueConfig{
			GenerateName: v2.QueueNameGenerator(cfg.Queue.GenerateName),
			Durable:      cfg.Queue.Durable, AutoDelete: cfg.Queue.AutoDelete,
			Exclusive: cfg.Queue.Exclusive, NoWait: cfg.Queue.NoWait,
			Arguments: cfg.Queue.Arguments,
		},
		QueueBind: v2.QueueBindConfig(cfg.QueueBind),
		Publish:   v2.PublishConfig(cfg.Publish),
		Consume: v2.ConsumeConfig{
			NoRequeueOnNack: cfg.Consume.NoRequeueOnNack, Consumer: cfg.Consume.Consumer,
			Exclusive: cfg.Consume.Exclusive, NoLocal: cfg.Consume.NoLocal,
			NoWait: cfg.Consume.NoWait, Qos: v2.QosConfig(cfg.Consume.Qos),
			Arguments: cfg.Consume.Arguments,
		},
	}
	if cfg.TopologyBuilder != nil {
		converted.TopologyBuilder = builder{cfg}
	}
	return converted
}

// builder lets a TopologyBuilder of v3 declare, with the configuration of v3.
type builder struct{ cfg amqp.Config }

// BuildTopicTopology declares the queue of topic, its exchange and its binding. Package
// topology calls it instead of BuildTopology, which is not told the topic.
func (b builder) BuildTopicTopology(
	ch *amqp091.Channel, topic, queue, exchange string, logger watermill.LoggerAdapter,
) error {
	params := amqp.BuildTopologyParams{Topic: topic, QueueName: queue, ExchangeName: exchange}
	if key := b.cfg.QueueBind.GenerateRoutingKey; key != nil { // nil if nothing is bound
		params.RoutingKey = key(topic)
	}
	return b.cfg.TopologyBuilder.BuildTopology(ch, params, b.cfg, logger)
}

// BuildTopology makes builder a TopologyBuilder of v2, where the queue's name is all there is.
func (b builder) BuildTopology(
	ch *amqp091.Channel, queue, exchange string, _ v2.Config, logger watermill.LoggerAdapter,
) error {
	return b.BuildTopicTopology(ch, queue, queue, exchange, logger)
}

func (b builder) ExchangeDeclare(ch *amqp091.Channel, exchange string, _ v2.Config) error {
	return b.cfg.TopologyBuilder.ExchangeDeclare(ch, exchange, b.cfg)
}
