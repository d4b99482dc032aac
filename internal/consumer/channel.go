package consumer

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
)

// Channel is one channel that consumes, until it is cancelled or lost.
type Channel struct {
	Limits
	conn       *link.Conn
	ch         *link.Channel
	tag        string
	deliveries <-chan amqp.Delivery
	ctx        context.Context // done when the channel is closed
	inFlight   *sync.WaitGroup
	acks       acks
	lane       Lane

	hold      time.Duration // how long a delivery may be held, from its arrival
	use       Use
	enough    chan struct{} // closed when nothing more may be received
	enoughNow func()        // closes enough
	cancel    func()        // ends the deliveries, once, and closes cancelled
	gone      func()        // closes cancelled
	cancelled chan struct{} // closed when the broker delivers nothing more
	ended     bool          // by the broker, or with its channel
}

// Use is what a Channel is for.
type Use int

// The uses.
const (
	ToConsume Use = iota // the queue
	ToProbe              // with one message at a time, after an outage
	ToGetOne             // message, while a brake is stopped
)

// Open consumes a queue on a new channel.
func (s *Subscription) Open(
	conn *link.Conn, limits Limits, use Use, queue string, prefetch int, args amqp.Table,
) (*Channel, error) {
	cfg := &s.cfg.Consume
	ch, err := conn.Open()
	if err != nil {
		return nil, fmt.Errorf("consume queue %q: open channel: %w", queue, err)
	}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	// With one consumer a channel, a prefetch of the consumer acts like a global one, which
	// quorum queues refuse (F14).
	err = ch.Qos(prefetch, 0, false)
	tag := cfg.Tag
	if tag == "" {
		tag = "millpond-" + watermill.NewShortUUID()
	}
	var deliveries <-chan amqp.Delivery
	if err == nil {
		deliveries, err = ch.Deliveries(queue, tag, prefetch, cfg.Exclusive, cfg.NoLocal, args)
	}
	if err != nil {
		_ = ch.Close()
		if isCode(err, amqp.AccessRefused) {
			err = fmt.Errorf("the user may not: grant it the permissions that Plan.Permissions lists: %w",
				err)
		}
		return nil, fmt.Errorf("consume queue %q: %w", queue, err)
	}
	ctx, cancel := context.WithCancel(s.base)
	enough := make(chan struct{})
	c := &Channel{
		Limits: limits, conn: conn, ch: ch, tag: tag, deliveries: deliveries, ctx: ctx,
		hold: s.hold(limits.ConsumerTimeout), use: use,
		enough: enough, enoughNow: sync.OnceFunc(func() { close(enough) }),
		cancelled: make(chan struct{}), inFlight: new(sync.WaitGroup), lane: noLane{},
		acks: acks{send: ch.Ack, most: max(1, min(prefetch/4, maxAcks))},
	}
	c.gone = sync.OnceFunc(func() { close(c.cancelled) })
	c.cancel = sync.OnceFunc(func() {
		_ = ch.Cancel(tag, false)
		c.gone()
	})
	go func() {
		s.endedBy(c, <-closed)
		cancel()
	}()
	if use != ToGetOne {
		go s.watch(c, queue)
	}
	return c, nil
}

// Ack acks a delivery, together with the others that are to be acked at the same time. It
// returns when the ack is written, or is left to another goroutine that is about to write.
func (c *Channel) Ack(tag uint64) (err error) {
	if c.acks.want(tag, c.Flush) {
		c.conn.Together(func() {
			runtime.Gosched() // others add their acks
			err = c.acks.flush()
		})
	}
	return err
}

// Flush writes the acks that wait. It fails only if the channel is gone; see ack of delivery.
func (c *Channel) Flush() {
	c.conn.Together(func() { _ = c.acks.flush() })
}

// GiveBack gives a delivery back to its queue.
func (c *Channel) GiveBack(tag uint64) (err error) {
	c.conn.Together(func() { err = c.ch.Nack(tag, false, true) })
	c.acks.nacked(tag)
	return err
}

// Join gives a new channel its lane, which reads its deliveries from then on.
func (c *Channel) Join(lane Lane) { c.lane = lane }

// Beside adds a new channel to the lane of c. Messages in progress are waited for together.
func (c *Channel) Beside(other *Channel) { other.lane, other.inFlight = c.lane, c.inFlight }

// Incoming are the deliveries of the channel. They are the lane's, if there is one.
func (c *Channel) Incoming() <-chan amqp.Delivery { return c.deliveries }

// direct are the deliveries of a channel without a lane.
func (c *Channel) direct() <-chan amqp.Delivery {
	if c.Together {
		return nil
	}
	return c.deliveries
}

// Arrived notes a delivery. Each must be noted when it comes, and acked or given back.
func (c *Channel) Arrived(raw *amqp.Delivery) { c.acks.arrived(raw.DeliveryTag) }

// Conn is the connection of the channel.
func (c *Channel) Conn() *link.Conn { return c.conn }

// Context is done when the channel is closed.
func (c *Channel) Context() context.Context { return c.ctx }

// Use is what the channel is for.
func (c *Channel) Use() Use { return c.use }

// Hold is how long a delivery may be held, from its arrival.
func (c *Channel) Hold() time.Duration { return c.hold }

// Enough lets nothing more be received.
func (c *Channel) Enough() { c.enoughNow() }

// Ended notes that the broker has ended the deliveries, or the channel.
func (c *Channel) Ended() { c.ended = true }

// Close closes the channel, when its deliveries are settled. It waits no longer than a broker that
// works may take.
func (c *Channel) Close() {
	c.gone()
	within(goodbyeTimeout, func() { _ = c.ch.Close() })
}

// HasEnded reports whether the broker has ended the deliveries, or the channel.
func (c *Channel) HasEnded() bool { return c.ended }

// Settle returns when the messages in progress are settled, or after limit.
func (c *Channel) Settle(limit time.Duration) { within(limit, c.inFlight.Wait) }

// AMQP is the channel itself.
func (c *Channel) AMQP() *amqp.Channel { return c.ch.Channel }
