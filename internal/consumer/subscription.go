package consumer

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/seam"
)

const (
	// PrepareTimeout bounds everything that happens before consuming begins. A broker may
	// take a minute to say that a queue is out of reach (F18).
	PrepareTimeout = 90 * time.Second
	// goodbyeTimeout bounds each request to a broker when its channel ends.
	goodbyeTimeout = 2 * time.Second
	// resumePause is the pause before the first try to consume again. It doubles with each
	// failure up to maxResumePause.
	resumePause    = 500 * time.Millisecond
	maxResumePause = 5 * time.Second
)

// Subscription consumes one queue, across any number of connections.
type Subscription struct {
	cfg    Config
	logger watermill.LoggerAdapter
	out    chan *message.Message

	stop   context.Context // done: take no further message
	base   context.Context // done: draining is over; parent of every message's context
	cancel context.CancelFunc

	places  *places        // of the messages in progress
	wg      sync.WaitGroup // messages in progress and channels being closed
	workers *workers
	gate    seam.Gate
	limits  Limits // of the last consumer

	outage  outage
	timeout atomic.Int64 // the broker's consumer timeout, once it has ended a channel
	inHand  inHand

	slow     bool      // handlers are: the prefetch is as low as it can be until they keep up
	narrow   sync.Once // logged that the prefetch leaves no room for hand-overs
	rounding Rounding
	rounds   sync.Once // logged that a delay is longer than all wait queues
	lowered  sync.Once // logged that a message waits with a lower priority
	forgot   sync.Once // logged that no DelayedRetry has seen a message
	misled   sync.Once // logged that a routing key was changed during the wait
}

// New returns a Subscription that has not begun. It takes no further message when ctx or
// stop is done. Its messages have the values of ctx.
func New(ctx, stop context.Context, cfg Config) *Subscription {
	own, cancelStop := context.WithCancel(ctx)
	unlink := context.AfterFunc(stop, cancelStop)
	base, cancelBase := context.WithCancel(context.WithoutCancel(ctx))
	s := &Subscription{
		cfg: cfg, logger: cfg.Logger,
		out: make(chan *message.Message), gate: noGate{},
		stop: own, base: base,
		cancel: func() { unlink(); cancelStop(); cancelBase() },
		places: newPlaces(cfg.Consume.Concurrency, &cfg.Group.held),
		inHand: inHand{have: map[*delivery]held{}},
	}
	if s.cfg.Lanes == nil {
		s.cfg.Lanes = plain{}
	}
	if s.cfg.Keeper == nil {
		s.cfg.Keeper = copies{}
	}
	s.workers = newWorkers(cfg.Consume.Prefetch, s.take)
	return s
}

// Messages returns the messages of the queue. The channel is closed at the end of run.
func (s *Subscription) Messages() <-chan *message.Message { return s.out }

// Cancel ends a Subscription that does not run.
func (s *Subscription) Cancel() { s.cancel() }

// Prepare declares and checks everything as Begin does.
func (s *Subscription) Prepare() error {
	ctx, cancel := context.WithTimeout(s.stop, PrepareTimeout)
	defer cancel()
	return s.cfg.Link.Do(ctx, func(conn *link.Conn) error { return s.prepare(ctx, conn) })
}

func (s *Subscription) prepare(ctx context.Context, conn *link.Conn) (err error) {
	s.limits, err = s.cfg.Prepare(ctx, conn, s.hold)
	s.gate.SetOneActive(s.limits.OneActive)
	return err
}

// Begin declares and checks everything and consumes, unless the gate is shut. run hands out the
// messages until the Subscription is stopped, and waits for the messages in progress.
func (s *Subscription) Begin() (run func(), err error) {
	if s.cfg.Gate != nil {
		s.gate = s.cfg.Gate()
	}
	var c *Channel
	if s.isShut() {
		err = s.Prepare()
	} else {
		c, err = s.begin(ToConsume)
	}
	if err != nil {
		s.gate.Leave()
	}
	return func() { s.run(c) }, err
}

// begin declares everything and consumes.
func (s *Subscription) begin(use Use) (c *Channel, err error) {
	ctx, cancel := context.WithTimeout(s.stop, PrepareTimeout)
	defer cancel()
	err = s.cfg.Link.Do(ctx, func(conn *link.Conn) error {
		if err := s.prepare(ctx, conn); err != nil {
			return err
		}
		limits := s.limits
		c, err = Within(ctx, s.cfg.Queue, func() (*Channel, error) {
			return s.cfg.Lanes.Open(s, conn, limits, use)
		})
		return err
	})
	return c, err
}

// Within returns the channel that open makes, until the end of ctx.
func Within(
	ctx context.Context, queue string, open func() (*Channel, error),
) (*Channel, error) {
	type result struct {
		consumer *Channel
		err      error
	}
	opened := make(chan result, 1)
	go func() {
		c, err := open()
		opened <- result{c, err}
	}()
	select {
	case r := <-opened:
		return r.consumer, r.err
	case <-ctx.Done():
		// A consumer that no goroutine reads would keep its messages.
		go func() {
			if r := <-opened; r.err == nil {
				_ = r.consumer.ch.Close()
			}
		}()
		return nil, fmt.Errorf("consume queue %q: %w", queue, context.Cause(ctx))
	}
}

// plain are the Lanes of a queue without a room: deliveries begin as they arrive.
type plain struct{}

// Open implements Lanes.
func (plain) Open(
	s *Subscription, conn *link.Conn, limits Limits, use Use,
) (*Channel, error) {
	prefetch := s.cfg.Consume.Prefetch
	switch {
	case use != ToConsume:
		prefetch = 1
	case s.slow:
		prefetch = s.cfg.Consume.Concurrency
	}
	c, err := s.Open(conn, limits, use, s.cfg.Queue, prefetch, s.cfg.Consume.Arguments)
	if err == nil && use != ToGetOne {
		s.logger.Info("Consuming", nil)
	}
	return c, err
}

// run consumes until the subscription is stopped, and drains it.
func (s *Subscription) run(c *Channel) {
	defer close(s.out)
	defer s.cancel()
	defer s.workers.end()
	defer s.watchHandlers()()
	defer s.gate.Leave()
	for more := true; more; more = c != nil {
		if c != nil { // nil if the gate was shut at the start
			rest, _ := s.receive(c)
			s.release(c, rest)
		}
		use := ToConsume
		if s.awaitStorage() {
			use = ToProbe
		}
		c = s.resume(use, nextPause(s.awaitGate()))
	}

	settled := make(chan struct{})
	go func() {
		defer close(settled)
		s.wg.Wait()
	}()
	select {
	case <-settled:
	case <-time.After(s.cfg.DrainTimeout):
		s.logger.Info("Messages in progress did not end within the drain timeout: they go back to "+
			"their queue", nil)
		s.cancel() // before anything else, so that a handler that fails late publishes nothing
		s.leaveDecoding()
		<-settled
	}
	s.logger.Info("Stopped consuming", nil)
}

// resume consumes again and tries until that works. It returns nil when the subscription
// is stopped.
func (s *Subscription) resume(use Use, pause time.Duration) *Channel {
	for ; Sleep(s.stop, pause); pause = min(max(2*pause, resumePause), maxResumePause) {
		c, err := s.begin(use)
		if err == nil {
			return c
		}
		if s.stop.Err() == nil {
			s.logger.Error("Cannot consume the queue, trying again", err, nil)
		}
	}
	return nil
}

// Sleep waits for d or until ctx is done, and reports whether ctx is not done.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// within waits until f has returned, but no longer than limit. f ends with its connection.
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
