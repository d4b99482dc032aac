package topology

import (
	"context"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/link"
)

// arrival is a delivery that has arrived and has not begun.
type arrival struct {
	raw  amqp.Delivery
	at   time.Time // the broker's consumer timeout counts from about here (F16)
	turn *turn     // its place in the line of suspects; nil for other deliveries
}

// intake holds the arrivals of one consumer until there is a place for them.
type intake struct {
	ready    arrivals
	suspects arrivals // each waits for its turn, the first one for the next
}

// arrivals is a queue. It keeps its memory.
type arrivals struct {
	items []arrival
	first int
}

func (q *arrivals) len() int { return len(q.items) - q.first }

func (q *arrivals) push(a arrival) {
	if q.first > 0 && q.first >= len(q.items)/2 {
		n := copy(q.items, q.items[q.first:])
		clear(q.items[n:])
		q.items, q.first = q.items[:n], 0
	}
	q.items = append(q.items, a)
}

// pop takes the first one. The queue must not be empty.
func (q *arrivals) pop() arrival {
	a := q.items[q.first]
	q.items[q.first] = arrival{}
	q.first++
	return a
}

// turn is closed when the first suspect may be tried; nil without a suspect.
func (in *intake) turn() <-chan struct{} {
	if in.suspects.len() == 0 {
		return nil
	}
	return in.suspects.items[in.suspects.first].turn.come
}

// rest returns all arrivals.
func (in *intake) rest() []arrival {
	return append(in.ready.items[in.ready.first:], in.suspects.items[in.suspects.first:]...)
}

// receive takes deliveries until the consumer ends or the subscription stops,
// and returns those that have not begun. Deliveries are taken as they arrive and
// not when there is a place for them, because the broker's consumer timeout and
// its delivery limit do not wait for a place either.
func (s *subscription) receive(c *consumer) []arrival {
	var in intake
	var quiet <-chan time.Time
	if c.probing {
		ticker := time.NewTicker(quietProbe)
		defer ticker.Stop()
		quiet = ticker.C
	}
	for {
		var slots chan<- struct{}
		if in.ready.len() > 0 {
			slots = s.slots
		}
		select {
		case raw, ok := <-c.deliveries:
			if !ok { // the channel is closed, or the broker has cancelled the consumer
				c.ended = true
				return in.rest()
			}
			s.arrived(c, &in, arrival{raw: raw, at: time.Now()})
		case slots <- struct{}{}:
			s.wg.Add(1)
			c.inFlight.Add(1)
			s.workers.give(task{c, in.ready.pop()})
		case <-in.turn():
			in.ready.push(in.suspects.pop())
		case <-quiet:
			if in.ready.len()+in.suspects.len()+len(s.slots) == 0 { // else the probe is undecided
				s.outage.quiet(quietProbe)
			}
		case <-c.enough:
			return in.rest()
		case <-s.outage.over(c.probing):
			return in.rest()
		case <-s.stop.Done():
			return in.rest()
		case <-c.ctx.Done():
			return in.rest()
		}
	}
}

// arrived gives an arrival the place that the guard against crash loops finds
// for it. A delivery that must not wait is settled at once, in a goroutine of its
// own, so that a process that dies next cannot take it along.
func (s *subscription) arrived(c *consumer, in *intake, a arrival) {
	switch verdict := s.judge(c, &a.raw); verdict {
	case innocent:
		in.ready.push(a)
	case suspect:
		a.turn = s.subscriber.client.turns.join()
		in.suspects.push(a)
	case endangered, culprit:
		s.wg.Add(1)
		c.inFlight.Add(1)
		go func() {
			defer s.wg.Done()
			defer c.inFlight.Done()
			d, end := s.newDelivery(c, a)
			defer end()
			switch {
			case d.astray != nil:
				d.sendOn()
			case verdict == culprit:
				d.giveUp()
			default:
				d.rescue()
			}
		}()
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
	s.process(t.from, t.arrival)
	returned = true
}

// release lets go of a consumer. Deliveries that have not begun go back at once.
// The channel is closed when the messages in progress are settled.
func (s *subscription) release(c *consumer, unbegun []arrival) {
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		for _, a := range unbegun {
			a.turn.leave()
		}
		rest := make(chan arrival)
		go func() {
			defer close(rest)
			_ = c.ch.Cancel(c.tag, false)
			close(c.cancelled)
			for _, a := range unbegun {
				rest <- a
			}
			for raw := range c.deliveries {
				rest <- arrival{raw: raw, at: time.Now()}
			}
		}()
		s.putBack(c, rest)
		if c.ended && !c.counts && s.exists(c.conn) {
			// A quorum queue of 4.3 has ended its consumer at the consumer timeout, and
			// delivers everything again. A late ack would only confuse it (F33).
			within(goodbyeTimeout, func() { _ = c.ch.Close() })
		}
		c.inFlight.Wait()
		within(goodbyeTimeout, func() { _ = c.ch.Close() })
	}()
}

// exists reports whether the queue is there.
func (s *subscription) exists(conn *link.Conn) bool {
	ctx, cancel := context.WithTimeout(context.Background(), goodbyeTimeout)
	defer cancel()
	_, err := audit.Passive(ctx, conn.Do, s.plan.Queue)
	return !isCode(err, amqp.NotFound) // a user who may not look is refused (F24)
}

// putBack gives deliveries back that have not begun, all at the same time. A
// broker that does not answer the goodbye has them back when the channel ends.
func (s *subscription) putBack(c *consumer, rest <-chan arrival) {
	var wg sync.WaitGroup
	defer wg.Wait()
	limit := time.After(goodbyeTimeout)
	for {
		select {
		case a, ok := <-rest:
			if !ok {
				return
			}
			d, end := s.newDelivery(c, a)
			suspended := s.outage.active.Load()
			if !suspended && !d.counted() {
				d.giveBack()
				end()
				continue
			}
			wg.Go(func() {
				defer end()
				if suspended { // it costs no more than those that are held
					s.outage.wait(d.HoldUntil, s.stop.Done(), d.ctx.Done())
				}
				d.putBack()
			})
		case <-limit:
			go func() { // until the broker answers, or the channel ends
				for a := range rest {
					_ = c.settle(func() error { return a.raw.Nack(false, true) })
				}
			}()
			return
		}
	}
}
