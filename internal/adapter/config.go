// Package adapter is what topology needs to know of a configuration of
// watermill-amqp, whichever its version: each version's Config becomes this one.
package adapter

import (
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
)

// Connection is a ConnectionConfig.
type Connection struct {
	URL       string
	AMQP      *amqp.Config
	TLS       *tls.Config
	Reconnect link.Backoff
}

// Link returns the connection as internal/link takes it.
func (c Connection) Link() link.Config {
	return link.Config{URL: c.URL, AMQP: c.AMQP, TLS: c.TLS, Reconnect: c.Reconnect}
}

// Backoff makes one of a ReconnectConfig's fields.
func Backoff(initial, longest time.Duration, multiplier, randomization float64) link.Backoff {
	return link.Backoff{Initial: initial, Max: longest, Multiplier: multiplier, Randomization: randomization}
}

// Config is a Config. Functions are nil where what they come from is.
type Config struct {
	Connection Connection

	Marshal   func(*message.Message) (amqp.Publishing, error)
	Unmarshal func(amqp.Delivery) (*message.Message, error)

	// ExchangeName, QueueName and RoutingKey, the one to publish with, are of a topic.
	ExchangeName, QueueName, RoutingKey func(topic string) string
	// Build declares the user's queue, its exchange and binding.
	Build func(ch *amqp.Channel, topic, queue, exchange string, logger watermill.LoggerAdapter) error
	// DeclareExchange declares the exchange alone.
	DeclareExchange func(ch *amqp.Channel, exchange string) error

	Queue   Queue
	Consume Consume
	// Immediate and Transactional are Publish's.
	Immediate, Transactional bool
}

// Queue is what a QueueConfig says of the queue.
type Queue struct {
	Durable, AutoDelete, Exclusive bool
	Arguments                      amqp.Table
}

// Consume is a ConsumeConfig.
type Consume struct {
	NoRequeueOnNack, Exclusive, NoLocal bool
	Prefetch, PrefetchSize              int
	Consumer                            string
	Arguments                           amqp.Table
}

// LeastFrame is the smallest frame, in bytes, that a connection may negotiate. All
// headers of a message share one frame: 4 KiB of it are left to those that the
// broker adds, and our notes and the message's own properties take up to 7 KiB.
const LeastFrame = 16 << 10

// Check refuses a connection whose TLS configuration is ambiguous, or whose frames
// are too small for a retry.
func (c Connection) Check() error {
	if c.AMQP == nil {
		return nil
	}
	var p problems
	p.refuse(c.TLS != nil && c.AMQP.TLSClientConfig != nil,
		"Connection.TLSConfig and Connection.AmqpConfig.TLSClientConfig are both set: set one")
	if size := c.AMQP.FrameSize; size > 0 && size < LeastFrame {
		p = append(p, fmt.Errorf("Connection.AmqpConfig.FrameSize is %d bytes, in which a message has no room for what a retry adds to its headers, "+
			"so that every failure would be dead-lettered: set at least %d, or 0", size, LeastFrame))
	}
	return errors.Join(p...)
}

// MaxPrefetch is the largest number that AMQP can ask for.
const MaxPrefetch = 65535

// CheckConsumer refuses what is missing and what would lose messages.
func (c Config) CheckConsumer() error {
	p := problems{c.Connection.Check()}
	p.refuse(c.Unmarshal == nil, missingMarshaler)
	p.refuse(c.ExchangeName == nil, missingExchange)
	p.refuse(c.QueueName == nil, "Queue.GenerateName is nil: use amqp.GenerateQueueNameTopicName or another")
	p.refuse(c.Build == nil, missingBuilder)
	p.refuse(c.Consume.NoRequeueOnNack, "Consume.NoRequeueOnNack drops what is nacked: leave it false")
	p.refuse(!c.Queue.Durable, "Queue.Durable is false: a restart of the broker would drop the queue")
	p.refuse(c.Queue.AutoDelete, "Queue.AutoDelete drops the queue with its last consumer: leave it false")
	p.refuse(c.Queue.Exclusive, "Queue.Exclusive drops the queue with its connection: leave it false")
	p.refuse(c.Consume.Prefetch <= 0, "Consume.Qos.PrefetchCount is 0, which is no limit: set at least 1")
	p.refuse(c.Consume.Prefetch > MaxPrefetch, "Consume.Qos.PrefetchCount is above 65535, which AMQP cannot ask for: set less")
	p.refuse(c.Consume.PrefetchSize != 0, "Consume.Qos.PrefetchSize is not implemented by RabbitMQ: leave it 0")
	return errors.Join(p...)
}

// CheckPublisher refuses what is missing and what would make confirms impossible.
func (c Config) CheckPublisher() error {
	p := problems{c.Connection.Check()}
	p.refuse(c.Marshal == nil, missingMarshaler)
	p.refuse(c.ExchangeName == nil, missingExchange)
	p.refuse(c.RoutingKey == nil, "Publish.GenerateRoutingKey is nil: use one of watermill-amqp's constructors")
	p.refuse(c.DeclareExchange == nil, missingBuilder)
	p.refuse(c.Immediate, "Publish.Immediate is refused by RabbitMQ: leave it false")
	p.refuse(c.Transactional, "Publish.Transactional would make confirms impossible: leave it false")
	return errors.Join(p...)
}

const (
	missingMarshaler = "Marshaler is nil: use amqp.DefaultMarshaler{}"
	missingExchange  = "Exchange.GenerateName is nil: use one of watermill-amqp's constructors"
	missingBuilder   = "TopologyBuilder is nil: use &amqp.DefaultTopologyBuilder{}"
)

type problems []error

func (p *problems) refuse(bad bool, text string) {
	if bad {
		*p = append(*p, errors.New(text))
	}
}
