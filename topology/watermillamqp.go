package topology

import (
	"context"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/adapter"
)

// This file alone knows watermill-amqp v2, and topology/amqpv3 v3.

// Open connects to RabbitMQ as conn says (watermill-amqp's Connection of its
// Config: URL, TLS, amqp091-go's configuration, reconnecting) and returns a
// Client that lets failed messages wait as strategy says. It fails where the
// broker cannot be reached within ctx or 10 s; afterwards the connection is kept
// alive until Close.
//
// Errors name every problem at once and never quote the URL's password. conn is
// not written to.
func Open(ctx context.Context, conn amqp.ConnectionConfig, strategy Strategy, options ...Option) (*Client, error) {
	return OpenAdapted(ctx, connectionOf(conn), strategy, options...)
}

// NewSubscriber returns a Watermill Subscriber that consumes as cfg says, and
// whose messages this client can republish. Use it instead of watermill-amqp's:
// that one cannot decode a message that returns from a wait queue.
//
// Of cfg it uses Connection (where its URL is empty, the client's), Marshaler,
// Exchange, Queue, QueueBind, Consume and TopologyBuilder, which declares the
// user's queue just as before. Each Subscribe has one consumer on a channel of its
// own, so Qos.Global makes no difference. Refused are configurations that would
// break the promise that no message is lost: NoRequeueOnNack; a queue that is not
// durable, is auto-delete or exclusive, or a stream; its arguments x-overflow
// reject-publish and x-expires, and x-message-ttl and x-max-length without a
// dead-letter exchange; another vhost or cluster than the client's; a FrameSize under
// 16384; and a prefetch of 0 or above 65535, which AMQP would take modulo 65536. One
// that is smaller than WithConcurrency is raised to that. The error names every
// problem. cfg is not written to.
func (c *Client) NewSubscriber(cfg amqp.Config, options ...SubscriberOption) (*Subscriber, error) {
	return c.NewAdaptedSubscriber(configOf(cfg), options...)
}

// NewPublisher returns a Watermill Publisher that publishes as cfg says, confirmed
// and mandatory whatever cfg says of that, and honours the delays of Watermill's
// components/delay; see Publisher.
//
// Of cfg it uses Connection (where its URL is empty, the client's), Marshaler,
// Exchange, Publish.GenerateRoutingKey, Queue.GenerateName and TopologyBuilder, which
// declares the user's exchange. The error names every problem. cfg is not written to.
func (c *Client) NewPublisher(cfg amqp.Config, options ...PublisherOption) (*Publisher, error) {
	return c.NewAdaptedPublisher(configOf(cfg), options...)
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
		c.Build = func(ch *amqp091.Channel, _, queue, exchange string, logger watermill.LoggerAdapter) error {
			return cfg.TopologyBuilder.BuildTopology(ch, queue, exchange, cfg, logger)
		}
		c.DeclareExchange = func(ch *amqp091.Channel, exchange string) error {
			return cfg.TopologyBuilder.ExchangeDeclare(ch, exchange, cfg)
		}
	}
	return c
}
