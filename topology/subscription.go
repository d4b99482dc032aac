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

	facts  atomic.Pointer[queueFacts] // nil until the queue was declared or found
	warned string                     // what was last said about the facts

	inHand inHand
	rounds sync.Once // said that a delay is longer than all wait queues
}

// consumer is one channel that consumes, until it is cancelled or lost.
type consumer struct {
	conn       *link.Conn
	ch         *amqp.Channel
	tag        string
	deliveries <-chan amqp.Delivery
	ctx        context.Context // done when the channel is closed
	inFlight   sync.WaitGroup
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
	}
	created.workers = newWorkers(created.take)
	return created, nil
}

// begin declares everything and consumes.
func (s *subscription) begin() (*consumer, error) {
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
		c, err := s.consume(conn)
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
		return declareError("queue", s.plan.Queue, s.subscriber.cfg.queueArgs, err)
	}
	if err := s.learn(ctx, conn); err != nil {
		return err
	}
	return declare(ctx, conn.Do, s.plan, s.logger)
}

func (s *subscription) consume(conn *link.Conn) (*consumer, error) {
	cfg := s.subscriber.cfg
	ch, err := conn.Channel()
	if err != nil {
		return nil, fmt.Errorf("consume queue %q: open channel: %w", s.plan.Queue, err)
	}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	// A consumer per channel makes a global prefetch the same as one of its own,
	// which quorum queues refuse (F14).
	err = ch.Qos(max(cfg.prefetch, s.subscriber.opts.concurrency), 0, false)
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
	ctx, cancel := context.WithCancel(s.base)
	go func() {
		<-closed
		cancel()
	}()
	s.logger.Info("Consuming", nil)
	return &consumer{conn: conn, ch: ch, tag: tag, deliveries: deliveries, ctx: ctx}, nil
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
		s.receive(c)
		s.release(c)
		c = s.resume()
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

// receive takes deliveries until the consumer ends or the subscription stops.
func (s *subscription) receive(c *consumer) {
	for {
		select {
		case s.slots <- struct{}{}:
		case <-s.stop.Done():
			return
		case <-c.ctx.Done():
			return
		}
		select {
		case raw, ok := <-c.deliveries:
			if !ok { // cancelled by the broker, for its queue is gone, or closed
				<-s.slots
				return
			}
			s.wg.Add(1)
			c.inFlight.Add(1)
			s.workers.give(task{c, raw, s.turnFor(&raw)})
		case <-s.stop.Done():
			<-s.slots
			return
		}
	}
}

// take takes one delivery to its end, and gives its place back when idle says
// that this goroutine can take the next one.
func (s *subscription) take(t task, idle func()) {
	returned := false
	defer func() {
		t.turn.leave()
		if returned { // a marshaler may have ended the goroutine
			idle()
		}
		<-s.slots
		t.from.inFlight.Done()
		s.wg.Done()
	}()
	s.process(t.from, t.raw, t.turn)
	returned = true
}

// release lets go of a consumer: what it has received but not begun goes back at
// once, and its channel is closed when the messages in progress are settled.
func (s *subscription) release(c *consumer) {
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		within(goodbyeTimeout, func() {
			_ = c.ch.Cancel(c.tag, false)
			for raw := range c.deliveries {
				_ = raw.Nack(false, true)
			}
		})
		c.inFlight.Wait()
		within(goodbyeTimeout, func() { _ = c.ch.Close() })
	}()
}

// resume consumes again, trying until it works; nil when the subscription is
// stopped.
func (s *subscription) resume() *consumer {
	for pause := resumePause; sleep(s.stop, pause); pause = min(2*pause, maxResumePause) {
		c, err := s.begin()
		if err == nil {
			return c
		}
		if s.stop.Err() == nil {
			s.logger.Error("Cannot consume, trying again", err, nil)
		}
	}
	return nil
}

// within waits for f, but no longer than limit; f ends with its connection.
func within(limit time.Duration, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(limit):
	}
}
