package topology

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
)

// This file alone knows watermill-amqp.

// Open connects to RabbitMQ as conn says (watermill-amqp's Connection of its
// Config: URL, TLS, amqp091-go's configuration, reconnecting) and returns a
// Client that lets failed messages wait as strategy says. It fails where the
// broker cannot be reached within ctx or 10 s; afterwards the connection is kept
// alive until Close.
//
// Errors name every problem at once and never quote the URL's password. conn is
// not written to.
func Open(ctx context.Context, conn amqp.ConnectionConfig, strategy Strategy, options ...Option) (*Client, error) {
	if err := checkTLS(conn); err != nil {
		return nil, fmt.Errorf("open millpond client: %w", err)
	}
	return open(ctx, linkConfig(conn), strategy, options)
}

// NewSubscriber returns a Watermill Subscriber that consumes as cfg says, and
// whose messages this client can republish. Use it instead of watermill-amqp's:
// that one cannot decode a message that returns from a wait queue.
//
// Of cfg it uses Connection (where its URL is empty, the client's), Marshaler,
// Exchange, Queue, QueueBind, Consume and TopologyBuilder, which declares the
// user's queue just as before. Each Subscribe has one consumer on a channel of its
// own, so Qos.Global makes no difference. Refused are configurations that would break the
// promise that no message is lost: NoRequeueOnNack, a queue that is not durable,
// is auto-delete or exclusive, x-overflow reject-publish on it, and a prefetch of
// 0. The error names every problem. cfg is not written to.
func (c *Client) NewSubscriber(cfg amqp.Config, options ...SubscriberOption) (*Subscriber, error) {
	problems := []error{checkTLS(cfg.Connection), checkConfig(cfg)}
	lc := c.linkCfg
	if own := linkConfig(cfg.Connection); own.URL != "" {
		if own.URL != lc.URL {
			lc.URL, lc.More = own.URL, nil
		}
		lc.AMQP, lc.TLS, lc.Reconnect = own.AMQP, own.TLS, own.Reconnect
	}
	sc := consumeConfig{
		link:      lc,
		queueName: cfg.Queue.GenerateName,
		prefetch:  cfg.Consume.Qos.PrefetchCount,
		consumer:  cfg.Consume.Consumer,
		exclusive: cfg.Consume.Exclusive,
		noLocal:   cfg.Consume.NoLocal,
		arguments: cfg.Consume.Arguments,
		queueArgs: cfg.Queue.Arguments,
	}
	if cfg.Marshaler != nil {
		sc.unmarshal = cfg.Marshaler.Unmarshal
	}
	sc.build = func(ch *amqp091.Channel, topic, queue string) error {
		return cfg.TopologyBuilder.BuildTopology(ch, queue, cfg.Exchange.GenerateName(topic), cfg, c.opts.logger)
	}
	return c.newSubscriber(sc, errors.Join(problems...), options)
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

func checkTLS(conn amqp.ConnectionConfig) error {
	if conn.TLSConfig != nil && conn.AmqpConfig != nil && conn.AmqpConfig.TLSClientConfig != nil {
		return errors.New("Connection.TLSConfig and Connection.AmqpConfig.TLSClientConfig are both set: set one")
	}
	return nil
}

// checkConfig refuses what is missing and what would lose messages.
func checkConfig(cfg amqp.Config) error {
	var problems []error
	refuse := func(bad bool, text string) {
		if bad {
			problems = append(problems, errors.New(text))
		}
	}
	refuse(cfg.Marshaler == nil, "Marshaler is nil: use amqp.DefaultMarshaler{}")
	refuse(cfg.Exchange.GenerateName == nil, "Exchange.GenerateName is nil: use one of watermill-amqp's constructors")
	refuse(cfg.Queue.GenerateName == nil, "Queue.GenerateName is nil: use amqp.GenerateQueueNameTopicName or another")
	refuse(cfg.TopologyBuilder == nil, "TopologyBuilder is nil: use &amqp.DefaultTopologyBuilder{}")
	refuse(cfg.Consume.NoRequeueOnNack, "Consume.NoRequeueOnNack drops what is nacked: leave it false")
	refuse(!cfg.Queue.Durable, "Queue.Durable is false: a restart of the broker would drop the queue")
	refuse(cfg.Queue.AutoDelete, "Queue.AutoDelete drops the queue with its last consumer: leave it false")
	refuse(cfg.Queue.Exclusive, "Queue.Exclusive drops the queue with its connection: leave it false")
	refuse(cfg.Consume.Qos.PrefetchCount <= 0, "Consume.Qos.PrefetchCount is 0, which is no limit: set at least 1")
	refuse(cfg.Consume.Qos.PrefetchSize != 0, "Consume.Qos.PrefetchSize is not implemented by RabbitMQ: leave it 0")
	if overflow, _ := cfg.Queue.Arguments["x-overflow"].(string); overflow == "reject-publish" || overflow == "reject-publish-dlx" {
		problems = append(problems, fmt.Errorf("Queue.Arguments x-overflow %q refuses messages that return from waiting: remove it", overflow))
	}
	return errors.Join(problems...)
}
