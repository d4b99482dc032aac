// Package millpond gives a Watermill service on RabbitMQ delayed retries. Open is its front door:
//
//	cfg := millpond.QuorumQueue(amqp.NewDurableQueueConfig(url)) // of watermill-amqp
//	retries, err := millpond.Open(ctx, cfg, policy)
//	…
//	defer retries.Close()
//	router.AddMiddleware(retries.Retry.Middleware)
//	router.AddConsumerHandler("orders", "orders", retries.Subscriber, handleOrder)
//
// What Open puts together stands in packages backoff (policies), middleware (the decision about a
// failure) and topology (where messages wait). Each part can be made alone there. Module
// topology/amqpv3 has the same front door for watermill-amqp v3.
package millpond

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// Retries is what a service needs for delayed retries. Its parts belong together: a message can
// wait only if it came from the Subscriber, or from another one of the Client.
type Retries struct {
	// Retry is the middleware, for all handlers or for one of them.
	Retry *middleware.DelayedRetry
	// Subscriber takes the place of watermill-amqp's.
	Subscriber *topology.Subscriber
	// Publisher confirms each message, and delays a message that asks for it. A message that no queue
	// takes is an error, topology.ErrUnroutable, where watermill-amqp's Publisher drops it.
	Publisher *topology.Publisher
	// Client makes further Subscribers and Publishers, and answers readiness probes.
	Client *topology.Client
}

// Close closes the Subscriber, which waits for the messages in progress, then everything else. It
// is bounded in time; see topology.Client.Close. Further calls do nothing.
func (r *Retries) Close() error { return r.Client.Close() }

// Option changes what Open makes.
type Option func(*parts)

type parts struct {
	strategy   topology.Strategy
	client     []topology.Option
	retry      []middleware.Option
	subscriber []topology.SubscriberOption
}

// WithStrategy says where messages wait. Default: topology.PerQueue{}.
func WithStrategy(strategy topology.Strategy) Option {
	return func(p *parts) { p.strategy = strategy }
}

// WithLogger sets the logger of all parts. Default: nothing is logged.
func WithLogger(logger watermill.LoggerAdapter) Option {
	return WithClient(topology.WithLogger(logger))
}

// WithClient adds options of the Client.
func WithClient(options ...topology.Option) Option {
	return func(p *parts) { p.client = append(p.client, options...) }
}

// WithRetry adds options of the DelayedRetry.
func WithRetry(options ...middleware.Option) Option {
	return func(p *parts) { p.retry = append(p.retry, options...) }
}

// WithSubscriber adds options of the Subscriber.
func WithSubscriber(options ...topology.SubscriberOption) Option {
	return func(p *parts) { p.subscriber = append(p.subscriber, options...) }
}

// Open connects to RabbitMQ as cfg says, and returns a DelayedRetry that asks policy about every
// failure, and a Subscriber and a Publisher that work with it. Nothing is declared before the
// Subscriber subscribes.
//
// It takes any Config of watermill-amqp, and does not write to it. It refuses one that could lose
// messages, as topology.Client.NewSubscriber and NewPublisher say, and a policy that
// middleware.NewDelayedRetry refuses. It fails if it cannot reach the broker within ctx or 10 s. An
// error leaves nothing open.
func Open(
	ctx context.Context, cfg amqp.Config, policy backoff.Policy, options ...Option,
) (*Retries, error) {
	p := parts{strategy: topology.PerQueue{}}
	for i, option := range options {
		if option == nil {
			return nil, fmt.Errorf("open millpond: option %d is nil", i+1)
		}
		option(&p)
	}
	client, err := topology.Open(ctx, cfg.Connection, p.strategy, p.client...)
	if err != nil {
		return nil, err
	}
	r := &Retries{Client: client}
	if err := r.open(cfg, policy, p); err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return r, nil
}

func (r *Retries) open(cfg amqp.Config, policy backoff.Policy, p parts) (err error) {
	if r.Retry, err = middleware.NewDelayedRetry(r.Client, policy, p.retry...); err != nil {
		return err
	}
	if r.Subscriber, err = r.Client.NewSubscriber(cfg, r.Retry, p.subscriber...); err != nil {
		return err
	}
	r.Publisher, err = r.Client.NewPublisher(cfg)
	return err
}

// QuorumQueue returns cfg with a quorum queue that has no delivery limit. Such a queue keeps its
// messages when a node of a cluster dies. It counts deliveries, so a message that kills its process
// is found. From RabbitMQ 4.0 on it would drop a message after twenty deliveries without the limit
// (F2). cfg and its arguments are not written to, and other arguments stay.
//
// Subscribe returns an error if the queue exists already with other arguments.
func QuorumQueue(cfg amqp.Config) amqp.Config {
	arguments := maps.Clone(cfg.Queue.Arguments)
	if arguments == nil {
		arguments = amqp091.Table{}
	}
	arguments["x-queue-type"], arguments["x-delivery-limit"] = "quorum", int64(math.MaxInt32)
	cfg.Queue.Arguments = arguments
	return cfg
}

// RolloutMarshaler returns m without the headers that are no text. It is for instances that still
// consume with watermill-amqp's Subscriber, of v2 or v3, beside instances of millpond. A message
// that has waited, or that was given back to a quorum queue, has such headers, x-death or
// x-delivery-count. watermill-amqp's marshalers refuse it, and its Subscriber then nacks it again
// and again (F1). Release it before millpond:
//
//	cfg.Marshaler = millpond.RolloutMarshaler(cfg.Marshaler)
func RolloutMarshaler(m amqp.Marshaler) amqp.Marshaler { return rolloutMarshaler{m} }

type rolloutMarshaler struct{ amqp.Marshaler }

func (m rolloutMarshaler) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	text := amqp091.Table{}
	for key, value := range d.Headers {
		if _, ok := value.(string); ok {
			text[key] = value
		}
	}
	d.Headers = text
	return m.Marshaler.Unmarshal(d)
}
