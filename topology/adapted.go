package topology

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/adapter"
	"github.com/millpond-go/millpond/internal/link"
)

// OpenAdapted is Open for the modules of this repository that adapt another
// version of watermill-amqp: use theirs, topology/amqpv3 for example.
func OpenAdapted(ctx context.Context, conn adapter.Connection, strategy Strategy, options ...Option) (*Client, error) {
	if err := conn.Check(); err != nil {
		return nil, fmt.Errorf("open millpond client: %w", err)
	}
	return open(ctx, conn.Link(), strategy, options)
}

// NewAdaptedSubscriber is NewSubscriber as OpenAdapted is Open.
func (c *Client) NewAdaptedSubscriber(cfg adapter.Config, options ...SubscriberOption) (*Subscriber, error) {
	return c.newSubscriber(consumeConfig{
		link:      c.ownLink(cfg.Connection),
		queueName: cfg.QueueName,
		prefetch:  cfg.Consume.Prefetch,
		consumer:  cfg.Consume.Consumer,
		exclusive: cfg.Consume.Exclusive,
		noLocal:   cfg.Consume.NoLocal,
		arguments: cfg.Consume.Arguments,
		queueArgs: cfg.Queue.Arguments,
		unmarshal: cfg.Unmarshal,
		build: func(ch *amqp.Channel, topic, queue string) error {
			return cfg.Build(ch, topic, queue, cfg.ExchangeName(topic), c.opts.logger)
		},
	}, cfg.CheckConsumer(), options)
}

// NewAdaptedPublisher is NewPublisher as OpenAdapted is Open.
func (c *Client) NewAdaptedPublisher(cfg adapter.Config, options ...PublisherOption) (*Publisher, error) {
	return c.newPublisher(publishConfig{
		link:       c.ownLink(cfg.Connection),
		exchange:   cfg.ExchangeName,
		routingKey: cfg.RoutingKey,
		queue:      cfg.QueueName,
		marshal:    cfg.Marshal,
		declare:    cfg.DeclareExchange,
	}, cfg.CheckPublisher(), options)
}

// ownLink is the client's link, with what conn says of its own.
func (c *Client) ownLink(conn adapter.Connection) link.Config {
	lc := c.linkCfg
	if own := conn.Link(); own.URL != "" {
		if own.URL != lc.URL {
			lc.URL, lc.More = own.URL, nil
		}
		lc.AMQP, lc.TLS, lc.Reconnect = own.AMQP, own.TLS, own.Reconnect
	}
	return lc
}
