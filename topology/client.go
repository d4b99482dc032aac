package topology

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/observe"
	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// Client hands failed messages over to RabbitMQ and makes the Subscribers that
// they came from. It has a connection of its own for publishing and keeps it
// alive until Close. Its methods may be called from many goroutines.
type Client struct {
	strategy  Strategy
	opts      clientOptions
	linkCfg   link.Config
	publisher *publisher.Publisher
	guard     guard
	turns     turns
	frame     int                             // the largest the publishing connection takes
	observers *observe.List[middleware.Event] // nil if nobody observes

	stop     context.Context // done once closing began
	stopping context.CancelFunc
	watches  sync.WaitGroup // goroutines that look at stranded queues

	mu          sync.Mutex
	closed      bool
	watched     map[string]bool // stranded queues
	subscribers map[*Subscriber]struct{}
	publishers  map[*Publisher]struct{}
}

var _ middleware.Republisher = (*Client)(nil)

// open is Open behind the adapter for watermill-amqp's configuration.
func open(ctx context.Context, cfg link.Config, strategy Strategy, options []Option) (*Client, error) {
	opts := clientOptions{
		logger:         watermill.NopLogger{},
		confirmTimeout: defaultConfirmTimeout,
		strandedPause:  strandedPause,
		connectTimeout: defaultConnectTimeout,
		name:           filepath.Base(os.Args[0]),
	}
	problems := []error{apply(&opts, options), link.CheckURL(cfg.URL)}
	if v := reflect.ValueOf(strategy); strategy == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		problems = append(problems, errors.New("strategy is nil: use topology.PerQueue{}"))
	} else if c, ok := strategy.(checker); ok {
		if err := c.check(); err != nil {
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

	cfg.Logger, cfg.Unreadable = opts.logger, header.Unreadable
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
	return &Client{
		stop: stop, stopping: stopping, watched: make(map[string]bool),
		frame:       frame,
		observers:   newObservers(opts),
		strategy:    strategy,
		opts:        opts,
		linkCfg:     cfg,
		publisher:   publisher.New(l, publisher.Config{Timeout: opts.confirmTimeout, NonceHeader: header.Publish}),
		subscribers: make(map[*Subscriber]struct{}),
		publishers:  make(map[*Publisher]struct{}),
	}, nil
}

// Republish implements middleware.Republisher: it publishes the delivery behind
// msg as it arrived, with notes beside its headers, to a wait queue of at least
// delay, and returns nil when the broker has confirmed it. A delay that no wait step
// covers waits in rounds that cost no attempt. A wait queue that has vanished is
// declared again.
//
// The error is middleware.ErrNotDelivered where msg did not come from a
// Subscriber of this client.
func (c *Client) Republish(
	ctx context.Context, msg *message.Message, delay time.Duration, notes header.RetryState,
) (middleware.Republished, error) {
	d, err := c.delivery(ctx, msg)
	if err != nil {
		return middleware.Republished{}, fmt.Errorf("republish: %w", err)
	}
	if err := d.republish(ctx, delay, &notes); err != nil {
		return middleware.Republished{}, fmt.Errorf("republish message of queue %q: %w", d.plan().Queue, err)
	}
	d.sub.rounding.note(d.sub, delay)
	return d.republished, nil
}

// DeadLetter implements middleware.Republisher: it publishes the delivery
// behind msg as it arrived, with the history and the reason beside its headers,
// to the dead-letter queue, and returns nil when the broker has confirmed it.
//
// The error is middleware.ErrNotDelivered where msg did not come from a
// Subscriber of this client.
func (c *Client) DeadLetter(ctx context.Context, msg *message.Message, notes header.RetryState) error {
	d, err := c.delivery(ctx, msg)
	if err != nil {
		return fmt.Errorf("dead-letter: %w", err)
	}
	if err := d.deadLetter(ctx, notes); err != nil {
		return fmt.Errorf("dead-letter message of queue %q: %w", d.plan().Queue, err)
	}
	return nil
}

func (c *Client) delivery(ctx context.Context, msg *message.Message) (*delivery, error) {
	if attached := middleware.DeliveryOf(ctx, msg); attached != nil {
		if d, ok := attached.Source.(*delivery); ok && d.sub.subscriber.client == c {
			return d, nil
		}
	}
	return nil, middleware.ErrNotDelivered
}

// Healthy returns nil while retries can be handed over, else what is in the way.
// It does not talk to the broker, so it may serve a readiness probe.
func (c *Client) Healthy() error {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return ErrClosed
	}
	return c.publisher.Healthy()
}

// Close closes the subscribers that are still open, which waits for the
// messages in progress, then the publishers and the connection. It is bounded in time whatever the
// broker does, and leaves no goroutine.
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
