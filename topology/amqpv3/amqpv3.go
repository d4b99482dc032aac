// Package amqpv3 is topology for watermill-amqp v3: its Config in the place of
// v2's. All else is in package topology, whose Client, Subscriber and Publisher
// these functions return.
//
//	cfg := amqp.NewDurableQueueConfig(url)                 // of watermill-amqp/v3
//	client, err := amqpv3.Open(ctx, cfg.Connection, topology.PerQueue{})
//	sub, err := amqpv3.NewSubscriber(client, cfg, topology.ForPolicy(policy))
//	retry, err := middleware.NewDelayedRetry(client, policy)
//
// It is a module of its own, and goes with the millpond of the same version.
package amqpv3

import (
	"context"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/adapter"
	"github.com/millpond-go/millpond/topology"
)

// Open is topology.Open.
func Open(ctx context.Context, conn amqp.ConnectionConfig, strategy topology.Strategy, options ...topology.Option) (*topology.Client, error) {
	return topology.OpenAdapted(ctx, connectionOf(conn), strategy, options...)
}

// NewSubscriber is the NewSubscriber of client. What differs from v2 is
// watermill-amqp's: the TopologyBuilder is told the topic, and the binding's
// routing key is made of the topic, not of the queue's name.
func NewSubscriber(client *topology.Client, cfg amqp.Config, options ...topology.SubscriberOption) (*topology.Subscriber, error) {
	return client.NewAdaptedSubscriber(configOf(cfg), options...)
}

// NewPublisher is the NewPublisher of client.
func NewPublisher(client *topology.Client, cfg amqp.Config, options ...topology.PublisherOption) (*topology.Publisher, error) {
	return client.NewAdaptedPublisher(configOf(cfg), options...)
}

func connectionOf(conn amqp.ConnectionConfig) adapter.Connection {
	r := conn.Reconnect
	if r == nil {
		r = amqp.DefaultReconnectConfig()
	}
	return adapter.Connection{
		URL: conn.AmqpURI, AMQP: conn.AmqpConfig, TLS: conn.TLSConfig,
		Reconnect: adapter.Backoff(r.BackoffInitialInterval, r.BackoffMaxInterval, r.BackoffMultiplier, r.BackoffRandomizationFactor),
	}
}

func configOf(cfg amqp.Config) adapter.Config {
	c := adapter.Config{
		Connection:   connectionOf(cfg.Connection),
		ExchangeName: cfg.Exchange.GenerateName,
		QueueName:    cfg.Queue.GenerateName,
		RoutingKey:   cfg.Publish.GenerateRoutingKey,
		Queue: adapter.Queue{
			Durable: cfg.Queue.Durable, AutoDelete: cfg.Queue.AutoDelete, Exclusive: cfg.Queue.Exclusive, Arguments: cfg.Queue.Arguments,
		},
		Consume: adapter.Consume{
			NoRequeueOnNack: cfg.Consume.NoRequeueOnNack, Exclusive: cfg.Consume.Exclusive, NoLocal: cfg.Consume.NoLocal,
			Prefetch: cfg.Consume.Qos.PrefetchCount, PrefetchSize: cfg.Consume.Qos.PrefetchSize,
			Consumer: cfg.Consume.Consumer, Arguments: cfg.Consume.Arguments,
		},
		Immediate: cfg.Publish.Immediate, Transactional: cfg.Publish.Transactional,
	}
	if cfg.Marshaler != nil {
		c.Marshal, c.Unmarshal = cfg.Marshaler.Marshal, cfg.Marshaler.Unmarshal
	}
	if cfg.TopologyBuilder != nil {
		c.Build = func(ch *amqp091.Channel, topic, queue, exchange string, logger watermill.LoggerAdapter) error {
			params := amqp.BuildTopologyParams{Topic: topic, QueueName: queue, ExchangeName: exchange}
			if key := cfg.QueueBind.GenerateRoutingKey; key != nil { // without an exchange there is no binding
				params.RoutingKey = key(topic)
			}
			return cfg.TopologyBuilder.BuildTopology(ch, params, cfg, logger)
		}
		c.DeclareExchange = func(ch *amqp091.Channel, exchange string) error {
			return cfg.TopologyBuilder.ExchangeDeclare(ch, exchange, cfg)
		}
	}
	return c
}
