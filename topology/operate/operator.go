package operate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/management"
	"github.com/millpond-go/millpond/internal/policies"
	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/topology"
)

var (
	// ErrNoQueue: the plan sends dead letters to an exchange of the user, so that the queue that
	// keeps them is not known. Name the queue.
	ErrNoQueue = errors.New("the plan does not say which queue keeps its dead letters")
	// ErrUnreadable: the connection ended while a message was read. In all likelihood the message is
	// too large for a frame; see the package's documentation.
	ErrUnreadable = errors.New("a message cannot be read")
	// ErrTooSlow: messages were held for as long as it is safe. Ask for fewer.
	ErrTooSlow = errors.New("looking has taken too long")
	// ErrUnsafe: a message could be lost, or held for too long. Nothing was done.
	ErrUnsafe = errors.New("not safe")
	// ErrUnsafePeek: looking at a message may delete it, or nothing proves that it does not. Nothing
	// was done.
	ErrUnsafePeek = errors.New("looking at its messages may delete them")
	// ErrInvalidOptions: an option makes no sense. Nothing was done.
	ErrInvalidOptions = errors.New("the options make no sense")
)

// confirmTimeout bounds the publish of one message, from the wait for a connection to the broker's
// confirm. After that its outcome is unknown: the original stays, and there may be a copy.
const confirmTimeout = 10 * time.Second

// callTimeout bounds a call that takes no messages. A broker whose disk is busy takes seconds for
// one declare.
const callTimeout = 90 * time.Second

// Operator looks at the queues of one vhost and moves their messages, for people and for tools. It
// needs the broker's URL and nothing else; a call works on a topology.Plan, which
// topology.PlanFor computes. It keeps one connection for publishing, and each call reads on another
// connection, which ends with the call: the broker stops reading from a publishing connection
// during an alarm, and a message that is too large for a frame ends the connection that reads it
// (F16). Its methods may be called from many goroutines.
type Operator struct {
	opts      options
	link      link.Config
	vhost     string
	publisher *publisher.Publisher
	closed    atomic.Bool
}

// Option changes an Operator.
type Option func(*options) error

type options struct {
	logger      watermill.LoggerAdapter
	name        string
	brokers     []string
	credentials func(ctx context.Context) (user, password string, err error)
	amqp        *amqp.Config
	management  string // its URL, checked; "" for none
	noPolicies  bool
	provisioned bool
}

// WithManagement names RabbitMQ's management API, which shows what AMQP cannot: messages held for
// dead-lettering, bindings, policies, delivery limits, feature flags, alarms and replicas.
//
// url is http or https with a user and its password, both percent-encoded, which never appear in an
// error. The user needs the tag management and permissions in the vhost, of which ^$ is enough. The
// alarms of nodes take the tag monitoring, and feature flags before RabbitMQ 4.0 administrator.
// https trusts the authorities of WithAMQP's TLSClientConfig.
//
// Default: only AMQP is asked.
func WithManagement(url string) Option {
	return func(o *options) error {
		if _, err := management.New(url, nil); err != nil {
			return fmt.Errorf("WithManagement: %w", err)
		}
		o.management = url
		return nil
	}
}

// WithoutPolicyCheck states that no policy and no operator policy sets delivery-limit on the queues
// that are read. It is for brokers whose management API cannot be reached; the argument of the
// queue is still compared, and so are policies that are seen. Nothing checks the statement: under a
// policy with a small delivery-limit the broker deletes messages that are looked at, silently and
// for good.
//
// Default: a quorum queue is read only where WithManagement shows its policies, else the error is
// ErrUnsafePeek.
func WithoutPolicyCheck() Option {
	return func(o *options) error {
		o.noPolicies = true
		return nil
	}
}

// WithLogger sets the logger of the connections and of Declare.
//
// Default: nothing is logged.
func WithLogger(logger watermill.LoggerAdapter) Option {
	return func(o *options) error {
		if logger == nil {
			return errors.New("WithLogger: the logger is nil")
		}
		o.logger = logger
		return nil
	}
}

// WithName sets the name of the connections on the broker's management page: "<name>: millpond
// operator". A connection_name in WithAMQP's Properties goes before it.
//
// Default: the name of the program.
func WithName(name string) Option {
	return func(o *options) error {
		o.name = name
		return nil
	}
}

// WithBrokers names further nodes of the same cluster by their URLs: each is tried in turn, after
// the URL of Open. They must name the same vhost.
//
// Default: the URL of Open alone.
func WithBrokers(urls ...string) Option {
	return func(o *options) error {
		for i, u := range urls {
			if err := link.CheckURL(u); err != nil {
				return fmt.Errorf("WithBrokers: url %d: %w", i+1, err)
			}
		}
		o.brokers = append(o.brokers, urls...)
		return nil
	}
}

// WithCredentials asks for user and password before each connect. An error is a connect that
// failed. The function is called from several goroutines and should heed its context.
//
// Default: the user and the password of the URL, or WithAMQP's SASL.
func WithCredentials(ask func(ctx context.Context) (user, password string, err error)) Option {
	return func(o *options) error {
		if ask == nil {
			return errors.New("WithCredentials: the function is nil")
		}
		o.credentials = ask
		return nil
	}
}

// WithAMQP sets amqp091-go's configuration: TLSClientConfig, SASL, Vhost, Heartbeat and so on. It
// is not written to.
//
// Default: amqp091-go's own, with the vhost of the URL.
func WithAMQP(config amqp.Config) Option {
	return func(o *options) error {
		o.amqp = &config
		return nil
	}
}

// WithPreProvisioned declares nothing, because the user may not declare: Declare names the missing
// queues and exchanges, and Verify compares arguments only where the management API shows them.
//
// Default: Declare declares, and Verify compares by declaring what exists.
func WithPreProvisioned() Option {
	return func(o *options) error {
		o.provisioned = true
		return nil
	}
}

// Open connects to the broker at url, amqp or amqps, within ctx or 10 s, and declares nothing. The
// error names every problem at once and never quotes a password.
func Open(ctx context.Context, url string, opts ...Option) (*Operator, error) {
	o := &Operator{}
	err := o.configure(url, opts)
	if err == nil {
		err = o.dial(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("open millpond operator: %w", err)
	}
	return o, nil
}

// dial opens the connection of the Operator.
func (o *Operator) dial(ctx context.Context) error {
	l, err := link.Open(ctx, o.link)
	if err != nil {
		return withWayOut(err)
	}
	o.publisher = publisher.New(l, publisher.Config{
		Timeout: confirmTimeout, NonceHeader: keys.Publish,
	})
	return nil
}

// configure checks URL and options.
func (o *Operator) configure(url string, opts []Option) (err error) {
	o.opts = options{logger: watermill.NopLogger{}, name: filepath.Base(os.Args[0])}
	problems := []error{link.CheckURL(url)}
	for i, option := range opts {
		if option == nil {
			problems = append(problems, fmt.Errorf("option %d is nil", i+1))
			continue
		}
		problems = append(problems, option(&o.opts))
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	o.link = link.Config{
		URL: url, More: o.opts.brokers, Credentials: o.opts.credentials, AMQP: o.opts.amqp,
		Cluster: new(link.Cluster), Unreadable: keys.Unreadable, Logger: o.opts.logger,
		Name:           o.opts.name + ": millpond operator",
		ConnectTimeout: confirmTimeout,
		WriteTimeout:   confirmTimeout,
		Reconnect: link.Backoff{
			Initial: 500 * time.Millisecond, Max: time.Minute, Multiplier: 1.5, Randomization: 0.5,
		},
	}
	if o.vhost, err = o.link.Vhost(); err != nil {
		return err
	}
	for _, u := range o.opts.brokers {
		node := o.link
		node.URL = u
		vhost, err := node.Vhost()
		if err == nil && vhost != o.vhost {
			const text = "WithBrokers names vhost %q, and the URL vhost %q: use the same vhost"
			err = fmt.Errorf(text, vhost, o.vhost)
		}
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// withWayOut adds to an error of a connect what can be done about it.
func withWayOut(err error) error {
	var network *net.OpError
	switch {
	case audit.IsCode(err, amqp.AccessRefused):
		return fmt.Errorf("the user may not: check its password and its rights in the vhost: %w", err)
	case errors.As(err, &network) && network.Op == "dial":
		return fmt.Errorf("the broker cannot be reached: "+
			"start it or correct the address, and try again, because Open does not retry: %w", err)
	}
	return err
}

// Close ends the publishing connection within seconds, even if the broker does not answer. Calls
// under way end by themselves; later calls return topology.ErrClosed.
func (o *Operator) Close() error {
	o.closed.Store(true)
	o.publisher.Close()
	return nil
}

// connect opens the connection of one call.
func (o *Operator) connect(ctx context.Context) (*link.Conn, func(), error) {
	if o.closed.Load() {
		return nil, nil, topology.ErrClosed
	}
	l, err := link.Open(ctx, o.link)
	if err != nil {
		return nil, nil, err
	}
	conn, err := l.Conn(ctx)
	if err != nil {
		l.Close()
		return nil, nil, err
	}
	return conn, l.Close, nil
}

// call runs f with a connection, for at most callTimeout.
func (o *Operator) call(ctx context.Context, f func(context.Context, *link.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, end, err := o.connect(ctx)
	if err != nil {
		return err
	}
	defer end()
	return f(ctx, conn)
}

// manager returns nil where no management API is configured.
func (o *Operator) manager(ctx context.Context) *policies.Manager {
	return policies.NewManager(ctx, o.opts.management, o.link)
}

// Declare declares what plan needs. It changes nothing that exists: where something has other
// arguments the error is a *topology.ConflictError, except for a dead-letter queue, which is used
// unchanged. The plan's own queue is the user's and is not declared; a plan with a binding to it
// (Shared) needs it to exist. A plan that topology.ValidatePlan refuses is not declared, unless it
// holds nothing but queues that keep messages. It ends within ctx, and after 90 s at the latest.
// With WithPreProvisioned nothing is declared, and the error names the missing
// queues and exchanges.
func (o *Operator) Declare(ctx context.Context, plan topology.Plan) error {
	if err := topology.ValidatePlan(plan); err != nil && !onlyKeeps(plan) {
		return fmt.Errorf("declare: %w", err)
	}
	err := o.call(ctx, func(ctx context.Context, conn *link.Conn) error {
		if !o.opts.provisioned {
			return plan.Declare(ctx, conn.Do, o.opts.logger)
		}
		return plan.CheckExists(ctx, conn.Do)
	})
	if err != nil {
		return fmt.Errorf("declare plan of queue %q: %w", plan.Queue, err)
	}
	return nil
}

// onlyKeeps reports whether the plan declares queues that keep messages, and nothing else.
func onlyKeeps(p topology.Plan) bool {
	for _, q := range p.Queues {
		if q.Delay > 0 {
			return false
		}
	}
	return p.Queue != "" && len(p.Queues) > 0 && p.Via == nil &&
		p.Dead.Exchange == "" && p.Dead.RoutingKey == "" &&
		p.Levels == nil && len(p.Exchanges)+len(p.Bindings)+len(p.WaitSteps) == 0
}

// publish publishes msg, mandatory, and returns nil when the broker has confirmed it and a queue
// took it. After topology.ErrOutcomeUnknown there may be a copy, after any other error there is
// none. Where no queue takes the message, the error is topology.ErrUnroutable.
func (o *Operator) publish(ctx context.Context, exchange, key string, msg amqp.Publishing) error {
	wait, err := o.startPublish(ctx, exchange, key, msg)
	if err == nil {
		err = wait()
	}
	return err
}

// startPublish returns when msg is written, and wait when the broker has answered. wait must be
// called once. At most 200 publishes are under way at once: a goroutine that starts more before it
// calls the first wait gets an error.
func (o *Operator) startPublish(
	ctx context.Context, exchange, key string, msg amqp.Publishing,
) (wait func() error, err error) {
	confirmed, err := o.publisher.Start(ctx, exchange, key, msg)
	if err != nil {
		return nil, publishError(err)
	}
	return func() error { return publishError(confirmed()) }, nil
}

func publishError(err error) error {
	var returned *publisher.ReturnedError
	switch {
	case errors.As(err, &returned), audit.IsCode(err, amqp.NotFound):
		return fmt.Errorf("%w: %w", topology.ErrUnroutable, err)
	case errors.Is(err, publisher.ErrClosed):
		return fmt.Errorf("%w: %w", topology.ErrClosed, err)
	}
	return err
}
