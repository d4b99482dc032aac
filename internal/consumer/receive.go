package consumer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/clock"
	"github.com/millpond-go/millpond/internal/link"
)

// arrival is a delivery that has arrived and has not begun.
type arrival struct {
	raw  amqp.Delivery
	at   time.Time // the broker's consumer timeout counts from about here (F16)
	turn *turn     // its place in the line of suspects; nil for other deliveries
	step *step     // of a delivery that is handled in order; nil without an order
	on   *consumer // the same
}

// receive takes deliveries until the consumer ends or the subscription stops, and returns
// the deliveries that have not begun. It takes each delivery when it arrives, also while all slots
// are taken: the broker's consumer timeout and its delivery limit do not wait for a slot.
func (s *Subscription) receive(c *consumer) []arrival {
	if c.inOrder != nil {
		s.receiveInOrder(c)
		return nil
	}
	var in intake
	var slow <-chan time.Time
	var pace *time.Timer
	quiet, endQuiet := c.quiet()
	defer endQuiet()
	over, unwatch := s.over(c)
	defer unwatch()
	if every := s.slowCheck(c); every > 0 {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		slow = ticker.C
		s.inHand.reset()
	}
	for {
		var start, freed <-chan struct{}
		var paced <-chan time.Time
		switch {
		case in.ready.len() == 0:
		case s.places.areFree():
			if pace, paced = s.paced(pace); paced == nil {
				start = always
			}
		default:
			freed = s.places.freed
		}
		c.acks.backlog.Store(int32(in.ready.len()))
		select {
		case raw, ok := <-c.deliveries:
			if !ok { // the channel is closed, or the broker has cancelled the consumer
				c.ended = true
				return in.rest()
			}
			c.acks.arrived(raw.DeliveryTag)
			s.arrived(c, &in, arrival{raw: raw, at: time.Now()})
		case <-start:
			a := in.ready.pop()
			if look := s.gate.Start(a.at); look != nil {
				s.wg.Go(func() { s.look(c.conn, look) })
			}
			s.begun(c, a)
		case <-freed:
		case <-paced:
		case <-in.turn():
			in.ready.push(in.suspects.pop())
		case <-quiet:
			if in.ready.len()+in.suspects.len() == 0 && s.places.areEmpty() { // else the probe is undecided
				s.outage.quiet(clock.Wait(quietProbe))
			}
		case <-slow:
			if s.waitsTooLong(c, &in) || s.keepsUp(c, &in) {
				return in.rest()
			}
		case <-over:
			return in.rest()
		}
	}
}

// quiet returns a channel that ticks while the consumer probes after an outage, and its end.
func (c *consumer) quiet() (ticks <-chan time.Time, end func()) {
	if !c.probing {
		return nil, func() {}
	}
	ticker := time.NewTicker(clock.Wait(quietProbe))
	return ticker.C, ticker.Stop
}

// over returns a channel that is closed when a consumer must receive no more, although its
// deliveries have not ended: the subscription stops, the outage is over, the gate is shut, or a
// probe has waited for its message long enough. unwatch must be called.
func (s *Subscription) over(c *consumer) (over <-chan struct{}, unwatch func()) {
	ctx, cancel := context.WithCancel(s.stop)
	shut, limit := s.gate.Shut(), (<-chan time.Time)(nil)
	if c.single { // while the gate is shut
		shut, limit = nil, time.After(probeWait)
	}
	ended := s.outage.over(c.probing)
	go func() {
		defer cancel()
		select {
		case <-c.enough:
		case <-ended:
		case <-shut:
		case <-limit:
		case <-c.ctx.Done():
		case <-ctx.Done():
		}
	}()
	return ctx.Done(), cancel
}

// begun starts the handling of a delivery.
func (s *Subscription) begun(c *consumer, a arrival) {
	s.places.take()
	s.wg.Add(1)
	c.inFlight.Add(1)
	s.workers.give(task{c, a})
}

// paced returns a channel that has a value when the next handler may start, after a stop; nil if it
// may start now. timer may be nil.
func (s *Subscription) paced(timer *time.Timer) (*time.Timer, <-chan time.Time) {
	later := s.gate.Later()
	switch {
	case later == 0:
		return timer, nil
	case timer == nil:
		timer = time.NewTimer(later)
	default:
		timer.Reset(later)
	}
	return timer, timer.C
}

// arrived gives an arrival the place that the crash guard decides on. A delivery that must
// not wait is settled at once, in its own goroutine, before a process that ends next could
// raise its count again.
func (s *Subscription) arrived(c *consumer, in *intake, a arrival) {
	switch verdict := s.judge(c, &a.raw); verdict {
	case innocent:
		in.ready.push(a)
	case suspect:
		a.turn = s.cfg.Group.turnsOf(s.cfg.Queue).join()
		in.suspects.push(a)
	case endangered, culprit:
		s.wg.Add(1)
		c.inFlight.Add(1)
		d, end := s.newDelivery(c, a)
		settle := d.rescued
		switch {
		case d.astray != nil:
			settle = d.sendOn
		case verdict == culprit:
			settle = d.giveUp
		case d.takeGuard():
			// The broker delivers again in order, and suspects are tried in order. So the first
			// message that comes was being tried when the process ended.
			settle = d.isolateOnce
		}
		go func() {
			defer s.wg.Done()
			defer c.inFlight.Done()
			defer end()
			settle()
		}()
	}
}

// take takes one delivery to its end and frees its place. It calls idle if its goroutine can
// take the next delivery.
func (s *Subscription) take(t task, idle func()) {
	d, end := s.newDelivery(t.from, t.arrival)
	d.place.at, d.turn = inPlace, t.turn
	returned := false
	defer func() {
		if d.step != nil && s.base.Err() == nil { // else its handler may run
			t.from.inOrder.ended(d)
		}
		end()
		if d.life.endDecoding(back); d.life.phase() == left {
			return
		}
		if returned { // a marshaler may have ended the goroutine
			idle()
		}
		s.leave(d)
	}()
	s.process(d)
	returned = true
}

// leave frees the place of a delivery that has ended.
func (s *Subscription) leave(d *delivery) {
	d.turn.leave()
	s.places.leave(&d.place)
	d.on.inFlight.Done()
	s.wg.Done()
}

// leaveDecoding ends the deliveries whose marshaler does not return.
func (s *Subscription) leaveDecoding() {
	s.inHand.mu.Lock()
	defer s.inHand.mu.Unlock()
	for d := range s.inHand.have {
		if d.life.endDecoding(left) {
			go func() {
				defer s.leave(d)
				d.abandon()
			}()
		}
	}
}

// always is a channel from which a receive never waits.
var always = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// release ends a consumer. Deliveries that have not begun go back at once. The channel is
// closed when the messages in progress are settled.
func (s *Subscription) release(c *consumer, unbegun []arrival) {
	if c.inOrder != nil {
		s.releaseInOrder(c)
		return
	}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		for _, a := range unbegun {
			a.turn.leave()
		}
		rest := make(chan arrival)
		go func() {
			defer close(rest)
			c.cancel()
			for _, a := range unbegun {
				rest <- a
			}
			for raw := range c.deliveries {
				c.acks.arrived(raw.DeliveryTag)
				rest <- arrival{raw: raw, at: time.Now()}
			}
		}()
		back := s.putAllBack(c, rest)
		goodbye := func() {
			<-back
			_ = c.ch.Close()
		}
		if c.ended && !c.NackCounts && s.exists(c.conn) {
			// A quorum queue of RabbitMQ 4.3 has ended its consumer at the consumer timeout and
			// delivers everything again. A late ack would confuse it (F33).
			within(goodbyeTimeout, goodbye)
		}
		c.inFlight.Wait()
		c.flushAcks()
		within(goodbyeTimeout, goodbye)
	}()
}

// exists reports whether the queue exists. A user who may not look is refused (F24): then
// the queue is taken to exist.
func (s *Subscription) exists(conn *link.Conn) bool {
	ctx, cancel := context.WithTimeout(context.Background(), goodbyeTimeout)
	defer cancel()
	_, err := audit.Passive(ctx, conn.Do, s.cfg.Queue)
	return !isCode(err, amqp.NotFound)
}

// putAllBack gives back deliveries that have not begun, all at the same time. If the broker
// does not answer the cancel in time, putAllBack returns and goes on in the background until the
// broker answers or the channel ends. Then back is closed. No channel.close may be sent before: a
// nack behind it makes the broker end the connection.
func (s *Subscription) putAllBack(c *consumer, rest <-chan arrival) (back <-chan struct{}) {
	var wg sync.WaitGroup
	defer wg.Wait()
	limit := time.After(goodbyeTimeout)
	for {
		select {
		case a, ok := <-rest:
			if !ok {
				return always
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
				if suspended { // it costs no more than the deliveries that are held
					s.outage.wait(d.HoldUntil, s.stop.Done(), d.ctx.Done())
				}
				d.putBack()
			})
		case <-limit:
			late := make(chan struct{})
			go func() { // until the broker answers, or the channel ends
				defer close(late)
				for a := range rest {
					_ = c.giveBack(a.raw.DeliveryTag)
				}
			}()
			return late
		}
	}
}

// intake holds the arrivals of one consumer until there is a slot for them.
type intake struct {
	ready    arrivals
	suspects arrivals // each waits for its turn; the first one has the next turn
}

// turn is closed when the first suspect may be tried. It is nil if there is no suspect.
func (in *intake) turn() <-chan struct{} {
	if in.suspects.len() == 0 {
		return nil
	}
	return in.suspects.items[in.suspects.first].turn.come
}

// oldest returns when the first suspect, or the first other delivery, has arrived that waits for
// its handler.
func (in *intake) oldest(suspect bool) (at time.Time, waiting bool) {
	for _, q := range []*arrivals{&in.ready, &in.suspects} {
		for _, a := range q.items[q.first:] {
			if (a.turn != nil) == suspect {
				return a.at, true
			}
		}
	}
	return at, false
}

// rest returns all arrivals.
func (in *intake) rest() []arrival {
	return append(in.ready.items[in.ready.first:], in.suspects.items[in.suspects.first:]...)
}

// arrivals is a queue that keeps its memory.
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

// pop takes the first arrival. The queue must not be empty.
func (q *arrivals) pop() arrival {
	a := q.items[q.first]
	q.items[q.first] = arrival{}
	q.first++
	return a
}

// maxIdle is how many idle goroutines a subscription keeps for the next deliveries.
const maxIdle = 16

// task is a delivery to process.
type task struct {
	from *consumer
	arrival
}

// workers are goroutines that process one delivery at a time each. They are kept for a
// while because a new goroutine would have to grow its stack first.
type workers struct {
	work  func(t task, idle func())
	tasks chan task
	over  chan struct{}
	idle  atomic.Int32 // workers that receive, or are about to
}

func newWorkers(work func(t task, idle func())) *workers {
	return &workers{work: work, tasks: make(chan task), over: make(chan struct{})}
}

// give passes t to a worker. Only one goroutine calls it.
func (w *workers) give(t task) {
	if w.idle.Load() > 0 {
		w.idle.Add(-1)
		w.tasks <- t
		return
	}
	go w.run(t)
}

// end ends the idle workers. It is called after the last give.
func (w *workers) end() { close(w.over) }

func (w *workers) run(t task) {
	for {
		stay := false
		w.work(t, func() {
			if stay = w.idle.Load() < maxIdle; stay {
				w.idle.Add(1)
			}
		})
		if !stay {
			return
		}
		select {
		case t = <-w.tasks:
		case <-w.over:
			return
		}
	}
}
