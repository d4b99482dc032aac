package consumer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/link"
)

// Arrival is a delivery that has arrived and has not begun.
type Arrival struct {
	Raw  amqp.Delivery
	At   time.Time // the broker's consumer timeout counts from about here (F16)
	On   *Channel
	Step Step // its lane's
	// Alone says that it begins when no other is in progress.
	Alone bool
	turn  *turn // its turn among the suspects; nil for other deliveries
}

// receive takes deliveries until the channel ends or the subscription stops, and returns the
// deliveries that have not begun. It takes each delivery when it arrives, also while all places are
// taken: the broker's consumer timeout and its delivery limit do not wait for a place. While the
// gate is shut it takes one message, and reports whether that has come.
func (s *Subscription) receive(c *Channel) (unbegun []Arrival, came bool) {
	offered, ended, halt := c.lane.Run()
	defer halt()
	quiet, endQuiet := c.quiet()
	defer endQuiet()
	slow, endSlow := s.slowly(c)
	defer endSlow()
	over, unwatch := s.over(c)
	defer unwatch()
	p := pump{s: s, c: c, single: c.use == ToGetOne, deliveries: c.direct()}
	for goOn := true; goOn; {
		w := p.waitsFor(offered)
		select {
		case raw, ok := <-p.deliveries:
			goOn = p.delivered(raw, ok)
		case a := <-w.offers:
			p.in.ready.push(a)
		case <-w.start:
			goOn = p.start()
		case <-w.freed:
		case <-w.paced:
		case <-p.in.turn():
			p.in.ready.push(p.in.suspects.pop())
		case <-quiet:
			p.probes()
		case <-slow:
			goOn = !s.waitsTooLong(c, &p.in) && !s.keepsUp(c, &p.in)
		case <-ended:
			goOn = false
		case <-over:
			goOn = false
		}
	}
	return p.in.rest(), p.came
}

// pump is a receive on its way.
type pump struct {
	s          *Subscription
	c          *Channel
	in         intake
	deliveries <-chan amqp.Delivery // nil where a lane has them
	pace       *time.Timer
	single     bool // the gate is shut: one message is taken
	came       bool // and has come
}

// waiting is what a pump waits for.
type waiting struct {
	offers       <-chan Arrival
	start, freed <-chan struct{}
	paced        <-chan time.Time
}

// waitsFor returns what the pump waits for until the next delivery may begin: its offer, a free
// place, the pace after a stop, or nothing.
func (p *pump) waitsFor(offered <-chan Arrival) (w waiting) {
	p.c.acks.backlog.Store(int32(p.in.ready.len()))
	switch {
	case p.in.ready.len() == 0:
		w.offers = offered
	case !p.s.mayBegin(p.in.ready.next()):
		w.freed = p.s.places.freed
	default:
		if p.pace, w.paced = p.s.paced(p.pace); w.paced == nil || p.single {
			w.start, w.paced = always, nil
		}
	}
	return w
}

// delivered takes a delivery, and reports whether the pump goes on.
func (p *pump) delivered(raw amqp.Delivery, ok bool) bool {
	if !ok { // the channel is closed, or the broker has cancelled the consumer
		p.c.ended = true
		return false
	}
	p.c.Arrived(&raw)
	if p.single { // before its ack, so that the broker delivers no second one
		p.came, p.deliveries = true, nil
		within(goodbyeTimeout, p.c.cancel)
	}
	p.s.arrived(&p.in, Arrival{Raw: raw, At: time.Now(), On: p.c, Step: asArrived{}})
	return !p.single || p.in.ready.len() > 0 || p.in.hasTurn()
}

// start begins the first delivery, and reports whether the pump goes on.
func (p *pump) start() bool {
	if p.s.start(p.in.ready.pop()) && p.single {
		p.came = true
		return false
	}
	return true
}

// probes ends an outage if nothing has failed for a while. Otherwise the probe is undecided.
func (p *pump) probes() {
	if p.in.ready.len()+p.in.suspects.len() == 0 && p.c.lane.Idle() && p.s.places.areEmpty() {
		p.s.outage.quiet(quietProbe)
	}
}

// mayBegin reports whether a place is free for a delivery.
func (s *Subscription) mayBegin(a *Arrival) bool {
	if a.Alone {
		return s.places.areEmpty()
	}
	return s.places.areFree()
}

// start begins a delivery, and reports whether that is the message of a handler.
func (s *Subscription) start(a Arrival) (handled bool) {
	if !a.Step.Begin() {
		return false
	}
	if handled = a.Step.Task() != Follow; handled {
		if look := s.gate.Start(a.At); look != nil {
			conn := a.On.conn // a itself stays on the stack
			s.wg.Go(func() { s.look(conn, look) })
		}
	}
	s.begun(a)
	return handled
}

// quiet returns a channel that ticks while the consumer probes after an outage, and its end.
func (c *Channel) quiet() (ticks <-chan time.Time, end func()) {
	if c.use != ToProbe {
		return nil, func() {}
	}
	return ticking(quietProbe)
}

// slowly returns a channel that ticks when the prefetch may not suit the handlers, and its end.
func (s *Subscription) slowly(c *Channel) (ticks <-chan time.Time, end func()) {
	every := s.slowCheck(c)
	if every == 0 {
		return nil, func() {}
	}
	s.inHand.reset()
	return ticking(every)
}

func ticking(every time.Duration) (ticks <-chan time.Time, end func()) {
	ticker := time.NewTicker(every)
	return ticker.C, ticker.Stop
}

// over returns a channel that is closed when a consumer must receive no more, although its
// deliveries have not ended: the subscription stops, the outage is over, the gate is shut, or a
// probe has waited for its message long enough. unwatch must be called.
func (s *Subscription) over(c *Channel) (over <-chan struct{}, unwatch func()) {
	ctx, cancel := context.WithCancel(s.stop)
	shut, limit := s.gate.Shut(), (<-chan time.Time)(nil)
	if c.use == ToGetOne { // while the gate is shut
		shut, limit = nil, time.After(probeWait)
	}
	ended := s.outage.over(c.use == ToProbe)
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
func (s *Subscription) begun(a Arrival) {
	s.places.take()
	s.wg.Add(1)
	a.On.inFlight.Add(1)
	s.workers.give(a)
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

// arrived does with an arrival what the crash guard decides. A delivery that must
// not wait is settled at once, in its own goroutine, before a process that ends next could
// raise its count again.
func (s *Subscription) arrived(in *intake, a Arrival) {
	switch verdict := s.judge(a.On, &a.Raw); verdict {
	case innocent:
		in.ready.push(a)
	case suspect:
		a.turn = s.cfg.Group.turnsOf(s.cfg.Queue).join()
		in.suspects.push(a)
	case endangered, culprit:
		s.wg.Add(1)
		a.On.inFlight.Add(1)
		d, end := s.newDelivery(a)
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
		inFlight := a.On.inFlight // a itself stays on the stack
		go func() {
			defer s.wg.Done()
			defer inFlight.Done()
			defer end()
			settle()
		}()
	}
}

// take takes one delivery to its end and frees its place. It calls idle if its goroutine can
// take the next delivery.
func (s *Subscription) take(a Arrival, idle func()) {
	d, end := s.newDelivery(a)
	d.place.at, d.turn = inPlace, a.turn
	returned := false
	defer func() {
		if d.on.Together && s.base.Err() == nil { // else its handler may run
			d.step.Ended(d.outcome())
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

// outcome says how the delivery has ended. A handler that has acked its message may make a copy
// meanwhile, so that nothing of a copy is read that is not stored.
func (d *delivery) outcome() (end Outcome) {
	end.Acked = d.life.phase() == acked && d.ctx.Err() == nil
	if d.life.copy() == stored {
		end.Copied, end.Died = d.astray == nil, d.died != nil
	}
	return end
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
func (s *Subscription) release(c *Channel, unbegun []Arrival) {
	if c.Together {
		s.wg.Go(c.lane.Release)
		return
	}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		for _, a := range unbegun {
			a.turn.leave()
		}
		rest := make(chan Arrival)
		go func() {
			defer close(rest)
			c.cancel()
			for _, a := range unbegun {
				rest <- a
			}
			for raw := range c.deliveries {
				c.Arrived(&raw)
				rest <- Arrival{Raw: raw, At: time.Now(), On: c, Step: asArrived{}}
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
		c.Flush()
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
func (s *Subscription) putAllBack(c *Channel, rest <-chan Arrival) (back <-chan struct{}) {
	var wg sync.WaitGroup
	defer wg.Wait()
	limit := time.After(goodbyeTimeout)
	for {
		select {
		case a, ok := <-rest:
			if !ok {
				return always
			}
			d, end := s.newDelivery(a)
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
					_ = c.GiveBack(a.Raw.DeliveryTag)
				}
			}()
			return late
		}
	}
}

// intake holds the arrivals of one consumer until there is a place for them.
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
				return a.At, true
			}
		}
	}
	return at, false
}

// hasTurn reports whether the first suspect may be tried now.
func (in *intake) hasTurn() bool {
	select {
	case <-in.turn():
		return true
	default:
		return false
	}
}

// rest returns all arrivals.
func (in *intake) rest() []Arrival {
	return append(in.ready.items[in.ready.first:], in.suspects.items[in.suspects.first:]...)
}

// arrivals is a queue that keeps its memory.
type arrivals struct {
	items []Arrival
	first int
}

func (q *arrivals) len() int { return len(q.items) - q.first }

func (q *arrivals) push(a Arrival) {
	if q.first > 0 && q.first >= len(q.items)/2 {
		n := copy(q.items, q.items[q.first:])
		clear(q.items[n:])
		q.items, q.first = q.items[:n], 0
	}
	q.items = append(q.items, a)
}

// next is the first arrival. The queue must not be empty.
func (q *arrivals) next() *Arrival { return &q.items[q.first] }

// pop takes the first arrival. The queue must not be empty.
func (q *arrivals) pop() Arrival {
	a := q.items[q.first]
	q.items[q.first] = Arrival{}
	q.first++
	return a
}

// workers are goroutines that process one delivery at a time each. As many as most are kept for
// the next deliveries, because a new goroutine would have to grow its stack first.
type workers struct {
	work  func(a Arrival, idle func())
	most  int32
	tasks chan Arrival
	over  chan struct{}
	idle  atomic.Int32 // workers that receive, or are about to
}

func newWorkers(most int, work func(a Arrival, idle func())) *workers {
	return &workers{
		work: work, most: int32(most), tasks: make(chan Arrival), over: make(chan struct{}),
	}
}

// give passes a to a worker. Only one goroutine calls it.
func (w *workers) give(a Arrival) {
	if w.idle.Load() > 0 {
		w.idle.Add(-1)
		w.tasks <- a
		return
	}
	go w.run(a)
}

// end ends the idle workers. It is called after the last give.
func (w *workers) end() { close(w.over) }

func (w *workers) run(a Arrival) {
	for {
		stay := false
		w.work(a, func() {
			if stay = w.idle.Load() < w.most; stay {
				w.idle.Add(1)
			}
		})
		if !stay {
			return
		}
		select {
		case a = <-w.tasks:
		case <-w.over:
			return
		}
	}
}
