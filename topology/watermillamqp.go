package topology

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/middleware"
)

// This file alone knows watermill-amqp v2. Module topology/amqpv3 turns a configuration of v3
// into one of v2.

// Open connects to RabbitMQ and returns a Client whose failed messages wait as strategy says.
// It declares nothing yet. conn is the Connection of watermill-amqp's Config: URL, TLS,
// amqp091-go's configuration and the pauses between reconnects. conn is not written to.
//
// Open fails if it cannot reach the broker within ctx or 10 s. It does not retry. Afterwards the
// connection is kept alive until Close. The error names every problem and never quotes the
// password of the URL.
func Open(
	ctx context.Context, conn amqp.ConnectionConfig, strategy Strategy, options ...Option,
) (*Client, error) {
	if err := checkConnection(conn); err != nil {
		return nil, fmt.Errorf("open millpond client: %w", err)
	}
	return open(ctx, linkConfig(conn), strategy, options)
}

// NewSubscriber returns a Watermill Subscriber that consumes as cfg says. This client can
// republish its messages. Use it in place of watermill-amqp's Subscriber, which cannot decode a
// message that comes back from a wait queue.
//
// It uses these fields of cfg: Connection (if its URL is empty, the client's), Marshaler,
// Exchange, Queue, QueueBind, Consume and TopologyBuilder, which declares the queue as before.
// Each Subscribe has one consumer on its own channel, so Qos.Global makes no difference.
// WithPrefetch says how PrefetchCount counts. cfg is not written to.
//
// NewSubscriber refuses a configuration that could lose messages, and names every problem:
//   - NoRequeueOnNack;
//   - a queue that is not durable, is auto-delete or exclusive, or is a stream;
//   - the queue arguments x-overflow reject-publish and x-expires;
//   - x-message-ttl and x-max-length without a dead-letter exchange;
//   - another vhost or cluster than the client's;
//   - a FrameSize under 16384;
//   - a PrefetchCount of 0, or above 65535, because AMQP would take it modulo 65536.
//
// It declares the wait queues of the delays that the policies of retry may ask for: a policy whose
// Selector names a Queue or Topic adds wait queues there alone. The hooks of retry are told of the
// dead letters that the Subscriber makes by itself; see middleware.WithDeadLetterHook. A
// budget.Budget with Brake stops the Subscribers of its DelayedRetry, and no others. Use [For] if
// handlers of the Subscriber have further DelayedRetries.
func (c *Client) NewSubscriber(
	cfg amqp.Config, retry *middleware.DelayedRetry, options ...SubscriberOption,
) (*Subscriber, error) {
	return c.NewSubscriberWithoutRetry(cfg, slices.Concat([]SubscriberOption{For(retry)}, options)...)
}

// NewSubscriberWithoutRetry is NewSubscriber for programs without the middleware: one that decides
// by itself, or that is about to adopt it; see ForPolicy and WithOldInstances. A failed message is
// nacked, and so snoozed. Without ForPolicy it declares the strategy's default wait steps.
func (c *Client) NewSubscriberWithoutRetry(
	cfg amqp.Config, options ...SubscriberOption,
) (*Subscriber, error) {
	consume := consumeConfig{
		link:      c.ownLink(cfg.Connection),
		queueName: cfg.Queue.GenerateName,
		prefetch:  cfg.Consume.Qos.PrefetchCount,
		consumer:  cfg.Consume.Consumer,
		exclusive: cfg.Consume.Exclusive,
		noLocal:   cfg.Consume.NoLocal,
		arguments: cfg.Consume.Arguments,
		queueArgs: cfg.Queue.Arguments,
		build: func(ch *amqp091.Channel, topic, queue string) error {
			exchange := cfg.Exchange.GenerateName(topic)
			if b, ok := cfg.TopologyBuilder.(topicBuilder); ok {
				return b.BuildTopicTopology(ch, topic, queue, exchange, c.opts.logger)
			}
			return cfg.TopologyBuilder.BuildTopology(ch, queue, exchange, cfg, c.opts.logger)
		},
	}
	if cfg.Marshaler != nil {
		consume.unmarshal = cfg.Marshaler.Unmarshal
	}
	return c.newSubscriber(consume, checkConsumer(cfg), options)
}

// topicBuilder is a TopologyBuilder that is told the topic, too. The builders of watermill-amqp
// v3 need the topic, and topology/amqpv3 wraps them in one.
type topicBuilder interface {
	BuildTopicTopology(
		ch *amqp091.Channel, topic, queue, exchange string, logger watermill.LoggerAdapter,
	) error
}

// NewPublisher returns a Watermill Publisher that publishes as cfg says and honours the delays
// of Watermill's components/delay; see Publisher. Every publish is mandatory and confirmed,
// even if cfg does not ask for it.
//
// It uses these fields of cfg: Connection (if its URL is empty, the client's), Marshaler,
// Exchange, Publish.GenerateRoutingKey, Queue.GenerateName and TopologyBuilder, which declares
// the exchange. The error names every problem. cfg is not written to.
func (c *Client) NewPublisher(cfg amqp.Config, options ...PublisherOption) (*Publisher, error) {
	publish := publishConfig{
		link:       c.ownLink(cfg.Connection),
		exchange:   cfg.Exchange.GenerateName,
		routingKey: cfg.Publish.GenerateRoutingKey,
		queue:      cfg.Queue.GenerateName,
		declare: func(ch *amqp091.Channel, exchange string) error {
			return cfg.TopologyBuilder.ExchangeDeclare(ch, exchange, cfg)
		},
	}
	if cfg.Marshaler != nil {
		publish.marshal = cfg.Marshaler.Marshal
	}
	return c.newPublisher(publish, checkPublisher(cfg), options)
}

// ownLink returns the client's connection settings, with the settings of conn if it has a URL.
func (c *Client) ownLink(conn amqp.ConnectionConfig) link.Config {
	lc, own := c.linkCfg, linkConfig(conn)
	if own.URL != "" {
		if own.URL != lc.URL {
			lc.URL, lc.More = own.URL, nil
		}
		lc.AMQP, lc.TLS, lc.Reconnect = own.AMQP, own.TLS, own.Reconnect
	}
	return lc
}

func linkConfig(conn amqp.ConnectionConfig) link.Config {
	r := conn.Reconnect
	if r == nil {
		r = amqp.DefaultReconnectConfig()
	}
	return link.Config{
		URL: conn.AmqpURI, AMQP: conn.AmqpConfig, TLS: conn.TLSConfig,
		Reconnect: link.Backoff{
			Initial: r.BackoffInitialInterval, Max: r.BackoffMaxInterval,
			Multiplier: r.BackoffMultiplier, Randomization: r.BackoffRandomizationFactor,
		},
	}
}

const (
	// leastFrame is the smallest frame, in bytes, that a connection may negotiate. All headers
	// of a message share one frame (F16). 4 KiB of it are left to the headers that the broker
	// adds. Our headers and the message's own properties take up to 7 KiB.
	leastFrame = 16 << 10
	// maxPrefetch is the largest prefetch that AMQP can ask for: it has 16 bits.
	maxPrefetch = 65535

	missingMarshaler = "Marshaler is nil: use amqp.DefaultMarshaler{}"
	missingExchange  = "Exchange.GenerateName is nil: use one of watermill-amqp's constructors"
	missingBuilder   = "TopologyBuilder is nil: use &amqp.DefaultTopologyBuilder{}"
)

// checkConnection refuses an ambiguous TLS configuration, and frames too small for a retry.
func checkConnection(conn amqp.ConnectionConfig) error {
	if conn.AmqpConfig == nil {
		return nil
	}
	var p problems
	p.refuse(conn.TLSConfig != nil && conn.AmqpConfig.TLSClientConfig != nil,
		"Connection.TLSConfig and Connection.AmqpConfig.TLSClientConfig are both set: set one")
	if size := conn.AmqpConfig.FrameSize; size > 0 && size < leastFrame {
		p = append(p, fmt.Errorf("Connection.AmqpConfig.FrameSize is %d bytes, "+
			"in which a message has no room for the headers that a retry adds, "+
			"so that every failure would be dead-lettered: set at least %d, or 0",
			size, leastFrame))
	}
	return errors.Join(p...)
}

// checkConsumer refuses missing fields, and settings that would lose messages.
func checkConsumer(cfg amqp.Config) error {
	p := problems{checkConnection(cfg.Connection)}
	p.refuse(cfg.Marshaler == nil, missingMarshaler)
	p.refuse(cfg.Exchange.GenerateName == nil, missingExchange)
	p.refuse(cfg.Queue.GenerateName == nil,
		"Queue.GenerateName is nil: use amqp.GenerateQueueNameTopicName or another")
	p.refuse(cfg.TopologyBuilder == nil, missingBuilder)
	p.refuse(cfg.Consume.NoRequeueOnNack,
		"Consume.NoRequeueOnNack drops every message that is nacked: leave it false")
	p.refuse(!cfg.Queue.Durable,
		"Queue.Durable is false: a restart of the broker would drop the queue")
	p.refuse(cfg.Queue.AutoDelete,
		"Queue.AutoDelete drops the queue with its last consumer: leave it false")
	p.refuse(cfg.Queue.Exclusive,
		"Queue.Exclusive drops the queue with its connection: leave it false")
	p.refuse(cfg.Consume.Qos.PrefetchCount <= 0,
		"Consume.Qos.PrefetchCount is 0, which is no limit: set at least 1")
	p.refuse(cfg.Consume.Qos.PrefetchCount > maxPrefetch,
		"Consume.Qos.PrefetchCount is above 65535, which AMQP cannot ask for: set less")
	p.refuse(cfg.Consume.Qos.PrefetchSize != 0,
		"Consume.Qos.PrefetchSize is not implemented by RabbitMQ: leave it 0")
	return errors.Join(p...)
}

// checkPublisher refuses missing fields, and settings that would make confirms impossible.
func checkPublisher(cfg amqp.Config) error {
	p := problems{checkConnection(cfg.Connection)}
	p.refuse(cfg.Marshaler == nil, missingMarshaler)
	p.refuse(cfg.Exchange.GenerateName == nil, missingExchange)
	p.refuse(cfg.Publish.GenerateRoutingKey == nil,
		"Publish.GenerateRoutingKey is nil: use one of watermill-amqp's constructors")
	p.refuse(cfg.TopologyBuilder == nil, missingBuilder)
	p.refuse(cfg.Publish.Immediate, "Publish.Immediate is refused by RabbitMQ: leave it false")
	p.refuse(cfg.Publish.Transactional,
		"Publish.Transactional would make confirms impossible: leave it false")
	return errors.Join(p...)
}

type problems []error

func (p *problems) refuse(bad bool, text string) {
	if bad {
		*p = append(*p, errors.New(text))
	}
}
