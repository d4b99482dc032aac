package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

var errNoStock = errors.New("out of stock")

// shop does the work of all releases. Its connection shares no code with the library.
type shop struct {
	url, queue string
	out        io.Writer
	conn       *amqp.Connection
	ch         *amqp.Channel

	mu       sync.Mutex
	orders   map[string]order
	attempts map[string]int
	ended    map[string]bool // handled
	progress chan struct{}   // has room for one
}

// openShop declares the queue with the arguments of watermill-amqp.
func openShop(url, queue string, out io.Writer) (*shop, error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return nil, err
	}
	s := &shop{
		url: url, queue: queue, out: out, conn: conn,
		orders: map[string]order{}, attempts: map[string]int{}, ended: map[string]bool{},
		progress: make(chan struct{}, 1),
	}
	if s.ch, err = conn.Channel(); err == nil {
		err = errors.Join(s.ch.Confirm(false), s.declare())
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return s, nil
}

// declare fails if the queue has other arguments.
func (s *shop) declare() error {
	_, err := s.ch.QueueDeclare(s.queue, true, false, false, false, nil)
	return err
}

// place publishes orders and waits for their confirms.
func (s *shop) place(ctx context.Context, orders []order) error {
	for _, o := range orders {
		s.mu.Lock()
		s.orders[o.name] = o
		s.mu.Unlock()
		order := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(o.name)}
		confirm, err := s.ch.PublishWithDeferredConfirmWithContext(ctx, "", s.queue, false, false, order)
		if err != nil {
			return err
		}
		if ok, err := confirm.WaitContext(ctx); err != nil || !ok {
			return errors.Join(fmt.Errorf("%s was not confirmed", o.name), err)
		}
	}
	return nil
}

// handle handles an order in every release.
func (s *shop) handle(msg *message.Message) error {
	name := string(msg.Payload)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempts[name]++
	o, n := s.orders[name], s.attempts[name]
	defer s.tell()
	if n <= o.fails {
		fmt.Fprintf(s.out, "  %s fails at attempt %d\n", name, n)
		return errNoStock
	}
	s.ended[name] = true
	fmt.Fprintf(s.out, "  %s is handled at attempt %d, %s\n", name, n, counted(msg))
	return nil
}

func (s *shop) tell() {
	select {
	case s.progress <- struct{}{}:
	default:
	}
}

func counted(msg *message.Message) string {
	if _, ok := middleware.DeliveryOf(msg.Context()); !ok {
		return "which no count says"
	}
	return fmt.Sprintf("counted as %d", middleware.Attempt(msg.Context()))
}

// ackPause is longer than an ack takes on a busy machine.
const ackPause = 500 * time.Millisecond

// settled returns once every order has ended, or waits for the next release.
func (s *shop) settled(ctx context.Context) error {
	for {
		left := s.left()
		if left == "" {
			break
		}
		select {
		case <-s.progress:
		case <-ctx.Done():
			return fmt.Errorf("waited for %s: %w", left, context.Cause(ctx))
		}
	}
	// The message of a handler that has returned may not be acked yet: closing its release now
	// would give the message back. No event tells when the broker has an ack.
	<-time.After(ackPause)
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, o := range s.orders {
		o.later = false // the next release must end it
		s.orders[name] = o
	}
	return nil
}

// left returns an order that has not ended, and "" if there is none.
func (s *shop) left() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, o := range s.orders {
		if waits := o.later && s.attempts[name] == o.fails; !waits && !s.ended[name] {
			return name
		}
	}
	return ""
}

// close ends the connection. With check it first checks that the queue has its old arguments and
// that no message is left, and deletes the queues.
func (s *shop) close(check bool) (err error) {
	defer func() { err = errors.Join(err, s.conn.Close()) }()
	if !check {
		return nil
	}
	if err := s.declare(); err != nil {
		return fmt.Errorf("the queue's arguments have changed: %w", err)
	}
	plan, err := topology.PerQueue{}.Plan(s.queue, policy)
	if err != nil {
		return err
	}
	for _, q := range plan.Queues {
		if err := s.isEmpty(q.Name); err != nil {
			return err
		}
		if _, err := s.ch.QueueDelete(q.Name, false, false, false); err != nil {
			return err
		}
	}
	if err := s.isEmpty(s.queue); err != nil {
		return err
	}
	_, err = s.ch.QueueDelete(s.queue, false, false, false)
	return err
}

// isEmpty waits until a queue is empty, because a quorum queue counts late.
func (s *shop) isEmpty(queue string) error {
	const tries = 100
	found := -1
	for range tries {
		q, err := s.ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil {
			return fmt.Errorf("look into %s: %w", queue, err)
		}
		if found = q.Messages; found == 0 {
			return nil
		}
		<-time.After(100 * time.Millisecond)
	}
	return fmt.Errorf("%s holds %d messages", queue, found)
}
