// Package scan looks at the messages of a queue, which AMQP can only do by taking
// them: it takes those that are there at its beginning, in pages, without acking,
// and gives back at its end what nobody has acked, in its order.
package scan

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// pageMessages and pageBytes bound what is taken ahead of who looks at it.
	pageMessages = 500
	pageBytes    = 8 << 20
	// idle is how long a page waits for its next message, which is known to be
	// there unless someone else has taken it, before the queue is asked again.
	idle = 5 * time.Second
	// restLimit is how much of a queue is taken for the sake of its order alone:
	// about two seconds' worth.
	restLimit = 10_000
)

// ErrCancelled: the broker has ended the consumer.
var ErrCancelled = errors.New("the broker has ended the consumer: the queue is deleted, or its node is gone")

// Scan takes messages, oldest first. Whoever uses it either acks what Next has
// returned or names it to Keep. It is not safe for concurrent use, but for acks
// and Keep.
type Scan struct {
	ctx   context.Context
	queue string
	ch    *amqp.Channel

	total   int // in the queue at the beginning
	left    int // of those, not taken yet
	seen    int
	bytes   int64 // of what was seen
	unasked bool  // nothing has said that there is another message
	limit   int   // of a page
	idle    time.Duration

	page []amqp.Delivery // taken and not returned by Next yet

	back back
}

// LimitPage takes no more than n messages at once.
func (s *Scan) LimitPage(n int) { s.limit = max(n, 1) }

// Hurry is for a queue that messages leave by themselves: a page that waits for a
// message for longer than d asks whether there is one, and none that is given back is
// missing.
func (s *Scan) Hurry(d time.Duration) { s.idle, s.back.leaving = d, true }

// New returns a Scan on a channel of its own. It looks at
// no more than limit messages, or at all that are there at its beginning if limit
// is less than 0.
func New(ctx context.Context, ch *amqp.Channel, queue string, limit int) *Scan {
	return &Scan{
		ctx: ctx, queue: queue, ch: ch, total: -1, left: limit, unasked: true, limit: pageMessages, idle: idle,
		back: back{ch: ch, queue: queue},
	}
}

// Total is how many messages are to be looked at; -1 before the first Next.
func (s *Scan) Total() int { return s.total }

// Ready is how many messages the queue says are ready; a quorum queue may count
// late. It is for before the first Next.
func (s *Scan) Ready() (int, error) {
	q, err := s.ch.QueueDeclarePassive(s.queue, true, false, false, false, nil)
	return q.Messages, err
}

// Seen is how many messages Next has returned.
func (s *Scan) Seen() int { return s.seen }

// Next returns the next message; false at the end of those that were there.
func (s *Scan) Next() (amqp.Delivery, bool, error) {
	for s.ctx.Err() == nil {
		switch {
		case s.left == 0:
			s.total = max(s.total, 0)
			return amqp.Delivery{}, false, nil
		case len(s.page) > 0:
			d := s.page[0]
			s.page[0] = amqp.Delivery{}
			s.page = s.page[1:]
			s.count(&d)
			return d, true, nil
		case s.unasked:
			return s.ask()
		}
		if err := s.fill(); err != nil {
			return amqp.Delivery{}, false, err
		}
	}
	return amqp.Delivery{}, false, context.Cause(s.ctx)
}

// ask gets one message, which tells how many there are behind it.
func (s *Scan) ask() (amqp.Delivery, bool, error) {
	d, ok, err := s.ch.Get(s.queue, false)
	if err != nil || !ok {
		s.left, s.total = 0, max(s.total, 0)
		return amqp.Delivery{}, false, err
	}
	if there := int(d.MessageCount) + 1; s.left < 0 || s.left > there {
		s.left = there
	}
	if s.total < 0 {
		s.total = s.left
	}
	s.unasked = false
	s.back.taken(d.DeliveryTag, true)
	s.count(&d)
	return d, true, nil
}

// count counts a message that Next returns.
func (s *Scan) count(d *amqp.Delivery) {
	s.left--
	s.seen++
	s.bytes += int64(len(d.Body))
	s.back.expires(d)
}

// fill takes a page: as many messages as may be held of the size seen so far, few
// at first. The consumer is cancelled while it has no room for more, before
// anything is acked: what is on its way to a consumer that is cancelled would be
// neither delivered nor given back until the channel ends.
func (s *Scan) fill() error {
	size := int(min(int64(s.limit), int64(s.left), int64(2*s.seen+16), max(1, pageBytes/(s.bytes/int64(s.seen)+1))))
	tag := fmt.Sprintf("millpond-%d", s.seen)
	if err := s.ch.Qos(size, 0, false); err != nil { // for the consumer that comes next
		return err
	}
	page, err := s.ch.Consume(s.queue, tag, false, false, false, false, nil)
	if err != nil {
		return err
	}
	s.page = make([]amqp.Delivery, 0, size)
	defer func() {
		for i := range s.page {
			s.back.taken(s.page[i].DeliveryTag, i == 0)
		}
	}()
	wait := time.NewTimer(s.idle)
	defer wait.Stop()
	for len(s.page) < size && !s.unasked {
		select {
		case d, open := <-page:
			if !open {
				return ErrCancelled
			}
			s.page = append(s.page, d)
			wait.Reset(s.idle)
		case <-wait.C:
			s.unasked = true
		case <-s.ctx.Done():
			s.unasked = true
		}
	}
	if err := s.ch.Cancel(tag, false); err != nil {
		return err
	}
	for d := range page { // came in the meantime
		s.page = append(s.page, d)
	}
	return nil
}

// Stop says that nothing more is to be taken, not for the sake of the order either.
func (s *Scan) Stop() { s.left = 0 }

// Keep says that a message is not acked, but given back at the end.
func (s *Scan) Keep(tag uint64) { s.back.keep(tag) }

// GiveBack puts what was taken and not acked back to its places, and closes the
// channel in good order, so that the broker has read all acks when it returns.
//
// A quorum queue puts what comes back behind what came back before. So the order
// is kept only if all that was there is taken: GiveBack takes the rest, unless it
// is long or the scan was cancelled.
//
// The error is a MissingError where messages are not in the queue within 20 s, and no
// consumer is there that may have taken them.
func (s *Scan) GiveBack() error {
	for s.left > 0 && s.left <= restLimit {
		d, ok, err := s.Next()
		if err != nil || !ok {
			break
		}
		s.Keep(d.DeliveryTag)
	}
	for i := range s.page {
		s.Keep(s.page[i].DeliveryTag)
		s.back.expires(&s.page[i])
	}
	s.seen += len(s.page) // as for flush
	s.page = nil
	taken, err := s.flush()
	if err == nil {
		err = s.back.all(taken)
	}
	if closeErr := s.ch.Close(); err == nil {
		err = closeErr
	}
	return err
}

// flush returns when the queue has the acks. With many of them under way the
// broker keeps the last ones back, and forgets them when the channel is closed:
// the messages would come again. A get is answered when what went before was
// carried out; the second one, when what was kept back was. A message that they
// take goes back behind all others, which is its place.
func (s *Scan) flush() (taken int, err error) {
	if s.back.keeps == s.seen {
		return 0, nil // nothing was acked
	}
	for range 2 {
		d, ok, err := s.ch.Get(s.queue, false)
		if err != nil {
			return taken, err
		}
		if ok {
			s.back.expires(&d)
			taken++
		}
	}
	return taken, nil
}
