package topology

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/middleware"
)

const (
	defaultConfirmTimeout = 10 * time.Second
	// defaultDrainTimeout is below the 30 s after which a router gives up closing.
	defaultDrainTimeout = 20 * time.Second
	// defaultConnectTimeout bounds a dial with its handshake.
	defaultConnectTimeout = 10 * time.Second
)

// Option changes a Client.
type Option func(*clientOptions) error

type clientOptions struct {
	logger         watermill.LoggerAdapter
	confirmTimeout time.Duration
	connectTimeout time.Duration
	provisioned    bool
	strandedPause  time.Duration // between two looks at a stranded queue
	name           string
	brokers        []string
	credentials    func(ctx context.Context) (user, password string, err error)
	management     string // its URL, checked; "" for none
	anyCluster     bool
	tell           []func(context.Context, middleware.Event)
}

// WithLogger sets the logger of the client and its subscribers.
//
// Default: nothing is logged.
func WithLogger(logger watermill.LoggerAdapter) Option {
	return func(o *clientOptions) error {
		if logger == nil {
			return errors.New("WithLogger: the logger is nil")
		}
		o.logger = logger
		return nil
	}
}

// WithObserver adds observers of what the Subscribers decide by themselves: a
// message that the router nacked, one that cannot be decoded, suspects of killing
// the process. Give the same to middleware.WithObserver, which tells of all the
// rest. They are called in the goroutine of the message, after the decision is
// confirmed; see middleware.Observer.
//
// Default: nobody is told, and no event is made.
func WithObserver(observers ...middleware.Observer) Option {
	return func(o *clientOptions) error {
		for i, observer := range observers {
			if observer == nil {
				return fmt.Errorf("WithObserver: observer %d is nil", i)
			}
			o.tell = append(o.tell, observer.Observe)
		}
		return nil
	}
}

// WithConfirmTimeout bounds the hand-over of one message to the broker, from
// the wait for a connection to the broker's confirm. After that its outcome is
// unknown: the message is kept and handed over again, which may duplicate it.
// At least 1 ms.
//
// Default: 10 s.
func WithConfirmTimeout(d time.Duration) Option {
	return func(o *clientOptions) error {
		if d < time.Millisecond {
			return fmt.Errorf("WithConfirmTimeout: %v is under 1ms", d)
		}
		o.confirmTimeout = d
		o.connectTimeout = min(defaultConnectTimeout, max(d, time.Second))
		return nil
	}
}

// WithBrokers names further nodes of the same cluster by their URLs: each is
// tried in turn, after Connection.AmqpURI, when a connection is made or made
// again. They must name the same vhost. A Subscriber uses them too, unless its
// configuration has an AmqpURI of its own that differs from the client's.
//
// Default: Connection.AmqpURI alone.
func WithBrokers(urls ...string) Option {
	return func(o *clientOptions) error {
		for i, u := range urls {
			if err := link.CheckURL(u); err != nil {
				return fmt.Errorf("WithBrokers: url %d: %w", i+1, err)
			}
		}
		o.brokers = append(o.brokers, urls...)
		return nil
	}
}

// WithoutClusterCheck admits connections to brokers that name different clusters.
// Otherwise the connections of a Client, its Subscribers and its Publishers must
// all lead to the cluster_name that the first one found, because a message that
// waits on another cluster never comes back; when all of them have ended, the
// next one may lead to another cluster. Use it where connections that are open
// must outlive a rabbitmqctl set_cluster_name.
//
// Default: a connection to another cluster is refused, and when a connection is
// made again, tried again.
func WithoutClusterCheck() Option {
	return func(o *clientOptions) error {
		o.anyCluster = true
		return nil
	}
}

// WithCredentials asks for user and password before each connect, for those that
// change while a service runs. An error is one more connect that failed: it is
// tried again. The function is called from several goroutines and should heed
// its context.
//
// Default: those of the URL, or of AmqpConfig.SASL.
func WithCredentials(ask func(ctx context.Context) (user, password string, err error)) Option {
	return func(o *clientOptions) error {
		if ask == nil {
			return errors.New("WithCredentials: the function is nil")
		}
		o.credentials = ask
		return nil
	}
}

// WithName sets what the broker's management page calls the connections:
// "<name>: millpond retries" and "<name>: millpond subscriber". A
// connection_name in AmqpConfig.Properties goes before it.
//
// Default: the name of the program.
func WithName(name string) Option {
	return func(o *clientOptions) error {
		o.name = name
		return nil
	}
}

// WithPreProvisioned declares nothing, for brokers where services may not: the
// queue, which otherwise the TopologyBuilder declares, and all that the plan
// needs must exist, and Subscribe says what is missing. What vanishes later is
// not declared again: its messages are held until it is back. Plan.Definitions
// and Plan.Permissions say what to provision; the arguments of what exists are
// not compared. The queue itself is asked for its type and arguments, with
// requests that can declare nothing.
//
// Default: everything is declared, and declared again where it has vanished.
func WithPreProvisioned() Option {
	return func(o *clientOptions) error {
		o.provisioned = true
		return nil
	}
}

// SubscriberOption changes a Subscriber.
type SubscriberOption func(*subscriberOptions) error

type subscriberOptions struct {
	delays         []time.Duration // nil: not known
	unlisted       bool            // some policy cannot list its delays
	drainTimeout   time.Duration
	requeue        bool
	concurrency    int
	handlerWarning time.Duration
	timestamps     timestampWindow
	// consumerTimeout of the broker; 0: not said.
	consumerTimeout time.Duration
}

// ForPolicy declares the wait queues of the delays that the policies may ask
// for, before consuming begins. A policy that cannot list its delays uses the
// strategy's default wait steps; whatever a policy asks for waits on the next longer wait step. With
// Levels, which has wait queues for any delay, the policies make no difference. The
// first delay that is rounded up by more than a tenth is named in the log.
//
// Default: the strategy's default wait steps.
func ForPolicy(policies ...backoff.Policy) SubscriberOption {
	return func(o *subscriberOptions) error {
		var problems []error
		for i, p := range policies {
			if err := backoff.Validate(p); err != nil {
				problems = append(problems, fmt.Errorf("ForPolicy: policy %d: %w", i+1, err))
				continue
			}
			delays, known := backoff.Delays(p)
			if !known {
				o.unlisted = true
				continue
			}
			o.delays = append(o.delays, delays...)
			if o.delays == nil {
				o.delays = []time.Duration{}
			}
		}
		return errors.Join(problems...)
	}
}

// WithDrainTimeout bounds how long Close waits for the messages in progress:
// handlers go on, and what fails is still handed over. After that their context
// is cancelled and they go back to their queue. Keep it below the CloseTimeout
// of the router (30 s unless set). Not negative.
//
// Default: 20 s.
func WithDrainTimeout(d time.Duration) SubscriberOption {
	return func(o *subscriberOptions) error {
		if d < 0 {
			return fmt.Errorf("WithDrainTimeout: %v is negative", d)
		}
		o.drainTimeout = d
		return nil
	}
}

// WithRequeueOnNack gives a message that the router nacks straight back to its
// queue, as watermill-amqp does. It is for the first step of adopting this
// library without a pause: while instances with watermill-amqp's Subscriber
// consume the same queue, nothing may return from a wait queue, for they nack
// what they cannot decode in a hot loop (broker fact F1). Use it without the
// middleware, and leave it out as soon as no such instance is left.
//
// Default: what is nacked is set aside for at least a second.
func WithRequeueOnNack() SubscriberOption {
	return func(o *subscriberOptions) error {
		o.requeue = true
		return nil
	}
}

func apply[O any, F ~func(*O) error](options *O, fs []F) error {
	var problems []error
	for i, f := range fs {
		if f == nil {
			problems = append(problems, fmt.Errorf("option %d is nil", i+1))
			continue
		}
		problems = append(problems, f(options))
	}
	return errors.Join(problems...)
}
