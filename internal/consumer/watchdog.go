package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/middleware"
)

const (
	// stillness is how long a consumer with nothing in hand may get nothing before the watchdog
	// looks at its queue. While the queue is empty the time doubles up to maxStillness.
	stillness    = 30 * time.Second
	maxStillness = 4 * time.Minute
	// secondLook is how much later the watchdog looks again: a delivery may be on its way.
	secondLook = 5 * time.Second
	// lookTimeout bounds one look.
	lookTimeout = 10 * time.Second
)

var errStandsStill = errors.New("the broker delivers nothing, although the queue has messages")

// watch ends a consumer that gets nothing, has nothing in hand, and whose queue has ready messages
// all the same: the broker or this library has lost count of a delivery. It knows only which
// deliveries have arrived, and so does not depend on the code that takes them.
func (s *Subscription) watch(c *Channel, queue string) {
	const step = stillness / 3
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	var before uint64
	var still time.Duration
	next := stillness
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-c.cancelled:
			return
		case <-c.enough:
			return
		case <-ticker.C:
		}
		last, idle := c.acks.last()
		if still += step; !idle || last != before {
			before, still, next = last, 0, stillness
		}
		if still < next {
			continue
		}
		found, err := s.stuck(c, queue, last)
		switch {
		case isCode(err, amqp.AccessRefused) || isCode(err, amqp.NotFound):
			return // it may not look, or the broker ends the consumer
		case err != nil: // it looks again with the next step
		case found == nil:
			next = still + min(still, maxStillness)
		default:
			s.awaken(c, found, still, last)
			return
		}
	}
}

// stuck returns the queue if two looks find ready messages while nothing arrives. An inactive
// single active consumer gets nothing either: with several consumers, only a delivery shows which
// is active.
func (s *Subscription) stuck(c *Channel, queue string, last uint64) (*amqp.Queue, error) {
	for look := 1; ; look++ {
		ctx, cancel := context.WithTimeout(c.ctx, lookTimeout)
		found, err := audit.Passive(ctx, c.conn.Do, queue)
		cancel()
		if err != nil {
			return nil, err
		}
		inactive := c.OneActive && found.Consumers > 1 && last == 0
		if now, _ := c.acks.last(); now != last || found.Messages == 0 || inactive {
			return nil, nil
		}
		if look == 2 {
			return &found, nil
		}
		Sleep(c.ctx, secondLook) // the end of ctx is an error of the second look
	}
}

// awaken logs what explains a stillness, and ends the consumer. The next one has a new channel.
func (s *Subscription) awaken(c *Channel, found *amqp.Queue, still time.Duration, last uint64) {
	s.logger.Error("The queue has messages and delivers none to this process, which has none in "+
		"hand: consuming again on a new channel",
		errStandsStill, watermill.LogFields{
			"queue": found.Name, "ready": found.Messages, "consumers": found.Consumers,
			"still_for": still, "deliveries": last, "consumer_tag": c.tag,
			"one_active": c.OneActive, "probing": c.use == ToProbe,
		})
	c.enoughNow()
	c.cancel()
	if observers := s.cfg.Observers; observers != nil { // they may hang
		observers.Tell(s.base, middleware.Event{
			Kind: middleware.EventStranded, At: time.Now().UTC(), Topic: s.cfg.Topic,
			Queue: found.Name, Messages: found.Messages,
		})
	}
}
