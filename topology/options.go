package topology

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/adapter"
	"github.com/millpond-go/millpond/internal/consumer"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/middleware"
)

const (
	defaultConfirmTimeout = 10 * time.Second
	// defaultDrainTimeout is below the 30 s after which a router gives up closing.
	defaultDrainTimeout = 20 * time.Second
	// defaultConnectTimeout bounds a dial with its handshake.
	defaultConnectTimeout = 10 * time.Second
	// defaultHandlerWarning leaves twenty minutes until the broker's consumer timeout
	// (F16).
	defaultHandlerWarning = 10 * time.Minute
)

// defaultTimestamps is what WithTimestampWindow sets by default.
var defaultTimestamps = consumer.TimestampWindow{Past: 24 * time.Hour, Future: time.Minute}

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
	noPolicies     bool
	observers      []middleware.Observer
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
			o.observers = append(o.observers, observer)
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

// WithoutPolicyCheck says that no policy and no operator policy sets delivery-limit
// on the queues that are looked at: by Peek and by the package operate, which
// otherwise refuse a quorum queue whose policies they cannot see (ErrUnsafePeek). It
// is for brokers whose management API cannot be reached; the argument of the queue is
// still compared, and so are policies that are seen. Nothing checks it: under a policy
// with a small delivery-limit the broker deletes messages that are looked at, silently
// and for good.
//
// Default: a quorum queue is looked at only where WithManagement shows its policies.
func WithoutPolicyCheck() Option {
	return func(o *clientOptions) error {
		o.noPolicies = true
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
	timestamps     consumer.TimestampWindow
	holdLimit      time.Duration // 0: only the broker's consumer timeout
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

// For declares the wait queues of the delays that every policy of a DelayedRetry may ask for;
// see ForPolicy. It asks the *middleware.DelayedRetry for its policies once.
//
// Default: the strategy's default wait steps.
func For(retry interface{ Policies() []backoff.Policy }) SubscriberOption {
	return func(o *subscriberOptions) error {
		if isNil(retry) {
			return errors.New("For: the DelayedRetry is nil")
		}
		return ForPolicy(retry.Policies()...)(o)
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

// WithConcurrency lets n messages of each Subscribe be in progress at once: n
// handlers run side by side, and a message that fails and waits for the broker's
// confirm, or is held, keeps only its own place busy. From 1 to 65535.
//
// Messages are handed out and end in no particular order; with 1 they are handed
// out in the order of the queue. Each is acked, set aside or given back by itself,
// whatever becomes of the others. Handlers must be safe to be called from n
// goroutines.
//
// The broker is asked to send at least n messages ahead: a smaller
// Consume.Qos.PrefetchCount is raised to n, a larger one stays. So up to n
// messages, or as many as are prefetched, are in memory, and unacked when the
// connection ends: then all of them are delivered again.
//
// After a lost connection the handlers that still run with a message of the old
// one count: never are there more than n. Close waits for all n at once, for at
// most the drain timeout. Messages that may have killed the process are tried
// alone, one at a time for all Subscribers of a Client, so that none is blamed
// for another.
//
// Default: 1.
func WithConcurrency(n int) SubscriberOption {
	return func(o *subscriberOptions) error {
		if n < 1 || n > adapter.MaxPrefetch {
			return fmt.Errorf("WithConcurrency: %d is not within 1 and %d, the largest prefetch of AMQP", n, adapter.MaxPrefetch)
		}
		o.concurrency = n
		return nil
	}
}

// WithHandlerWarning says in the log, once for each message, that its handler has
// had it for longer than d: a handler that never returns keeps its place, which
// with WithConcurrency(1) stops the queue, and after the broker's consumer timeout,
// 30 minutes unless set, the channel is closed and everything on it delivered again
// (F16). It is looked for four times within d, at least once a minute. 0 never
// looks. Not negative.
//
// Default: 10 min.
func WithHandlerWarning(d time.Duration) SubscriberOption {
	return func(o *subscriberOptions) error {
		if d < 0 {
			return fmt.Errorf("WithHandlerWarning: %v is negative", d)
		}
		o.handlerWarning = d
		return nil
	}
}

// WithConsumerTimeout says how long the broker lets a consumer keep a delivery:
// its consumer_timeout. While a failed message cannot be stored its delivery is
// held until shortly before that. 0 means that the broker has no such timeout.
// Not negative.
//
// Default: what the queue says by its argument x-consumer-timeout, or by a policy
// that the management API shows, and from 4.3 on Consume.Arguments; else 30 min,
// RabbitMQ's own default.
func WithConsumerTimeout(d time.Duration) SubscriberOption {
	return func(o *subscriberOptions) error {
		if d < 0 {
			return fmt.Errorf("WithConsumerTimeout: %v is negative", d)
		}
		if d == 0 {
			d = consumer.MaxHold
		}
		o.consumerTimeout = d
		return nil
	}
}

// WithHoldLimit shortens how long the Subscriber holds a message that cannot be stored after
// it failed or was nacked, counted from its arrival. Then the message goes back to its queue,
// and the queue is not consumed until messages can be stored again. A limit that is longer
// than the default changes nothing. Must be positive.
//
// Default: until shortly before the broker's consumer timeout; see WithConsumerTimeout.
func WithHoldLimit(d time.Duration) SubscriberOption {
	return func(o *subscriberOptions) error {
		if d <= 0 {
			return fmt.Errorf("WithHoldLimit: %v is not positive", d)
		}
		o.holdLimit = d
		return nil
	}
}

// WithTimestampWindow sets which timestamps count as the time of publishing. A message
// with an expiration is not retried past the end of its expiration. The end is counted
// from the timestamp of the message if the timestamp lies less than past before the
// arrival of the message, or less than future after it. If the end would lie before the
// arrival, the timestamp is not the time of publishing: the broker counts from there and
// drops a message whose expiration is over. Such a message, a message whose timestamp
// lies outside the window, and a message without a timestamp are counted from the arrival.
// The header millpond-deadline-from says "timestamp" or "arrival".
//
// The arrival is that of the delivery that fails or is set aside first. A timestamp has
// whole seconds. With past 0 only timestamps ahead count; WithTimestampWindow(0, 0)
// counts every expiration from the arrival. A past that is longer than the expiration
// changes nothing. Negative values are refused.
//
// Default: 24 h and 1 min.
func WithTimestampWindow(past, future time.Duration) SubscriberOption {
	return func(o *subscriberOptions) error {
		if past < 0 || future < 0 {
			return fmt.Errorf("WithTimestampWindow: %v and %v must not be negative", past, future)
		}
		o.timestamps = consumer.TimestampWindow{Past: past, Future: future}
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
