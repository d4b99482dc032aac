// Package scan looks at the messages of a queue. AMQP can look at a message only by taking it. So a
// Scan takes the messages that are there at its beginning, in pages and without acking them. At its
// end it gives back the messages that were not acked, in their order.
//
// The caller calls Next until it returns false. It acks a message or names it to Keep. At last it
// calls GiveBack, which returns when the broker has the messages and the acks.
package scan

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/wire"
)

const (
	// pageMessages and pageBytes, of headers and bodies, bound a page. A quorum queue that delivers
	// more at once goes through its whole memory each time (F55).
	pageMessages = 256
	pageBytes    = 192 << 10
	// idle is how long a page waits for its next message before the queue is asked again. The
	// message is there, unless another consumer has taken it.
	idle = 5 * time.Second
	// restLimit is how many messages are taken only to keep the queue's order. That takes about two
	// seconds.
	restLimit = 10_000
)

// ErrCancelled says that the broker has ended the consumer.
var ErrCancelled = errors.New(
	"the broker has ended the consumer: the queue is deleted, or its node is gone")

// Scan takes messages, oldest first. Acks and Keep may come from other goroutines. The other
// methods are for one goroutine.
type Scan struct {
	ctx   context.Context
	queue string
	ch    *amqp.Channel

	total   int   // messages in the queue at the beginning
	left    int   // of them, not taken yet
	seen    int   // messages that Next has returned
	bytes   int64 // of their headers and bodies
	unasked bool  // the broker has not said that there is another message
	limit   int   // of a page
	granted int   // the prefetch that the broker knows
	idle    time.Duration

	page   []amqp.Delivery // taken and not returned by Next yet
	behind int             // messages that Flush has taken behind those to look at

	back back
}

// LimitPage takes no more than n messages at once.
func (s *Scan) LimitPage(n int) { s.limit = max(n, 1) }

// Hurry is for a queue that messages leave by themselves. A page that waits for a message for
// longer than d asks whether there is one. A message that was given back never counts as missing.
func (s *Scan) Hurry(d time.Duration) { s.idle, s.back.leaving = d, true }

// New returns a Scan on ch, which nothing else may use. It looks at no more than limit messages. If
// limit is negative, it looks at all messages that are there at its beginning.
func New(ctx context.Context, ch *amqp.Channel, queue string, limit int) *Scan {
	return &Scan{
		ctx: ctx, queue: queue, ch: ch, total: -1, left: limit, unasked: true,
		limit: pageMessages, idle: idle, back: back{ch: ch, queue: queue},
	}
}

// Total returns how many messages there are to look at, or -1 before the first Next.
func (s *Scan) Total() int { return s.total }

// Rest returns how many of them are not taken yet, after the first Next.
func (s *Scan) Rest() int { return s.left - len(s.page) }

// Ready returns how many messages the queue says are ready. A message that is taken is not ready. A
// quorum queue may count late. Call Ready between calls of Next.
func (s *Scan) Ready() (int, error) {
	q, err := s.ch.QueueDeclarePassive(s.queue, true, false, false, false, nil)
	return q.Messages, err
}

// Seen returns how many messages Next has returned.
func (s *Scan) Seen() int { return s.seen }

// Given returns how many messages GiveBack has given back so far. It may be called meanwhile.
func (s *Scan) Given() int { return int(s.back.given.Load()) }

// Next returns the next message, or false after the last.
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

// ask gets one message. The answer says how many messages there are behind it.
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
	s.bytes += int64(wire.PropertiesSize(&amqp.Publishing{Headers: d.Headers}) + len(d.Body))
	s.back.expires(d)
}

// fill takes a page: few messages at first, later the power of two that fits into pageBytes at the
// average size. Another size is a question to the broker, so it changes rarely.
//
// fill cancels the consumer while that has no room for more, before a message is acked. A message
// on its way to a cancelled consumer would be neither delivered nor given back until the channel
// ends. It waits for the answers of the broker only where one may say no.
func (s *Scan) fill() error {
	fits := uint64(max(1, pageBytes/(s.bytes/int64(s.seen))))
	size := min(s.limit, s.left, 2*s.seen+16, 1<<(bits.Len64(fits)-1))
	tag := fmt.Sprintf("millpond-%d", s.seen)
	if size != s.granted {
		if err := s.ch.Qos(size, 0, false); err != nil { // for the consumer that comes next
			return err
		}
		s.granted = size
	}
	asked := s.seen > 1 // the broker has answered once that it lets us consume
	page, err := s.ch.Consume(s.queue, tag, false, false, false, asked, nil)
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
	if err := s.ch.Cancel(tag, len(s.page) == size); err != nil { // full: nothing is on its way
		return err
	}
	for d := range page { // messages that came in the meantime
		s.page = append(s.page, d)
	}
	return nil
}

// Stop makes the Scan take no more messages, not even to keep the queue's order.
func (s *Scan) Stop() { s.left = 0 }

// Keep names a message that is not acked, but given back at the end.
func (s *Scan) Keep(tag uint64) { s.back.keep(tag) }

// GiveBack puts the messages that were not acked back to their places and closes the channel. When
// it returns, the broker has read all acks.
//
// A quorum queue puts a message that comes back behind the ones that came back before. So the
// order is kept only if all messages are taken. GiveBack takes the rest, unless that is over
// restLimit or the scan was cancelled.
//
// The error is a MissingError if messages are not in the queue within 20 s, and no consumer is
// there that may have taken them.
func (s *Scan) GiveBack() error {
	var err error
	if s.back.keeps < s.seen { // some were acked
		err = s.Flush()
	}
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
	s.page = nil
	if err == nil {
		err = s.back.all(s.behind)
	}
	if closeErr := s.ch.Close(); err == nil {
		err = closeErr
	}
	return err
}

// Flush returns when the queue has the acks. With many acks under way, the broker keeps the last
// ones back and forgets them when the channel ends. Then the messages would come again. The broker
// answers the first get after the acks before it, and the second get after the acks that it kept
// back. A message that a get takes is the next one behind the page. If that is not to be looked at,
// it goes back behind all others, which is its place. Call Flush between calls of Next.
func (s *Scan) Flush() error {
	for range 2 {
		d, ok, err := s.ch.Get(s.queue, false)
		switch {
		case err != nil:
			return err
		case ok && s.left > len(s.page):
			s.page = append(s.page, d)
			s.back.taken(d.DeliveryTag, true)
		case ok:
			s.back.expires(&d)
			s.behind++
		}
	}
	return nil
}
