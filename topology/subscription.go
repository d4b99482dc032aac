package topology

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/link"
)

const (
	// declareTimeout bounds all that happens before consuming begins. A broker
	// may take a minute to say that a queue is out of reach (F18).
	declareTimeout = 90 * time.Second
	// goodbyeTimeout bounds each request to a broker that is being left.
	goodbyeTimeout = 2 * time.Second
	// resumePause is before the first try to consume again; it doubles with each
	// failure up to maxResumePause.
	resumePause    = 500 * time.Millisecond
	maxResumePause = 5 * time.Second
)

// subscription is one Subscribe, across any number of connections.
type subscription struct {
	subscriber *Subscriber
	topic      string
	plan       Plan
	out        chan *message.Message
	logger     watermill.LoggerAdapter

	stop   context.Context // done: take no further message
	base   context.Context // done: draining is over; parent of every message's context
	cancel context.CancelFunc

	slots   chan struct{}  // one for each message in progress
	wg      sync.WaitGroup // messages in progress and channels being closed
	workers *workers

	outage  outage
	timeout atomic.Int64                // the broker's consumer timeout, once it has struck
	facts   atomic.Pointer[audit.Facts] // nil until the queue was declared or found
	warned  string                      // what was last said about the facts
	ruled   string                      // what was last said about policies

	inHand inHand
	rounds sync.Once // said that a delay is longer than all wait queues

	given    func(asked time.Duration) time.Duration // the plan's, made once
	rounding rounding
	lowered  sync.Once // said that a message waits with a lower priority
	misled   sync.Once // said that a routing key was changed on the way back
}

// consumer is one channel that consumes, until it is cancelled or lost.
type consumer struct {
	conn       *link.Conn
	ch         *amqp.Channel
	tag        string
	deliveries <-chan amqp.Delivery
	ctx        context.Context // done when the channel is closed
	inFlight   sync.WaitGroup

	counts    bool          // giving a delivery back raises its count on a quorum queue
	limit     int           // the delivery limit of the queue
	hold      time.Duration // how long a delivery may be held, from its arrival
	probing   bool          // consumes one message at a time, after an outage
	enough    chan struct{} // closed when nothing more may be received
	enoughNow func()        // closes enough
	cancelled chan struct{} // closed when the broker delivers nothing more
	ended     bool          // by the broker, or with its channel
}

func (s *Subscriber) newSubscription(ctx context.Context, topic string) (*subscription, error) {
	queue := s.cfg.queueName(topic)
	plan, err := s.client.plan(queue, s.opts)
	if err != nil {
		return nil, err
	}
	if err := checkFrame(s.frame, plan); err != nil {
		return nil, err
	}
	logger := s.client.opts.logger.With(watermill.LogFields{"topic": topic, "queue": queue})
	s.warnings(topic, plan, logger)

	stop, cancelStop := context.WithCancel(ctx)
	unlink := context.AfterFunc(s.stop, cancelStop)
	base, cancelBase := context.WithCancel(context.WithoutCancel(ctx))
	created := &subscription{
		subscriber: s, topic: topic, plan: plan,
		out:    make(chan *message.Message),
		logger: logger,
		stop:   stop, base: base,
		cancel: func() { unlink(); cancelStop(); cancelBase() },
		slots:  make(chan struct{}, s.opts.concurrency),
		inHand: inHand{have: map[*delivery]held{}},
		given:  plan.waits,
	}
	created.workers = newWorkers(created.take)
	return created, nil
}

// begin declares everything and consumes. A consumer that probes is sent one
// message at a time.
func (s *subscription) begin(probing bool) (*consumer, error) {
	ctx, cancel := context.WithTimeout(s.stop, declareTimeout)
	defer cancel()
	conn, err := s.subscriber.link.Conn(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.declare(ctx, conn); err != nil {
		return nil, err
	}

	type result struct {
		consumer *consumer
		err      error
	}
	opened := make(chan result, 1)
	go func() {
		c, err := s.consume(conn, probing)
		opened <- result{c, err}
	}()
	select {
	case r := <-opened:
		return r.consumer, r.err
	case <-ctx.Done():
		// A consumer that nobody reads would keep its messages to itself.
		go func() {
			if r := <-opened; r.err == nil {
				_ = r.consumer.ch.Close()
			}
		}()
		return nil, fmt.Errorf("consume queue %q: %w", s.plan.Queue, context.Cause(ctx))
	}
}

func (s *subscription) declare(ctx context.Context, conn *link.Conn) error {
	if s.subscriber.client.opts.provisioned {
		if err := checkExists(ctx, conn.Do, s.plan); err != nil {
			return err
		}
		return s.learn(ctx, conn)
	}
	err := conn.Do(ctx, func(ch *amqp.Channel) error {
		return s.subscriber.cfg.build(ch, s.topic, s.plan.Queue)
	})
	if err != nil {
		return configuredError("queue", s.plan.Queue, s.subscriber.cfg.queueArgs, err)
	}
	if err := s.learn(ctx, conn); err != nil {
		return err
	}
	return declare(ctx, conn.Do, s.plan, s.logger)
}

func (s *subscription) consume(conn *link.Conn, probing bool) (*consumer, error) {
	cfg := s.subscriber.cfg
	prefetch := max(cfg.prefetch, s.subscriber.opts.concurrency)
	if probing {
		prefetch = 1
	}
	ch, err := conn.Channel()
	if err != nil {
		return nil, fmt.Errorf("consume queue %q: open channel: %w", s.plan.Queue, err)
	}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	// A consumer per channel makes a global prefetch the same as one of its own,
	// which quorum queues refuse (F14).
	err = ch.Qos(prefetch, 0, false)
	tag := cfg.consumer
	if tag == "" {
		tag = "millpond-" + watermill.NewShortUUID()
	}
	var deliveries <-chan amqp.Delivery
	if err == nil {
		deliveries, err = ch.Consume(s.plan.Queue, tag, false, cfg.exclusive, cfg.noLocal, false, cfg.arguments)
	}
	if err != nil {
		_ = ch.Close()
		return nil, fmt.Errorf("consume queue %q: %w", s.plan.Queue, withWayOut(err))
	}
	facts := s.facts.Load()
	limit, _ := facts.DeliveryLimit()
	ctx, cancel := context.WithCancel(s.base)
	enough := make(chan struct{})
	c := &consumer{
		conn: conn, ch: ch, tag: tag, deliveries: deliveries, ctx: ctx,
		counts: !facts.Version.AtLeast(4, 3), limit: limit, hold: s.hold(facts),
		probing: probing, enough: enough, enoughNow: sync.OnceFunc(func() { close(enough) }),
		cancelled: make(chan struct{}),
	}
	go func() {
		s.endedBy(c, <-closed)
		cancel()
	}()
	s.logger.Info("Consuming", nil)
	return c, nil
}

// settle says ack or nack, in one system call with what others say at the same time.
func (c *consumer) settle(say func() error) (err error) {
	c.conn.Together(func() { err = say() })
	return err
}

// run consumes until the subscription is stopped, and drains it.
func (s *subscription) run(c *consumer) {
	defer close(s.out)
	defer s.cancel()
	defer s.workers.end()
	defer s.watchHandlers()()
	for c != nil {
		s.release(c, s.receive(c))
		c = s.resume(s.awaitHandOver())
	}

	settled := make(chan struct{})
	go func() {
		defer close(settled)
		s.wg.Wait()
	}()
	select {
	case <-settled:
	case <-time.After(s.subscriber.opts.drainTimeout):
		s.logger.Info("Messages in progress did not end in time; they go back to their queue", nil)
		s.cancel() // first of all, so that whoever comes late publishes nothing
		<-settled
	}
	s.logger.Info("Stopped consuming", nil)
}

// resume consumes again and tries until it works. It returns nil when the
// subscription is stopped.
func (s *subscription) resume(probing bool) *consumer {
	for pause := resumePause; sleep(s.stop, pause); pause = min(2*pause, maxResumePause) {
		c, err := s.begin(probing)
		if err == nil {
			return c
		}
		if s.stop.Err() == nil {
			s.logger.Error("Cannot consume, trying again", err, nil)
		}
	}
	return nil
}

// within waits for f, but no longer than limit, and reports whether f has
// returned. f ends with its connection.
func within(limit time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		return true
	case <-time.After(limit):
		return false
	}
}
