package topology

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/consumer"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/nils"
	"github.com/millpond-go/millpond/internal/observe"
	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/seam"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// Client hands failed messages over to RabbitMQ and makes the Subscribers that they come from. It
// has its own connection for publishing and keeps it alive until Close. Many goroutines may call
// its methods.
type Client struct {
	strategy  Strategy
	opts      clientOptions
	linkCfg   link.Config
	link      *link.Link // the publishing connection
	publisher *publisher.Publisher
	group     consumer.Group
	frame     int // the largest frame of the publishing connection

	stop     context.Context // done once closing began
	stopping context.CancelFunc
	watches  sync.WaitGroup // goroutines that look at stranded queues

	mu          sync.Mutex
	closed      bool
	watched     map[string]bool // stranded queues
	warned      map[string]string
	planned     map[string]bool // queues of the plans so far
	subscribers map[*Subscriber]struct{}
	publishers  map[*Publisher]struct{}
}

var _ middleware.Republisher = (*Client)(nil)

// open is Open without watermill-amqp's types.
func open(
	ctx context.Context, cfg link.Config, strategy Strategy, options []Option,
) (*Client, error) {
	opts := clientOptions{
		logger:         watermill.NopLogger{},
		confirmTimeout: defaultConfirmTimeout,
		strandedPause:  strandedPause,
		connectTimeout: defaultConnectTimeout,
		name:           filepath.Base(os.Args[0]),
	}
	problems := []error{apply(&opts, options), link.CheckURL(cfg.URL)}
	if nils.Is(strategy) {
		problems = append(problems, errors.New("strategy is nil: use topology.PerQueue{}"))
	} else if v, ok := strategy.(interface{ Validate() error }); ok {
		if err := v.Validate(); err != nil {
			problems = append(problems, fmt.Errorf("strategy: %w", err))
		}
	}
	if errors.Join(problems...) == nil {
		for _, u := range opts.brokers {
			node := cfg
			node.URL = u
			problems = append(problems, checkVhosts(cfg, node, "WithBrokers"))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("open millpond client: %w", err)
	}
	cfg.More, cfg.Credentials = opts.brokers, opts.credentials
	if !opts.anyCluster {
		cfg.Cluster = new(link.Cluster)
	}

	cfg.Logger, cfg.Unreadable = opts.logger, keys.Unreadable
	cfg.ConnectTimeout, cfg.WriteTimeout = opts.connectTimeout, opts.confirmTimeout
	publishing := cfg
	publishing.Name = opts.name + ": millpond retries"
	l, err := link.Open(ctx, publishing)
	if err != nil {
		return nil, fmt.Errorf("open millpond client: %w", withWayOut(err))
	}
	frame, err := negotiatedFrame(ctx, l)
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("open millpond client: %w", err)
	}
	stop, stopping := context.WithCancel(context.Background())
	publishes := publisher.New(l, publisher.Config{
		Timeout:     opts.confirmTimeout,
		NonceHeader: keys.Publish,
	})
	return &Client{
		stop: stop, stopping: stopping, watched: make(map[string]bool),
		warned:    make(map[string]string),
		planned:   make(map[string]bool),
		frame:     frame,
		strategy:  strategy,
		opts:      opts,
		linkCfg:   cfg,
		link:      l,
		publisher: publishes,
		group: consumer.Group{
			Publisher: publishes, ConfirmTimeout: opts.confirmTimeout,
			Observers: newObservers(opts.observers, opts.logger),
		},
		subscribers: make(map[*Subscriber]struct{}),
		publishers:  make(map[*Publisher]struct{}),
	}, nil
}

// warns reports whether there is news to warn of about a queue. All Subscriptions of a queue warn
// once.
func (c *Client) warns(queue, about, found string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	said := c.warned[about+" "+queue]
	c.warned[about+" "+queue] = found
	return said != found
}

// manyQueues is a number of queues that a broker feels: each quorum queue is a process with a log.
const manyQueues = 200

// countQueues warns once when the plans of this client have many queues.
func (c *Client) countQueues(plan Plan) {
	c.mu.Lock()
	before := len(c.planned)
	for _, q := range plan.Queues {
		c.planned[q.Name] = true
	}
	n := len(c.planned)
	c.mu.Unlock()
	if before <= manyQueues && n > manyQueues {
		c.opts.logger.Error("Warning: the Subscribers of this client need many queues: use "+
			"topology.Shared, whose wait queues serve all queues, give handlers the same delays, or name "+
			"Queue or Topic in the Selector of a policy", seam.ErrNotYet,
			watermill.LogFields{"queues": n, "many": manyQueues})
	}
}

// Republish implements middleware.Republisher: it publishes the delivery behind msg as it
// arrived, with the retry state in its headers, to a wait queue of at least delay, and
// returns nil when the broker has confirmed it. A delay that no wait step covers waits in
// rounds that cost no attempt. A wait queue that has vanished is declared again.
//
// After the first failure a delay of 0 leads straight to the tail of the queue. If the queue
// refuses the copy, and after any other failure, 0 takes the shortest wait step.
//
// The error is middleware.ErrNotDelivered if msg did not come from a Subscriber of this
// client.
func (c *Client) Republish(
	ctx context.Context, msg *message.Message, delay time.Duration, state header.RetryState,
) (middleware.Republished, error) {
	return c.group.Republish(ctx, msg, delay, state)
}

// DeadLetter implements middleware.Republisher: it publishes the delivery behind msg as it
// arrived, with the history and the reason in its headers, to the dead-letter queue, and
// returns nil when the broker has confirmed it.
//
// The error is middleware.ErrNotDelivered if msg did not come from a Subscriber of this
// client.
func (c *Client) DeadLetter(
	ctx context.Context, msg *message.Message, state header.RetryState,
) error {
	return c.group.DeadLetter(ctx, msg, state)
}

// observersWith returns the observers of the Client and of the DelayedRetries; nil if there are
// none.
func (c *Client) observersWith(retries []seam.Retry) *observe.List[middleware.Event] {
	all := c.opts.observers
	for _, r := range retries {
		all = observe.Union(all, r.Observers.([]middleware.Observer))
	}
	if len(all) == len(c.opts.observers) {
		return c.group.Observers
	}
	return newObservers(all, c.opts.logger)
}

// newObservers returns nil if there is no observer.
func newObservers(
	observers []middleware.Observer, logger watermill.LoggerAdapter,
) *observe.List[middleware.Event] {
	var tell []func(context.Context, middleware.Event)
	for _, o := range observers {
		tell = append(tell, o.Observe)
	}
	return observe.NewList(func(value any) {
		logger.Error("Observer panicked", nil, watermill.LogFields{"value": fmt.Sprintf("%.512v",
			value)})
	}, tell...)
}

func init() {
	seam.ClientOf = func(republisher any) (parts seam.Client, ok bool) {
		c, ok := republisher.(interface{ parts() seam.Client }) // a struct that embeds a Client has it
		if ok {
			parts = c.parts()
		}
		return parts, ok
	}
}

// parts are for middleware.NewDelayedRetry.
func (c *Client) parts() seam.Client {
	return seam.Client{Logger: c.opts.logger, Observers: c.opts.observers}
}

// Healthy returns nil while retries can be handed over, else the error that prevents it. It does
// not talk to the broker, so it may serve a readiness probe.
func (c *Client) Healthy() error {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return ErrClosed
	}
	return c.publisher.Healthy()
}

// Close closes the open Subscribers, which waits for the messages in progress, then the Publishers
// and the connection. It is bounded in time even if the broker does not answer, and leaves no
// goroutine.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	subscribers := make([]*Subscriber, 0, len(c.subscribers))
	for s := range c.subscribers {
		subscribers = append(subscribers, s)
	}
	publishers := slices.Collect(maps.Keys(c.publishers))
	c.mu.Unlock()
	c.stopping()

	var wg sync.WaitGroup
	for _, s := range subscribers {
		wg.Go(func() { _ = s.Close() }) // never fails
	}
	wg.Wait()
	for _, p := range publishers {
		_ = p.Close() // never fails
	}
	c.watches.Wait()
	c.publisher.Close()
	return nil
}

func (c *Client) forget(s *Subscriber) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.subscribers, s)
}

const (
	// strandedPause is the time between two looks at a stranded queue.
	strandedPause = 30 * time.Second
	// strandedTimeout bounds each look.
	strandedTimeout = 10 * time.Second
)

// errStranded is the error of the log line about messages in a stranded queue.
var errStranded = errors.New("messages whose wait was over found no way to their queue")

// watchStranded looks at the stranded queues of a plan until the client is closed. One goroutine
// looks at each queue, for any number of subscriptions.
func (c *Client) watchStranded(plan Plan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range plan.Audited().Members() {
		if m.Role != audit.RoleStranded || c.closed || c.watched[m.Name] {
			continue
		}
		c.watched[m.Name] = true
		c.watches.Go(func() { c.lookForStranded(m.Name) })
	}
}

// lookForStranded logs when a stranded queue has more messages than at the two looks before, and
// tells the observers of each change. It does neither while the broker is away, and ends if the
// user may not look: from RabbitMQ 4.3 on that takes the configure permission (F24).
func (c *Client) lookForStranded(queue string) {
	known, before := 0, 0
	for more := true; more; more = consumer.Sleep(c.stop, c.opts.strandedPause) {
		if c.publisher.Healthy() != nil {
			continue // during an alarm, for example, the broker does not read the question
		}
		ctx, cancel := context.WithTimeout(c.stop, strandedTimeout)
		found, err := audit.Passive(ctx, c.publisher.Do, queue)
		cancel()
		switch {
		case isCode(err, amqp.AccessRefused):
			c.opts.logger.Error("Warning: the user may not look at the stranded queue, so stranded "+
				"messages are not logged: grant the configure permission for the queue, or watch its depth",
				seam.ErrNotYet,
				watermill.LogFields{"queue": queue, "err": err.Error()})
			return
		case err != nil:
			continue
		case found.Messages > known:
			c.opts.logger.Error("Messages are stranded: their queue or its binding was deleted while "+
				"they waited, or a policy with dead-letter-routing-key has changed their routing key; find "+
				"the cause with rabbitmqctl list_policies and list_bindings, correct it, and move the "+
				"messages to the queue that their header millpond-queue names",
				errStranded,
				watermill.LogFields{"queue": queue, "messages": found.Messages})
		}
		if e := c.group.Observers; e != nil && found.Messages != before {
			e.Tell(c.stop, middleware.Event{
				Kind: middleware.EventStranded, At: time.Now(), Queue: queue, Messages: found.Messages,
			})
		}
		// An operator who looks at the messages empties the queue for a moment.
		known, before = max(before, found.Messages), found.Messages
	}
}
