package topology

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/consumer"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/seam"
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

// defaultTimestamps is the default of WithTimestampWindow.
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
	management     audit.Management // the zero value asks nothing
	anyCluster     bool
	observers      []middleware.Observer
	controlUsers   []string
}

// WithLogger sets the logger of the client, its Subscribers and its Publishers.
//
// Default: nothing is logged.
func WithLogger(logger watermill.LoggerAdapter) Option {
	return func(o *clientOptions) error {
		o.logger = logger
		return refuse(logger == nil, "WithLogger: the logger is nil")
	}
}

// WithObserver adds observers of the decisions that the Subscribers make by themselves: about a
// message that the router has nacked, a message that cannot be decoded, and suspects of killing
// the process. A DelayedRetry takes the same observers from the Client
// and tells them all other decisions. They are called in the goroutine of the message,
// after the decision is confirmed; see middleware.Observer.
//
// Default: no observer, and no event is made.
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

// WithConfirmTimeout bounds the hand-over of one message to the broker, from the wait for a
// connection to the broker's confirm. After that the outcome is unknown: the message is kept and
// handed over again, which may duplicate it. At least 1 ms.
//
// Default: 10 s.
func WithConfirmTimeout(d time.Duration) Option {
	return func(o *clientOptions) error {
		o.confirmTimeout = d
		o.connectTimeout = min(defaultConnectTimeout, max(d, time.Second))
		return refuse(d < time.Millisecond, "WithConfirmTimeout: %v is under 1ms", d)
	}
}

// WithBrokers names further nodes of the same cluster by their URLs. When a connection is made,
// also after a loss, each node is tried in turn, after Connection.AmqpURI. All must name the same
// vhost. A Subscriber uses them, too, unless its configuration has an AmqpURI that differs from
// the client's.
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

// WithoutClusterCheck allows connections to brokers that name different clusters. Without this
// option the connections of a Client, its Subscribers and its Publishers must all lead to the
// cluster_name that the first connection found, because a message that waits on another cluster
// never comes back. When all connections have ended, the next one may lead to another cluster.
// Use the option if open connections must outlive a rabbitmqctl set_cluster_name.
//
// Default: a connection to another cluster is refused; a connection that is made again is tried
// again.
func WithoutClusterCheck() Option {
	return func(o *clientOptions) error {
		o.anyCluster = true
		return nil
	}
}

// WithCredentials sets a function that returns user and password before each connect, for
// credentials that change while a service runs. An error counts as a failed connect, which is
// tried again. Several goroutines call the function, and it should heed its context.
//
// Default: user and password of the URL, or of AmqpConfig.SASL.
func WithCredentials(ask func(ctx context.Context) (user, password string, err error)) Option {
	return func(o *clientOptions) error {
		o.credentials = ask
		return refuse(ask == nil, "WithCredentials: the function is nil")
	}
}

// WithName sets the names of the connections on the broker's management page: "<name>: millpond
// retries" and "<name>: millpond subscriber". A connection_name in AmqpConfig.Properties
// overrides it.
//
// Default: the name of the program.
func WithName(name string) Option {
	return func(o *clientOptions) error {
		o.name = name
		return nil
	}
}

// WithPreProvisioned makes the Client declare nothing, for brokers where services may not
// declare. The queue, which the TopologyBuilder declares otherwise, and everything in the plan
// must exist, and Subscribe names the missing parts. A part that vanishes later is not declared
// again: its messages are held until it exists again. Plan.Definitions and Plan.Permissions
// return the parts and permissions to provision. The arguments of existing parts are not
// compared. Subscribe asks for type and arguments of the queue itself with requests that can
// declare nothing.
//
// Default: everything is declared, and declared again if it has vanished.
func WithPreProvisioned() Option {
	return func(o *clientOptions) error {
		o.provisioned = true
		return nil
	}
}

// WithControlUsers names the users of the broker who may control brakes and queues in order, in
// place of all who may publish to their exchanges and queues. The broker checks the user of each
// message (F15). News, tokens and marks of other users are ignored. Instances without the option
// send no user, and are ignored too. Name the users of all instances, the user of this Client among
// them, and of the operators. While users change, name the old and the new ones. Where a user is
// not named, or the broker takes his name from a certificate or a token, Subscribe to a queue in
// order returns an error, a process that connects again logs it and consumes nothing, and a brake
// logs it and works for its process alone.
//
// Default: all users are believed.
func WithControlUsers(names ...string) Option {
	return func(o *clientOptions) error {
		o.controlUsers = append(o.controlUsers, names...)
		return refuse(len(names) == 0 || slices.Contains(names, ""),
			"WithControlUsers: names %q: name at least one user, and none that is empty", names)
	}
}

// SubscriberOption changes a Subscriber.
type SubscriberOption func(*subscriberOptions) error

type subscriberOptions struct {
	retries        []seam.Retry    // of For
	delays         []time.Duration // nil: not known
	unlisted       bool            // some policy cannot list its delays
	drainTimeout   time.Duration
	oldInstances   bool
	concurrency    int
	prefetch       int // 0: as Qos says
	handlerWarning time.Duration
	timestamps     consumer.TimestampWindow
	brakes         []seam.Brake // of For
	// consumerTimeout of the broker; 0: not said.
	consumerTimeout time.Duration
}

// ForPolicy declares the wait queues of the delays that the policies may ask for, before
// consuming begins. A policy that cannot list its delays uses the strategy's default wait steps:
// a delay that it asks for waits on the next longer wait step. With Levels, which has wait queues
// for any delay, the policies make no difference. The log names the first delay that is rounded
// up by more than a tenth.
//
// It adds to the policies of the DelayedRetries that the Subscriber knows.
//
// Default: their policies alone; without a DelayedRetry the strategy's default wait steps.
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

// For names a further DelayedRetry, of another handler of the Subscriber. See Client.NewSubscriber.
//
// Default: the one of NewSubscriber. Without one: the strategy's default wait steps, no hook, and
// no brake.
func For(retry *middleware.DelayedRetry) SubscriberOption {
	return func(o *subscriberOptions) error {
		if retry == nil {
			return errors.New("the DelayedRetry is nil: NewSubscriberWithoutRetry needs none")
		}
		parts := seam.RetryOf(retry)
		for _, budget := range parts.Budgets {
			if b := budget.Brake(); b != nil && !slices.Contains(o.brakes, b) {
				o.brakes = append(o.brakes, b)
			}
		}
		o.retries = append(o.retries, parts)
		return nil
	}
}

// at returns the options of a subscription, with the delays of For.
func (o subscriberOptions) at(queue, topic string) (subscriberOptions, error) {
	o.delays = slices.Clone(o.delays)
	for _, retry := range o.retries {
		if err := ForPolicy(retry.Policies(queue, topic)...)(&o); err != nil {
			return o, err
		}
	}
	return o, nil
}

// WithDrainTimeout bounds how long Close waits for the messages in progress. Until then handlers
// go on, and failed messages are still handed over. After that the context of the messages is
// cancelled and they go back to their queue. Keep it below the CloseTimeout of the router (30 s
// by default). Must not be negative.
//
// Default: 20 s.
func WithDrainTimeout(d time.Duration) SubscriberOption {
	return func(o *subscriberOptions) error {
		o.drainTimeout = d
		return refuse(d < 0, "WithDrainTimeout: %v is negative", d)
	}
}

// WithOldInstances says that instances of watermill-amqp consume the same queue, during a rollout.
// Before RabbitMQ 4.3 each of their nacks counts in a quorum queue as the end of a process does
// (F34). So the guard against messages that end the process only keeps messages from the delivery
// limit: it would set aside, and at last dead-letter, a message that only fails in old instances.
// Remove the option as soon as no such instance is left.
//
// Without a DelayedRetry, as in the first step of adopting this library without millpond's
// RolloutMarshaler, a message that the router nacks goes straight back to its queue, as with
// watermill-amqp: those instances cannot decode a message that comes from a wait queue, and nack it
// in a hot loop (F1).
//
// Default: all consumers of the queue use this library.
func WithOldInstances() SubscriberOption {
	return func(o *subscriberOptions) error {
		o.oldInstances = true
		return nil
	}
}

// WithConcurrency allows n messages of each Subscribe to be in progress at once: n handlers run
// side by side. A message that cannot be stored and is held takes only its own place. From 1 to
// 65535.
//
// Messages are handed out and end in no particular order; with 1 they are handed out in the order
// of the queue. Each message is acked, snoozed or given back independently of the others. n
// goroutines may call the handler at once.
//
// The broker sends at least n messages ahead; see WithPrefetch.
//
// After a lost connection, handlers that still run with a message of the old connection count: no
// more than n run at any time. Close waits for all n at once, for at most the drain timeout.
// Messages that may have killed the process are tried alone, one at a time for all Subscribers of
// a Client, so that none is blamed for another.
//
// Default: 1.
func WithConcurrency(n int) SubscriberOption {
	return func(o *subscriberOptions) error {
		o.concurrency = n
		return refuse(n < 1 || n > maxPrefetch,
			"WithConcurrency: %d is not within 1 and %d, the largest prefetch of AMQP",
			n, maxPrefetch)
	}
}

// WithPrefetch lets the broker send n messages of each Subscribe ahead. From 1 to 65535; a
// number below WithConcurrency is raised to it.
//
// A failed message frees its place for the next handler when its copy is written. It stays
// unacked until the broker has confirmed the copy. So the prefetch bounds how many copies may
// be on their way. With n equal to WithConcurrency a failed message keeps its place until the
// confirm: no other handler starts before. All unacked messages are in memory. They are
// delivered again when the connection ends, so a killed process may leave n duplicates.
//
// Default: Consume.Qos.PrefetchCount if it is above 1. The 1 of watermill-amqp's constructors
// stands for 16, or twice WithConcurrency if that is more. It falls to WithConcurrency, with a
// line in the log, when a message waits for its handler longer than a quarter of the time that a
// delivery may be held; see WithConsumerTimeout. It rises again when handlers are quick enough.
func WithPrefetch(n int) SubscriberOption {
	return func(o *subscriberOptions) error {
		o.prefetch = n
		return refuse(n < 1 || n > maxPrefetch,
			"WithPrefetch: %d is not within 1 and %d, the largest prefetch of AMQP", n, maxPrefetch)
	}
}

// defaultPrefetch is the least that is taken for watermill-amqp's prefetch of 1. See decision 38.
const defaultPrefetch = 16

// prefetchOr returns the prefetch, and who has chosen it. qos is the user's.
func (o *subscriberOptions) prefetchOr(qos int) (int, consumer.PrefetchBy) {
	switch {
	case o.prefetch > 0:
		return max(o.prefetch, o.concurrency), consumer.ByOption
	case o.oldInstances && len(o.retries) == 0: // the old ones cannot read what was given back
		return max(qos, o.concurrency), consumer.ByOption
	case qos > 1:
		return max(qos, o.concurrency), consumer.ByQos
	}
	return min(max(defaultPrefetch, 2*o.concurrency), maxPrefetch), consumer.ByLibrary
}

// WithHandlerWarning logs, once for each message, that its handler has had it for longer than d.
// A handler, or a marshaler, that never returns keeps its place. With WithConcurrency(1) that stops
// the queue. After the broker's consumer timeout, 30 minutes by default, the channel is closed and
// everything on it is delivered again (F16). The check runs four times within d, and at least
// once a minute. 0 switches it off. Must not be negative.
//
// Default: 10 min.
func WithHandlerWarning(d time.Duration) SubscriberOption {
	return func(o *subscriberOptions) error {
		o.handlerWarning = d
		return refuse(d < 0, "WithHandlerWarning: %v is negative", d)
	}
}

// WithConsumerTimeout names the broker's consumer_timeout: how long the broker lets a consumer
// keep a delivery. While a failed message cannot be stored, its delivery is held until shortly
// before that. 0 means that the broker has no such timeout. Must not be negative.
//
// Default: the queue's argument x-consumer-timeout, or a policy that the management API shows,
// and from RabbitMQ 4.3 on Consume.Arguments; else 30 min, RabbitMQ's own default.
func WithConsumerTimeout(d time.Duration) SubscriberOption {
	return func(o *subscriberOptions) error {
		o.consumerTimeout = cmp.Or(d, consumer.MaxHold)
		return refuse(d < 0, "WithConsumerTimeout: %v is negative", d)
	}
}

// WithTimestampWindow sets which timestamps count as the time of publishing. A message with an
// expiration is not retried past the end of its expiration. The end is counted from the timestamp
// of the message if the timestamp lies less than past before the arrival of the message, or less
// than future after it. If the end would lie before the arrival, the timestamp is not the time of
// publishing: the broker counts from there and drops a message whose expiration is over. Such a
// message, a message whose timestamp lies outside the window, and a message without a timestamp
// are counted from the arrival. The header millpond-deadline-from says "timestamp" or "arrival".
//
// The arrival is the arrival of the first delivery that fails or is snoozed. A timestamp has whole
// seconds. With past 0 only timestamps ahead count; WithTimestampWindow(0, 0) counts every
// expiration from the arrival. A past that is longer than the expiration changes nothing.
// Negative values are refused.
//
// Default: 24 h and 1 min.
func WithTimestampWindow(past, future time.Duration) SubscriberOption {
	return func(o *subscriberOptions) error {
		o.timestamps = consumer.TimestampWindow{Past: past, Future: future}
		return refuse(past < 0 || future < 0,
			"WithTimestampWindow: %v and %v must not be negative", past, future)
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

// refuse returns an error if a value is bad.
func refuse(bad bool, format string, args ...any) error {
	if !bad {
		return nil
	}
	return fmt.Errorf(format, args...)
}
