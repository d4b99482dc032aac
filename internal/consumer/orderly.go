package consumer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/clock"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/order"
)

// This file handles the messages of each key in their order; see package order.
//
// All processes consume the line, which has a single active consumer. Each publishes a token to
// it, so that the broker tells one of them that it is active: that process takes the lead. It
// reads the line up to a new token. Then it consumes the main queue, which has a single active
// consumer, too. Its first message shows that the broker has taken the messages of the leader
// before back, in their order. The process reads the line up to another new token, and knows all
// copies whose messages are not in the main queue. Now it begins.
//
// Nothing is given back singly, because a quorum queue would deliver it out of its order (F50).
// The channels end, and everything comes again.

// Order says how messages are handled in order.
type Order struct {
	// KeyBy returns the key of a message, "" for a message that has no order. It is the user's:
	// it may panic.
	KeyBy func(*message.Message) string
	// Line is the queue beside the main queue.
	Line string
	// Block keeps a key waiting behind a dead letter until a person releases it.
	Block bool
	// Limits bound the line.
	Limits order.Limits
	// Instance names this process for people.
	Instance string
	// ControlUsers are the users whose tokens and releases count, by the UserId that the broker has
	// checked. Tokens of this process name its user then. Empty: every user's count.
	ControlUsers []string
}

// step is a message that may begin.
type step struct {
	*order.Step[arrival]
	tried  string // the token that says that the message is tried
	blamed bool   // the last process has ended while it tried the message alone
	blocks bool   // the mark of its dead letter is in the line
}

// inOrder is the part of a consumer that keeps the order.
type inOrder struct {
	lines *consumer // of the line

	mu   sync.Mutex
	line *order.Line[arrival]
	over bool // a delivery comes again: nothing begins
	// careful says that messages are tried.
	careful bool

	changed chan struct{} // has a value when a step has ended
	epoch   atomic.Uint64 // of the last token that came back

	main    *consumer // of the main queue; nil before the line is known
	opening bool
	opened  chan newMain  // the outcome of opening it
	asked   arrival       // of the main queue, whose key is not known
	key     <-chan string // of asked; nil for none
	late    *time.Timer   // the key of asked takes long
	came    bool          // a message of the main queue has come
	next    *step         // may begin
	behind  []*step       // may begin after it
	later   []func()      // answers and releases, which need to know the line

	mine   map[string]time.Time // tokens that have not come back, with the time of their publish
	gate   string               // the token before whose return nothing begins; "" for none
	whole  bool                 // a message of the main queue had come before the gate
	tokens []amqp.Delivery      // that are in hand
	ahead  int                  // the highest prefetch of the main queue that any process has had
	since  time.Time            // the process leads
	paused bool                 // logged that the line is full

	leased time.Time       // the process leads until then; guarded by mu
	lead   context.Context // done when the lease is over; guarded by mu
	lapse  *time.Timer     // ends lead
	// reading is when receiveInOrder has begun: it reads the tokens.
	reading time.Time

	last    order.Note      // the token of the process that has led before
	alive   map[uint64]bool // epochs whose processes have only lost their connections
	crashes int             // processes in a row that have ended while they led
}

type newMain struct {
	consumer *consumer
	err      error
}

// consumeLine consumes the line, and tells the active process that it is active.
func (s *Subscription) consumeLine(
	conn *link.Conn, limits Limits, use intent,
) (*consumer, error) {
	if err := s.checkUser(conn); err != nil {
		return nil, err
	}
	c, err := s.open(conn, limits, use, s.cfg.Order.Line, maxPrefetch)
	if err != nil {
		return nil, err
	}
	o := &inOrder{
		lines: c, line: order.New[arrival](s.cfg.Order.Limits),
		mine: map[string]time.Time{}, alive: map[uint64]bool{},
		changed: make(chan struct{}, 1), opened: make(chan newMain, 1), ahead: s.cfg.Consume.Prefetch,
	}
	c.inOrder = o
	closed := c.ch.NotifyClose(make(chan *amqp.Error, 1))
	if _, err = s.publishToken(o, 0); err == nil {
		err = s.checkToken(c.ch, closed)
	}
	if err != nil {
		_ = c.ch.Close()
		return nil, err
	}
	return c, nil
}

// receiveInOrder is receive for a queue that is handled in order. It reports whether a probe has
// begun to handle its message.
func (s *Subscription) receiveInOrder(c *consumer) (begun bool) {
	o := c.inOrder
	o.reading = time.Now()
	defer o.keepLead()
	var pace *time.Timer
	timer := time.NewTimer(0)
	defer timer.Stop()
	beat := time.NewTicker(leaseBeat)
	defer beat.Stop()
	o.late = time.NewTimer(lateKey)
	defer o.late.Stop()
	renew := time.NewTicker(min(max(c.hold/2, time.Second), mostRenewal))
	defer renew.Stop()
	quiet, endQuiet := c.quiet()
	defer endQuiet()
	over, unwatch := s.over(c)
	defer unwatch()
	for goOn := !c.single || o.leads() || s.beat(o); goOn; {
		s.openMain(o)
		if o.next == nil {
			o.next = o.take(timer)
		}
		var start, freed <-chan struct{}
		var paced <-chan time.Time
		pace, start, freed, paced = s.offer(o, pace)
		fromMain, mainGone := o.mainChannels()
		select {
		case raw, ok := <-c.deliveries:
			goOn = c.orEnds(ok && s.fromLine(c, raw))
		case opened := <-o.opened:
			goOn = s.mainOpened(o, opened)
		case raw, ok := <-fromMain:
			goOn = c.orEnds(ok && s.fromMain(o, raw))
		case <-mainGone:
			goOn = c.orEnds(false)
		case key := <-o.key:
			goOn = c.orEnds(s.keyed(o, key))
		case <-o.late.C:
			s.logLateKey(o)
		case <-start:
			begun = s.beginStep(o)
			goOn = !begun
		case <-freed:
		case <-paced:
		case <-o.changed:
		case <-timer.C:
		case <-beat.C:
			goOn = s.beat(o)
		case <-renew.C:
			goOn = s.renew(o)
		case <-quiet:
			if o.next == nil && o.key == nil && s.places.areEmpty() { // else the probe is undecided
				s.outage.quiet(clock.Wait(quietProbe))
			}
		case <-over:
			return begun
		}
	}
	return begun
}

// offer returns the channel of which one has a value when the next step may begin: start now, freed
// when a place is free, or paced later. A step that must not begin yet has none.
func (s *Subscription) offer(o *inOrder, timer *time.Timer) (
	pace *time.Timer, start, freed <-chan struct{}, paced <-chan time.Time,
) {
	next := o.next
	switch {
	case next == nil || !o.leads():
	case o.careful && next.isTried() && !s.try(o, next):
	case s.mayBegin(o, next):
		if timer, paced = s.paced(timer); paced == nil || o.lines.single {
			start, paced = always, nil
		}
	default:
		freed = s.places.freed
	}
	return timer, start, freed, paced
}

// beginStep begins the next step, and reports whether it is the message of a probe.
func (s *Subscription) beginStep(o *inOrder) (probe bool) {
	next := o.next
	if !next.Follows {
		if look := s.gate.Start(next.Item.at); look != nil {
			s.wg.Go(func() { s.look(o.lines.conn, look) })
		}
	}
	s.begun(next.Item.on, next.Item.with(next))
	o.next = nil
	return o.lines.single && !next.Follows
}

// mainChannels returns the deliveries of the main queue, or the end of its channel while the key of
// one of them is not known.
func (o *inOrder) mainChannels() (deliveries <-chan amqp.Delivery, gone <-chan struct{}) {
	switch {
	case o.main == nil:
		return nil, nil
	case o.key == nil:
		return o.main.deliveries, nil
	}
	return nil, o.main.ctx.Done()
}

func (s *Subscription) mainOpened(o *inOrder, opened newMain) (goOn bool) {
	o.opening = false
	if opened.err != nil {
		s.logger.Error("Cannot consume the queue, trying again", opened.err, nil)
		return false
	}
	o.main = opened.consumer
	o.main.inOrder = o
	return true
}

// orEnds notes that the consumer has ended, unless it can go on.
func (c *consumer) orEnds(goOn bool) bool {
	c.ended = c.ended || !goOn
	return goOn
}

// with returns the arrival as a step.
func (a arrival) with(next *step) arrival {
	a.step = next
	return a
}

// mayBegin reports whether a place is free. A probe is alone.
func (s *Subscription) mayBegin(o *inOrder, next *step) bool {
	if next.Follows || !o.lines.probing && !o.lines.single {
		return s.places.areFree()
	}
	return s.places.areEmpty()
}

// isTried reports whether a token must name the message before it begins, if messages are tried.
func (t *step) isTried() bool { return !t.Follows && t.From != (order.ID{}) && !t.blamed }

// take returns a step that may begin, and sets the timer if the next message is not due. While
// messages are tried it takes all that may begin, so that one token names them.
func (o *inOrder) take(timer *time.Timer) *step {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over {
		return nil
	}
	now := clock.Now()
	for len(o.behind) == 0 || o.careful {
		found, ok := o.line.Next(now)
		if !ok {
			break
		}
		next := &step{Step: found}
		if o.careful && found.From == o.last.Trying && found.From != (order.ID{}) {
			next.blamed, o.last.Trying = true, order.ID{}
		}
		if o.behind = append(o.behind, next); next.Follows {
			break // it needs room in the line, which its copy takes at its end
		}
	}
	if len(o.behind) > 0 {
		next := o.behind[0]
		o.behind = o.behind[1:]
		return next
	}
	if at, ok := o.line.Wake(); ok {
		timer.Reset(max(clock.Wait(at.Sub(now)), time.Millisecond))
	}
	return nil
}

// openMain consumes the main queue, once the line is known and has room. Every leader
// takes as many messages ahead as any leader before, because otherwise the broker would mix up the
// messages that it has taken back (F50).
func (s *Subscription) openMain(o *inOrder) {
	if o.since.IsZero() || o.gate != "" || o.main != nil || o.opening {
		return
	}
	if len(s.asking) > 0 { // an earlier consumer's: each end of a channel counts against the limit
		return
	}
	o.mu.Lock()
	spare := o.line.HasSpare()
	o.mu.Unlock()
	if !spare {
		if !o.paused {
			o.paused = true
			s.logger.Info("The line is full: the queue is not consumed until a tenth of it is free", nil)
		}
		return
	}
	c, ahead, use := o.lines, o.ahead, toConsume
	switch {
	case c.single:
		use = toGetOne
	case c.probing:
		use = toProbe
	}
	o.opening = true
	go func() {
		ctx, cancel := context.WithTimeout(s.stop, prepareTimeout)
		defer cancel()
		main, err := s.consumeWithin(ctx, func() (*consumer, error) {
			return s.open(c.conn, c.Limits, use, s.cfg.Queue, ahead)
		})
		o.opened <- newMain{main, err}
	}()
	s.logger.Info("Consuming in order", watermill.LogFields{"epoch": o.epoch.Load()})
}

// ended notes that a step has ended.
func (o *inOrder) ended(d *delivery) {
	copied := d.life.copy() == stored && d.astray == nil &&
		(d.died == nil || d.step.blocks && !d.step.isMarked())
	o.mu.Lock()
	if d.life.phase() != acked || d.ctx.Err() != nil {
		o.over = true
		o.lines.enoughNow() // its message comes again
	}
	o.line.Ended(d.step.Step, copied)
	marks := o.unmark(d)
	o.mu.Unlock()
	for _, mark := range marks {
		_ = o.lines.ack(mark.raw.DeliveryTag)
	}
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// giveAllBack ends the consumer.
func (o *inOrder) giveAllBack() {
	o.mu.Lock()
	o.over = true
	o.mu.Unlock()
	o.lines.enoughNow()
}

func (o *inOrder) isOver() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.over
}

// probeInOrder takes one message to its end while the gate is shut, and reports whether there
// was none to take. It returns the consumer for the next probe, nil if that needs another.
func (s *Subscription) probeInOrder(c *consumer) (next *consumer, none bool) {
	if c == nil {
		if c = s.consumeOne(); c == nil {
			return nil, true
		}
	}
	begun := s.receiveInOrder(c)
	settled := make(chan struct{})
	go func() {
		c.inFlight.Wait()
		if main := c.inOrder.main; main != nil {
			main.inFlight.Wait()
		}
		close(settled)
	}()
	select {
	case <-settled:
	case <-s.stop.Done():
	}
	if c.ctx.Err() != nil || c.ended || c.inOrder.isOver() {
		s.releaseInOrder(c)
		return nil, !begun
	}
	return c, !begun
}

// mostPatience is how long handlers may go on when their process has lost the lead. Until then no
// process gets the messages behind them. Afterwards their messages come again.
const mostPatience = 10 * time.Second

// releaseInOrder ends a consumer in order: its channels are closed when the messages in progress
// are settled. A cancel would let another process begin before.
func (s *Subscription) releaseInOrder(c *consumer) {
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		o := c.inOrder
		main := o.main
		if o.opening {
			main = (<-o.opened).consumer
		}
		both := []*consumer{c}
		if main != nil {
			both = []*consumer{main, c}
		}
		for _, c := range both { // nothing reads the deliveries that come now
			c.enoughNow()
		}
		patience := MaxHold
		if c.ended || o.isOver() {
			patience = mostPatience
		}
		within(patience, func() {
			for _, c := range both {
				c.inFlight.Wait()
			}
		})
		for _, c := range both {
			c.flushAcks()
		}
		if o.gate == "" && o.epoch.Load() > 0 && !o.isOver() {
			o.crashes = order.Clean
			s.led.CompareAndSwap(o.epoch.Load(), 0)
			_, _ = s.publishToken(o, o.epoch.Load())
		}
		for _, c := range both {
			c.gone()
			within(goodbyeTimeout, func() { _ = c.ch.Close() })
		}
	}()
}
