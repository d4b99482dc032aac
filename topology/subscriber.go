package topology

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
)

// Subscriber consumes queues for Watermill. Every message it hands out can be
// republished by the Client that made it, as it arrived.
//
// One message at a time is in progress for each Subscribe, in the order of the
// queue, or as many as WithConcurrency says, in no order. An ack acks the delivery. A nack never requeues at once: the message is set aside for at least
// a second with its counts unchanged, so that nothing spins (on RabbitMQ 4.0
// twenty requeues drop a message, broker fact F2); only at shutdown, or where
// that cannot be confirmed, it goes back to its queue. A message that cannot be
// decoded is dead-lettered untouched.
//
// The context of a message carries the values of the one given to Subscribe. It
// is done when the message is settled, when its connection is lost, and when
// Close has waited long enough; not already when Close is called.
type Subscriber struct {
	client *Client
	cfg    consumeConfig
	opts   subscriberOptions
	link   *link.Link
	frame  int // the largest frame both connections take

	stop     context.Context // done once closing began
	stopping context.CancelFunc

	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup // subscriptions
	done   chan struct{}
}

var (
	_ message.Subscriber           = (*Subscriber)(nil)
	_ message.SubscribeInitializer = (*Subscriber)(nil)
)

// consumeConfig is what a Subscriber needs of watermill-amqp's Config.
type consumeConfig struct {
	link      link.Config
	queueName func(topic string) string
	queueArgs amqp.Table
	// build declares the user's queue, its exchange and binding.
	build     func(ch *amqp.Channel, topic, queue string) error
	unmarshal func(amqp.Delivery) (*message.Message, error)
	prefetch  int
	consumer  string
	exclusive bool
	noLocal   bool
	arguments amqp.Table
}

func (c *Client) newSubscriber(cfg consumeConfig, problems error, options []SubscriberOption) (*Subscriber, error) {
	opts := subscriberOptions{
		drainTimeout: defaultDrainTimeout, concurrency: 1, handlerWarning: defaultHandlerWarning, timestamps: defaultTimestamps,
	}
	problems = errors.Join(problems, c.checkArguments(cfg.queueArgs), apply(&opts, options), link.CheckURL(cfg.link.URL))
	if problems == nil {
		problems = checkVhosts(c.linkCfg, cfg.link, "Connection")
	}
	if problems != nil {
		return nil, fmt.Errorf("new subscriber: %w", problems)
	}

	cfg.link.Name = c.opts.name + ": millpond subscriber"
	cfg.link.Logger = c.opts.logger
	cfg.link.ConnectTimeout, cfg.link.WriteTimeout = c.opts.connectTimeout, c.opts.confirmTimeout
	ctx, cancel := context.WithTimeout(context.Background(), cfg.link.ConnectTimeout)
	defer cancel()
	l, err := link.Open(ctx, cfg.link)
	if err != nil {
		return nil, fmt.Errorf("new subscriber: %w", withWayOut(err))
	}
	frame, err := negotiatedFrame(ctx, l)
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("new subscriber: %w", err)
	}
	stop, stopping := context.WithCancel(context.Background())
	s := &Subscriber{
		client: c, cfg: cfg, opts: opts, link: l, frame: min(frame, c.frame),
		stop: stop, stopping: stopping, done: make(chan struct{}),
	}
	c.mu.Lock()
	closed := c.closed
	if !closed {
		c.subscribers[s] = struct{}{}
	}
	c.mu.Unlock()
	if closed {
		l.Close()
		return nil, fmt.Errorf("new subscriber: client: %w", ErrClosed)
	}
	return s, nil
}

// checkVhosts compares the vhosts that two connections open: a message that waits
// in another vhost would never come back.
func checkVhosts(client, other link.Config, what string) error {
	a, err := client.Vhost()
	if err != nil {
		return err
	}
	b, err := other.Vhost()
	if err != nil {
		return err
	}
	if a != b {
		return fmt.Errorf("%s names vhost %q, the client retries in vhost %q: use the same in AmqpURI and AmqpConfig.Vhost, which goes before it", what, b, a)
	}
	return nil
}

// plan returns the plan for a queue.
func (c *Client) plan(queue string, opts subscriberOptions) (Plan, error) {
	return planWith(c.strategy, queue, opts)
}

// Subscribe declares what the queue of topic needs, consumes it and returns its
// messages. The channel is closed after Close, or when ctx is done and the
// messages in progress are settled. A lost connection is made again, and
// everything declared again before consuming goes on.
//
// Errors: ErrClosed; a name that is empty or too long, and frames that are too
// small for the plan, reported before anything is declared; *ConflictError; a queue
// that is a stream or has arguments under which messages vanish (x-expires, a TTL or a
// length without a dead-letter exchange, a delivery limit of 0), whoever has declared
// it; whatever else the broker refuses.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	sub, err := s.newSubscription(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("subscribe to topic %q: %w", topic, err)
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		sub.cancel()
		return nil, fmt.Errorf("subscribe to topic %q: subscriber: %w", topic, ErrClosed)
	}
	s.wg.Add(1)
	s.mu.Unlock()

	consumer, err := sub.begin(false)
	if err != nil {
		sub.cancel()
		s.wg.Done()
		return nil, fmt.Errorf("subscribe to topic %q: %w", topic, err)
	}
	s.client.watchStranded(sub.plan)
	go func() {
		defer s.wg.Done()
		sub.run(consumer)
	}()
	return sub.out, nil
}

// SubscribeInitialize declares what Subscribe would declare.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	sub, err := s.newSubscription(context.Background(), topic)
	if err != nil {
		return fmt.Errorf("initialize topic %q: %w", topic, err)
	}
	defer sub.cancel()
	ctx, cancel := context.WithTimeout(sub.stop, declareTimeout)
	defer cancel()
	conn, err := s.link.Conn(ctx)
	if err == nil {
		err = sub.declare(ctx, conn)
	}
	if err != nil {
		return fmt.Errorf("initialize topic %q: %w", topic, err)
	}
	return nil
}

// Close stops consuming, waits until the messages in progress are settled, for
// at most the drain timeout, gives back the rest and ends the connection. It
// returns a few seconds after the drain timeout at the latest, whatever the
// broker does. Further calls wait for the first.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	if !first {
		<-s.done
		return nil
	}
	s.stopping()
	s.wg.Wait()
	s.link.Close()
	s.client.forget(s)
	close(s.done)
	return nil
}

// warnings names what is allowed but should be known.
func (s *Subscriber) warnings(topic string, plan Plan, logger watermill.LoggerAdapter) {
	if again := s.cfg.queueName(topic); again != plan.Queue {
		logger.Info("Warning: the queue's name changes with every call; what waits for it is held or lost when the process is gone", nil)
	}
	if r := plan.Via; r != nil {
		logger.Info("Warning: retries return through an exchange: every other queue bound there for the routing key gets each of them too, as a new message, which watermill-amqp's own Subscriber cannot decode",
			watermill.LogFields{"exchange": r.Exchange})
	}
}

// sleep waits for d or until ctx is done, and reports whether it is not.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
