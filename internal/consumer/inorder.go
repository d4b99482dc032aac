package consumer

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/clock"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/order"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
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
}

// step is a message that may begin.
type step struct {
	*order.Step[arrival]
	tried  string // the token that says that the message is tried alone
	blamed bool   // the last process has ended while it tried the message
}

// inOrder is the part of a consumer that keeps the order.
type inOrder struct {
	lines *consumer // of the line

	mu   sync.Mutex
	line *order.Line[arrival]
	over bool // a delivery comes again: nothing begins
	// careful says that each message is tried alone.
	careful bool

	changed chan struct{} // has a value when a step has ended
	epoch   atomic.Uint64 // of the last token that came back

	main    *consumer // of the main queue; nil before the line is known
	opening bool
	opened  chan newMain // the outcome of opening it
	came    bool         // a message of the main queue has come
	next    *step        // may begin

	mine   map[string]time.Time // tokens that have not come back, with the time of their publish
	gate   string               // the token before whose return nothing begins; "" for none
	whole  bool                 // a message of the main queue had come before the gate
	tokens []amqp.Delivery      // that are in hand
	ahead  int                  // the highest prefetch of the main queue that any process has had
	leased time.Time            // the process leads until then
	since  time.Time            // the process leads

	last    order.Note      // the token of the process that has led before
	alive   map[uint64]bool // epochs whose processes have only lost their connections
	crashes int             // processes in a row that have ended while they led
	trying  order.ID        // the message that is tried alone; guarded by mu
}

type newMain struct {
	consumer *consumer
	err      error
}

// consumeLine consumes the line, and tells the active process that it is active.
func (s *Subscription) consumeLine(
	conn *link.Conn, limits Limits, use intent,
) (*consumer, error) {
	c, err := s.open(conn, limits, use, s.cfg.Order.Line, maxPrefetch)
	if err != nil {
		return nil, err
	}
	o := &inOrder{
		lines: c, line: order.New[arrival](s.cfg.Order.Limits), mine: map[string]time.Time{}, alive: map[uint64]bool{},
		changed: make(chan struct{}, 1), opened: make(chan newMain, 1), ahead: s.cfg.Consume.Prefetch,
	}
	c.inOrder = o
	o.trying.Epoch = s.led.Load() // this process has survived that it led
	_, err = s.publishToken(o, 0)
	o.trying = order.ID{}
	if err != nil {
		_ = c.ch.Close()
		return nil, err
	}
	return c, nil
}

// publishToken publishes a token on the channel that consumes the line: the broker has then seen
// everything that was given back there before.
func (s *Subscription) publishToken(o *inOrder, epoch uint64) (name string, err error) {
	name = watermill.NewShortUUID()
	o.mine[name] = time.Now()
	note := order.Note{
		Kind: order.Token, Epoch: epoch, Name: name, Ahead: o.ahead, Crashes: o.crashes,
	}
	o.mu.Lock()
	note.Trying = o.trying
	o.mu.Unlock()
	if epoch > 0 {
		s.led.Store(epoch)
	}
	err = o.lines.ch.PublishWithContext(context.Background(), "", s.cfg.Order.Line, false, false,
		amqp.Publishing{
			DeliveryMode: amqp.Persistent, Timestamp: time.Now(),
			Headers: amqp.Table{header.Line: note.String()},
		})
	if err != nil {
		err = fmt.Errorf("publish to queue %q: %w", s.cfg.Order.Line, err)
	}
	return name, err
}

// receiveInOrder is receive for a queue that is handled in order. It reports whether a probe has
// begun to handle its message.
func (s *Subscription) receiveInOrder(c *consumer) (begun bool) {
	o := c.inOrder
	var pace *time.Timer
	timer := time.NewTimer(0)
	defer timer.Stop()
	beat := time.NewTicker(leaseBeat)
	defer beat.Stop()
	var renew <-chan time.Time
	if c.NackCounts { // else the consumers have no timeout
		ticker := time.NewTicker(max(c.hold/2, time.Second))
		defer ticker.Stop()
		renew = ticker.C
	}
	var quiet <-chan time.Time
	if c.probing {
		ticker := time.NewTicker(clock.Wait(quietProbe))
		defer ticker.Stop()
		quiet = ticker.C
	}
	limit := s.probeLimit(c)
	if c.single && !o.leads() && !s.beat(o) {
		return false
	}
	stopped := s.seat.Stopped()
	if c.single { // a probe is for a stopped brake
		stopped = nil
	}
	for {
		if o.next == nil {
			o.next = o.take(timer)
		}
		next := o.next
		var start, freed <-chan struct{}
		var paced <-chan time.Time
		switch {
		case next == nil || !o.leads():
		case !next.Follows && o.careful && !next.blamed && !s.try(o, next):
		case s.mayBegin(o, next):
			if pace, paced = s.paced(pace); paced == nil || c.single {
				start, paced = always, nil
			}
		default:
			freed = s.places.freed
		}
		var fromMain <-chan amqp.Delivery
		if o.main != nil {
			fromMain = o.main.deliveries
		}
		select {
		case raw, ok := <-c.deliveries:
			if !ok || !s.fromLine(c, raw) {
				c.ended = true
				return false
			}
		case opened := <-o.opened:
			if opened.err != nil {
				o.opening = false
				s.logger.Error("Cannot consume the queue, trying again", opened.err, nil)
				return false
			}
			o.main, o.opening = opened.consumer, false
			o.main.inOrder, o.main.probing, o.main.single = o, c.probing, c.single
		case raw, ok := <-fromMain:
			if !ok || !s.fromMain(o, raw) {
				c.ended = true
				return false
			}
		case <-start:
			if !next.Follows {
				if look := s.seat.Start(next.Item.at); look != nil {
					s.wg.Go(func() { s.look(c.conn, look) })
				}
			}
			s.begun(next.Item.on, next.Item.with(next))
			if o.next = nil; c.single && !next.Follows {
				return true
			}
		case <-freed:
		case <-paced:
		case <-o.changed:
		case <-timer.C:
		case <-beat.C:
			if !s.beat(o) {
				return false
			}
		case <-renew:
			if !s.renew(o) {
				return false
			}
		case <-quiet:
			if o.next == nil && s.places.areEmpty() { // else the probe is undecided
				s.outage.quiet(clock.Wait(quietProbe))
			}
		case <-limit:
			return false
		case <-c.enough:
			return false
		case <-s.outage.over(c.probing):
			return false
		case <-stopped:
			return false
		case <-s.stop.Done():
			return false
		case <-c.ctx.Done():
			return false
		}
	}
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

// probeLimit returns a channel that has a value when a probe has waited for its message long
// enough. It is nil for other consumers.
func (s *Subscription) probeLimit(c *consumer) <-chan time.Time {
	if !c.single {
		return nil
	}
	return time.After(probeWait)
}

// take returns a step that may begin, and sets the timer for the next one that is not due.
func (o *inOrder) take(timer *time.Timer) *step {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over {
		return nil
	}
	now := clock.Now()
	if found, ok := o.line.Next(now); ok {
		next := &step{Step: found}
		if o.careful && found.From == o.last.Trying && found.From != (order.ID{}) {
			next.blamed, o.last.Trying = true, order.ID{}
		}
		return next
	}
	if at, ok := o.line.Wake(); ok {
		timer.Reset(max(clock.Wait(at.Sub(now)), time.Millisecond))
	}
	return nil
}

// fromLine takes a delivery of the line. It reports whether the consumer can go on.
func (s *Subscription) fromLine(c *consumer, raw amqp.Delivery) bool {
	o := c.inOrder
	c.acks.arrived(raw.DeliveryTag)
	a := arrival{raw: raw, at: time.Now(), on: c}
	text, _ := raw.Headers[header.Line].(string)
	note := order.ParseNote(text)
	if o.gate == "" && len(o.tokens) == 0 && !s.shut(o, 0) {
		return false
	}
	switch note.Kind {
	case order.Token:
		return s.token(o, raw, note)
	case order.Release:
		s.unblock(o, a, note)
	case order.Ask:
		s.answer(o, raw.ReplyTo)
		_ = c.ack(raw.DeliveryTag)
	case order.Wait, order.Block:
		o.waits(a, note, s.due(&raw))
	}
	return true
}

// waits takes a message that waits in the line. A message whose number cannot be read goes first.
func (o *inOrder) waits(a arrival, note order.Note, due time.Time) {
	key, _ := a.raw.Headers[header.Key].(string)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.line.Returned(order.Waiting[arrival]{
		Key: key, Seq: note.Seq, ID: note.ID, Due: due, Size: len(a.raw.Body) + besideBody,
		Block: note.Kind == order.Block, Item: a,
	})
}

// due returns when a message of the line may be handled; zero for at once. A forged time, and the
// time of a host whose clock was ahead, is bounded as in other queues.
func (s *Subscription) due(raw *amqp.Delivery) (at time.Time) {
	if _, waits := raw.Headers[header.NotBefore]; !waits {
		return at
	}
	state := header.Parse(s.cfg.Queue, func(key string) (string, bool) {
		text, ok := raw.Headers[key].(string)
		return text, ok
	})
	if left := remaining(&state); left > 0 {
		at = clock.Now().Add(left)
	}
	return at
}

// token takes a token. It reports whether this process may go on to lead.
func (s *Subscription) token(o *inOrder, raw amqp.Delivery, note order.Note) bool {
	published, mine := o.mine[note.Name]
	delete(o.mine, note.Name)
	if !mine && note.Epoch > order.MaxEpoch { // forged
		note.Epoch = 0
	}
	o.ahead = max(o.ahead, note.Ahead)
	o.mu.Lock()
	before := o.line.Epoch()
	o.line.Seen(note.Epoch)
	o.mu.Unlock()
	if note.Epoch == 0 && note.Trying.Epoch > 0 {
		o.alive[note.Trying.Epoch] = true
		s.recount(o)
	}
	switch own := o.epoch.Load(); {
	case own > 0 && note.Epoch >= own && !mine:
		return false // another process has led meanwhile
	case o.gate == "" && !mine || note.Epoch == 0 && own > 0: // of a process that has just begun
		_ = o.lines.ack(raw.DeliveryTag)
		return true
	}
	o.tokens = append(o.tokens, raw)
	if !mine && note.Epoch >= o.last.Epoch && note.Epoch > 0 {
		o.last = note
		s.recount(o)
	}
	switch {
	case !mine || o.gate != "" && note.Name != o.gate:
		return true
	case o.gate != "" && (note.Epoch <= before || note.Ahead < o.ahead || note.Crashes < o.crashes):
		return s.shut(o, max(before, note.Epoch)) // another process has led before
	}
	for _, old := range o.tokens[:len(o.tokens)-1] {
		_ = o.lines.ack(old.DeliveryTag)
	}
	o.tokens = []amqp.Delivery{raw}
	if until := published.Add(lease); until.After(o.leased) {
		o.leased = until
	}
	if o.gate == "" {
		return true
	}
	o.gate = ""
	o.epoch.Store(note.Epoch)
	o.mu.Lock()
	o.line.Know(note.Epoch, o.whole)
	o.mu.Unlock()
	switch {
	case o.main == nil && !o.opening:
		o.since = time.Now().UTC()
		s.beCareful(o, o.crashes >= mostCrashes)
		s.openMain(o)
	case o.came && !o.whole:
		return s.shut(o, note.Epoch)
	}
	return true
}

// shut publishes a token before whose return nothing begins.
func (s *Subscription) shut(o *inOrder, epoch uint64) bool {
	name, err := s.publishToken(o, epoch+1)
	o.gate, o.whole = name, o.came
	return err == nil
}

const (
	// lease is how long a process leads after it has published a token that comes back. A process
	// that was frozen, or whose broker node was cut off, begins nothing when that is over. It must be
	// shorter than any time after which the broker lets another process lead: two heartbeats, or the
	// tick of the cluster.
	lease     = 3 * time.Second
	leaseBeat = time.Second
	// lateToken is how long a token may take to come back.
	lateToken = 10 * time.Second
)

// leads reports whether the process may begin a message.
func (o *inOrder) leads() bool { return time.Now().Before(o.leased) }

// beat publishes a token that keeps the lead, unless one is on its way.
func (s *Subscription) beat(o *inOrder) bool {
	if len(o.tokens) == 0 {
		return true // another process leads
	}
	if o.crashes > 0 && !o.since.IsZero() && time.Since(o.since) >= clock.Wait(calm) {
		o.last, o.crashes = order.Note{}, 0
		s.beCareful(o, false)
	}
	for _, at := range o.mine {
		if time.Since(at) < lateToken {
			return true
		}
	}
	if o.gate != "" {
		o.mu.Lock()
		epoch := o.line.Epoch()
		o.mu.Unlock()
		return s.shut(o, epoch)
	}
	_, err := s.publishToken(o, o.epoch.Load())
	return err == nil
}

const (
	// mostCrashes is how many processes in a row may end while they lead, before messages are
	// tried alone.
	mostCrashes = 3
	// calm is how long a process must lead until it counts as not ended.
	calm = time.Minute
)

// recount counts the processes that have ended while they led. A process that has lost its
// connection alone tells so when it is back.
func (s *Subscription) recount(o *inOrder) {
	switch {
	case o.last.Epoch == 0:
		return
	case o.alive[o.last.Epoch]:
		o.crashes, o.last.Trying = max(0, o.last.Crashes), order.ID{}
	default:
		o.crashes = o.last.Crashes + 1
	}
	if o.epoch.Load() > 0 {
		s.beCareful(o, o.crashes >= mostCrashes)
	}
}

// beCareful begins or ends to try each message alone. A message that ends the process is found so:
// the token names it, and the next process reads the token.
func (s *Subscription) beCareful(o *inOrder, careful bool) {
	if o.careful == careful {
		return
	}
	o.careful = careful
	o.mu.Lock()
	o.line.BeCareful(careful)
	o.mu.Unlock()
	if careful {
		s.logger.Info("Processes or connections have ended repeatedly while they handled the queue: its "+
			"messages are tried one at a time for a while", watermill.LogFields{"ended": o.crashes})
	}
}

// try reports whether a token says that the message is tried alone.
func (s *Subscription) try(o *inOrder, next *step) bool {
	if next.tried == "" {
		o.mu.Lock()
		o.trying = next.From
		o.mu.Unlock()
		var err error
		if next.tried, err = s.publishToken(o, o.epoch.Load()); err != nil {
			o.lines.enoughNow()
			return false
		}
	}
	_, away := o.mine[next.tried]
	return !away
}

// openMain consumes the main queue. Every leader takes as many messages ahead as any leader
// before, because otherwise the broker would mix up those that it has taken back (F50).
func (s *Subscription) openMain(o *inOrder) {
	c := o.lines
	o.opening = true
	go func() {
		main, err := s.open(c.conn, c.Limits, toConsume, s.cfg.Queue, o.ahead)
		o.opened <- newMain{main, err}
	}()
	s.logger.Info("Consuming in order", watermill.LogFields{"epoch": o.epoch.Load()})
}

// fromMain takes a delivery of the main queue.
func (s *Subscription) fromMain(o *inOrder, raw amqp.Delivery) bool {
	o.main.acks.arrived(raw.DeliveryTag)
	a := arrival{raw: raw, at: time.Now(), on: o.main}
	// Every end of a channel counts against the delivery limit. A copy has a new count.
	limit := o.main.Deliveries
	must := limit != NoLimit && deliveryCount(&raw) >= int64(max(1, limit/2)) && raw.Redelivered
	key := s.keyOf(&raw)
	o.mu.Lock()
	o.line.Arrived(key, a, must)
	epoch := o.line.Epoch()
	o.mu.Unlock()
	if o.came {
		return true
	}
	o.came = true
	return o.gate != "" || s.shut(o, epoch)
}

// maxKey is the longest key that does not change, so that the headers of a copy and of a mark fit
// into a frame.
const maxKey = 1024

// keyOf returns the key of a message as it stands in headers and in answers: as text. It is "" if
// it cannot be read. Such a message is dead-lettered when it is handled.
func (s *Subscription) keyOf(raw *amqp.Delivery) string {
	asked := make(chan string, 1)
	go func() { // the user's function may end it
		defer close(asked)
		asked <- s.askKey(raw)
	}()
	key := <-asked
	if len(key) > maxKey {
		key = fmt.Sprintf("%.64q %x", key, sha256.Sum256([]byte(key)))
	}
	if !utf8.ValidString(key) {
		key = strconv.QuoteToASCII(key)
	}
	return key
}

func (s *Subscription) askKey(raw *amqp.Delivery) (key string) {
	defer func() {
		if r := recover(); r != nil {
			key = ""
			s.keyless.Do(func() {
				s.logger.Error("KeyBy of topology.InOrder has panicked: the message has no key and no order",
					fmt.Errorf("panic: %v", r), watermill.LogFields{"message_id": raw.MessageId})
			})
		}
	}()
	seen := *raw
	seen.Acknowledger = nil
	seen.Headers = wire.TextHeaders(raw.Headers)
	msg, err := s.cfg.Decode(seen)
	if err != nil || msg == nil {
		return ""
	}
	return s.cfg.Order.KeyBy(msg)
}

// renew gives everything in the line back before the broker's consumer timeout, and reads it
// again.
func (s *Subscription) renew(o *inOrder) bool {
	if o.gate != "" || len(o.tokens) == 0 {
		return true
	}
	o.mu.Lock()
	items := o.line.Forget()
	epoch := o.line.Epoch()
	o.mu.Unlock()
	c := o.lines
	c.flushAcks()
	var err error
	for _, a := range items {
		c.conn.Together(func() { err = c.ch.Nack(a.raw.DeliveryTag, false, true) })
		c.acks.nacked(a.raw.DeliveryTag)
		if err != nil {
			return false
		}
	}
	return s.shut(o, epoch)
}

// unblock takes the mark of a dead letter away.
func (s *Subscription) unblock(o *inOrder, a arrival, note order.Note) {
	key, _ := a.raw.Headers[header.Key].(string)
	o.mu.Lock()
	items := o.line.Release(key, note.ID)
	o.mu.Unlock()
	for _, mark := range append(items, a) {
		_ = o.lines.ack(mark.raw.DeliveryTag)
	}
}

// answer tells a person, or a tool, what is in the line.
func (s *Subscription) answer(o *inOrder, replyTo string) {
	if !strings.HasPrefix(replyTo, s.cfg.Order.Line+".") { // a queue of this library, not of a user
		return
	}
	limits := s.cfg.Order.Limits
	state := order.State{
		Instance: s.cfg.Order.Instance, Epoch: o.epoch.Load(), Since: o.since,
		MaxMessages: limits.Messages, MaxBytes: limits.Bytes,
	}
	o.mu.Lock()
	state.Messages, state.Bytes = o.line.Len()
	for k := range o.line.Keys {
		key := order.KeyState{Key: k.Key, Waiting: k.Waiting, Due: k.Due}
		if k.Mark != nil {
			key.Waiting--
			key.Mark, key.Blocked = k.MarkID.String(), k.Mark.raw.Timestamp
			key.MessageID = k.Mark.raw.MessageId
			key.Replayed = k.Replayed
		}
		state.Keys = append(state.Keys, key)
	}
	o.mu.Unlock()
	state.Sort()
	s.wg.Go(func() {
		body, err := json.Marshal(state)
		if err == nil {
			err = s.cfg.Group.Publisher.Publish(s.stop, "", replyTo, amqp.Publishing{
				ContentType: "application/json", Body: body,
			})
		}
		if err != nil {
			s.logger.Debug("Cannot answer a question about the line: "+err.Error(), nil)
		}
	})
}

// ended notes that a step has ended.
func (o *inOrder) ended(d *delivery) {
	copied := d.stored && d.astray == nil && (d.died == nil || d.blocks)
	o.mu.Lock()
	if !d.acked || d.ctx.Err() != nil {
		o.over = true
	}
	o.line.Ended(d.step.Step, copied)
	if o.trying == d.step.From {
		o.trying = order.ID{}
	}
	o.mu.Unlock()
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

// probeHold is how long a process keeps the lead for another probe. Each end of a consumer counts
// against the delivery limit of all messages that it had.
const probeHold = time.Minute

// probeInOrder takes one message to its end while a brake is stopped, and reports whether there
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
		for _, c := range both {
			c.inFlight.Wait()
			c.flushAcks()
		}
		if o.gate == "" && o.epoch.Load() > 0 && !o.isOver() {
			o.crashes = order.Clean
			s.led.CompareAndSwap(o.epoch.Load(), 0)
			_, _ = s.publishToken(o, o.epoch.Load())
		}
		for _, c := range both {
			close(c.cancelled)
			within(goodbyeTimeout, func() { _ = c.ch.Close() })
		}
	}()
}

// follow sends a message to the line, behind the messages of its key.
func (d *delivery) follow() {
	d.settle("Message cannot be stored behind the messages of its key, holding it",
		func(ctx context.Context) error {
			state := d.State
			return d.republish(ctx, d.remaining(), &state)
		}, func() {
			if d.died != nil {
				d.observeSettled(middleware.EventDeadLettered, d.State, nil)
			}
		})
}

// block writes the mark of a dead letter to the line.
func (d *delivery) block(ctx context.Context) error {
	if d.blocks {
		return nil
	}
	headers := amqp.Table{}
	d.step.writeAs(order.Block, headers)
	err := d.sub.cfg.Group.Publisher.Publish(ctx, "", d.sub.cfg.Order.Line, amqp.Publishing{
		DeliveryMode: amqp.Persistent, Timestamp: clock.Now(), MessageId: d.raw.MessageId,
		Headers: headers,
	})
	d.blocks = err == nil
	return err
}

// write adds the headers of a copy in the line.
func (t *step) write(headers amqp.Table) { t.writeAs(order.Wait, headers) }

func (t *step) writeAs(kind order.Kind, headers amqp.Table) {
	headers[header.Line] = order.Note{Kind: kind, Seq: t.Seq, ID: t.ID}.String()
	if t.Key != "" {
		headers[header.Key] = t.Key
	}
}

// writeDead adds the headers of a dead letter.
func (t *step) writeDead(headers amqp.Table) {
	if t.Key != "" {
		headers[header.DeadKey] = t.Key
	}
	headers[header.DeadLine] = order.Note{Kind: order.Block, Seq: t.Seq, ID: t.ID}.String()
}

// maxPrefetch is AMQP's limit. Without a prefetch a quorum queue delivers 2000 messages (F50).
const maxPrefetch = 65535

// besideBody is what a message in the line takes in memory beside its body.
const besideBody = 2 << 10
