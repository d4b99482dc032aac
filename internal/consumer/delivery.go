package consumer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/attached"
	"github.com/millpond-go/millpond/internal/clock"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology/wait"
)

// delivery is a delivery from its arrival until it is settled.
type delivery struct {
	attached.Delivery
	republished middleware.Republished // where the last copy to a wait queue is
	died        *header.RetryState     // of the last copy if that is a dead letter, else nil
	sub         *Subscription
	on          *Channel
	raw         amqp.Delivery
	ctx         context.Context // the message's; done when it is settled or stale
	own         deliveryContext // ctx

	place   standing
	turn    *turn             // of a suspect, which the crash guard tries alone: it keeps its place
	pending publisher.Pending // the copy whose outcome is open
	during  uint32            // outages that had begun when the last copy was published
	astray  *wait.Route       // where a message of another queue goes on; see misled

	step Step
	life life

	kept        Kept      // its ID is the property, or the UUID that the handler gets
	uuid        string    // that the handler gets
	since       time.Time // of its arrival; nothing writes it while a user's function may run
	triedAtOnce bool      // the copy was published straight to its queue; see comesAtOnce
}

// deliveryContext is the context of a message. It leads to the delivery.
type deliveryContext struct {
	context.Context
	of *delivery
}

type deliveryKey struct{}

func (c *deliveryContext) Value(key any) any {
	if key == (deliveryKey{}) {
		return c.of
	}
	return c.Context.Value(key)
}

// deliveryIn returns the delivery that ctx leads to, also through other messages; nil for none.
func deliveryIn(ctx context.Context) *delivery {
	d, _ := ctx.Value(deliveryKey{}).(*delivery)
	return d
}

// process takes one delivery to its end: it acks the delivery after the message was handled
// or after another durable copy is confirmed, and otherwise gives it back.
func (s *Subscription) process(d *delivery) {
	if d.astray != nil {
		d.sendOn()
		return
	}
	switch d.step.Task() {
	case Follow:
		d.again("Message cannot be stored behind the messages of its key, holding it", 0)
		return
	case Blame:
		d.blame()
		return
	}
	if d.turn != nil && d.isolated() {
		return
	}
	if d.remaining() > 0 {
		d.again("Waiting message cannot begin its next round, holding it", time.Millisecond)
		return
	}
	d.life.enter(decoding)
	s.inHand.add(d)
	defer s.inHand.remove(d)
	if s.base.Err() != nil { // leaveDecoding may have been before
		if d.life.endDecoding(handling) {
			d.putBack()
		}
		return
	}
	msg, err := d.decode()
	if err == nil {
		d.uuid = msg.UUID
	}
	switch {
	case !d.life.endDecoding(handling): // the delivery has ended without the marshaler
		return
	case err != nil:
		s.inHand.remove(d)
		d.dropUndecodable(err)
		return
	}

	d.kept.ID = cmp.Or(d.MessageID, d.uuid)
	s.cfg.Keeper.Came(&d.kept)
	select {
	case s.out <- msg:
	case <-s.stop.Done():
		d.putBack()
		return
	case <-d.ctx.Done():
		return
	}
	// A stale message keeps its place until its handler has ended, so that no more handlers
	// run at once than the user asked for.
	select {
	case <-msg.Acked():
		if d.Progress() == attached.Unsettled {
			s.logger.Error("Message was acked although DelayedRetry could not settle it: an outer "+
				"middleware, such as PoisonQueue, has dropped the error; remove that middleware, or let "+
				"ErrInterrupted and ErrNotHandedOver pass",
				errOrder, d.logFields())
			d.nacked() // no copy is confirmed: an ack would lose the message
			return
		}
		d.ack()
	case <-msg.Nacked():
		d.nacked()
	case <-s.base.Done():
		d.abandon()
	}
}

// again publishes the message as it has come, with the rest of its delay.
func (d *delivery) again(holding string, least time.Duration) {
	d.settle(holding, func(ctx context.Context) error {
		state := d.State
		return d.republish(ctx, max(d.remaining(), least), &state)
	}, func() {
		if d.died != nil {
			d.observeSettled(middleware.EventDeadLettered, d.State, nil)
		}
	})
}

// newDelivery makes a delivery of an arrival. end ends its context.
func (s *Subscription) newDelivery(a Arrival) (d *delivery, end context.CancelFunc) {
	raw, c := a.Raw, a.On
	ctx, end := context.WithCancel(c.ctx)
	d = &delivery{sub: s, on: c, raw: raw, step: a.Step, since: a.At}
	d.own = deliveryContext{ctx, d}
	d.ctx = &d.own
	d.Queue, d.Topic = s.cfg.Queue, s.cfg.Topic
	d.MessageID, d.CorrelationID = raw.MessageId, raw.CorrelationId
	d.Arrived, d.HoldUntil = a.At, a.At.Add(c.hold)
	if c.Together && !c.NackCounts { // no timeout; it may have waited for longer than hold
		d.HoldUntil = time.Now().Add(c.hold)
	}
	d.Redelivered = raw.Redelivered
	d.Probe = c.use == ToGetOne
	d.Gone = ctx.Done()
	d.Closing = s.stop.Done()
	d.pending.Written = d
	via := &s.cfg.Waits.Via
	owner, known := raw.Headers[header.Queue].(string)
	if known && (owner == d.Queue || via.passedBy(raw.Exchange)) {
		d.raw.Priority = wire.Priority(&raw, keys.Priority)
	}
	if known {
		if before, changed := s.changedKey(&raw); changed {
			d.misled(owner, before)
		}
	}
	if owner != d.Queue {
		d.raw.Headers = withoutLive(raw.Headers)
	}
	d.State = State(d.Queue, &raw)
	if d.State.OriginExchange == "" && d.State.OriginRoutingKey == "" {
		d.State.OriginExchange = via.origin(raw.Exchange, raw.Headers)
		d.State.OriginRoutingKey = raw.RoutingKey
	}
	d.countRejects()
	d.State.Epoch = a.Step.Epoch()
	d.kept = Kept{Raw: &d.raw, On: c, Arrived: a.At, Isolated: d.State.Interruptions > 0}
	d.Given = s.cfg.Keeper.Given(&d.kept, s.cfg.Waits.Copied)
	if d.State.Deadline.IsZero() {
		d.State.Deadline, d.State.DeadlineFrom = s.cfg.Timestamps.deadline(&raw, d.Arrived)
	}
	return d, end
}

// withoutLive drops the headers of a retry that belongs to another queue: the message was
// forwarded or copied here.
func withoutLive(headers amqp.Table) amqp.Table {
	live := 0
	for key := range headers {
		if keys.IsLive(key) {
			live++
		}
	}
	if live == 0 {
		return headers
	}
	others := make(amqp.Table, len(headers)-live)
	for key, value := range headers {
		if !keys.IsLive(key) {
			others[key] = value
		}
	}
	return others
}

// remaining returns how long a message that waits in rounds must go on waiting; 0 if it is due.
// The last round names no time: so a clock that is behind adds none. A forged not-before is
// bounded by the delay that the message names beside it.
func (d *delivery) remaining() time.Duration { return Remaining(&d.State) }

// Remaining returns how long a message with this state must go on waiting; 0 if it is due.
func Remaining(state *header.RetryState) time.Duration {
	if state.NotBefore.IsZero() {
		return 0
	}
	asked := min(max(state.Delay, state.Snoozed), backoff.MaxDelay)
	return max(0, min(state.NotBefore.Sub(clock.Now()), asked))
}

// decode makes the message that the handler gets. It shares nothing with the delivery.
func (d *delivery) decode() (msg *message.Message, err error) {
	if _, unreadable := d.raw.Headers[keys.Unreadable].([]byte); unreadable {
		return nil, errUnreadable
	}
	seen := d.raw
	seen.Acknowledger = nil
	seen.Headers = wire.TextHeaders(d.raw.Headers)
	for _, key := range d.sub.cfg.Waits.RouteHeaders {
		delete(seen.Headers, key)
	}
	seen.Body = bytes.Clone(d.raw.Body)
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("marshaler panicked: %v", r)
		}
	}()
	msg, err = d.sub.cfg.Decode(seen)
	if err == nil && msg == nil {
		err = errors.New("marshaler returned no message")
	}
	if err != nil {
		return nil, err
	}
	msg.SetContext(d.ctx)
	d.Attach(msg)
	return msg, nil
}

// ack acks the delivery, or rejects it if its queue keeps the message. It and giveBack fail only
// if the channel is gone. The broker has taken the message back then.
func (d *delivery) ack() {
	if d.life.settle() == rejected {
		if err := d.on.reject(d.raw.DeliveryTag); err != nil {
			d.sub.logger.Debug("Cannot reject, the message comes again: "+err.Error(), d.logFields())
		}
		return
	}
	if err := d.on.Ack(d.raw.DeliveryTag); err != nil {
		d.sub.logger.Debug("Cannot ack, the message comes again: "+err.Error(), d.logFields())
	}
}

func (d *delivery) giveBack() {
	d.life.enter(back)
	if d.on.Together {
		d.on.lane.GiveBack()
		return
	}
	if d.sub.stop.Err() != nil {
		d.awaitCancel()
	}
	if err := d.on.GiveBack(d.raw.DeliveryTag); err != nil {
		d.sub.logger.Debug("Cannot nack, the message comes again: "+err.Error(), d.logFields())
	}
}

// awaitCancel returns when the broker delivers nothing more, so that a delivery that is given back
// does not come again at once: that would count as another delivery.
func (d *delivery) awaitCancel() {
	if d.on.Together {
		return // nothing is given back before the channel ends
	}
	select {
	case <-d.on.cancelled:
	case <-d.ctx.Done():
	case <-time.After(goodbyeTimeout):
	}
}

// Received returns the delivery behind the message that ctx belongs to, as a copy. It is
// false if the message did not come from a Subscription.
func Received(ctx context.Context) (amqp.Delivery, bool) {
	d := deliveryIn(ctx)
	if d == nil {
		return amqp.Delivery{}, false
	}
	return wire.Clone(&d.raw), true
}

// TimestampWindow says which timestamps may be the time of publishing: timestamps that lie less
// than Past before the arrival of the message, or less than Future after it.
type TimestampWindow struct{ Past, Future time.Duration }

// deadline returns the end of the message's own expiration, which the broker removes when
// the message waits (F15), and the time from which the expiration is counted. Both are zero
// for a message without an expiration.
func (w TimestampWindow) deadline(
	raw *amqp.Delivery, arrived time.Time,
) (end time.Time, from string) {
	valid, ok := Expiration(raw.Expiration)
	if !ok {
		return time.Time{}, ""
	}
	if w.holds(raw.Timestamp, arrived) {
		// The broker drops a message whose expiration is over before it delivers the message
		// (F37). So an end before the arrival was not counted from the publishing.
		if end = raw.Timestamp.Add(valid); end.After(arrived) {
			return end, keys.FromTimestamp
		}
	}
	return arrived.Add(valid), keys.FromArrival
}

// holds reports whether t lies in the window around the arrival.
func (w TimestampWindow) holds(t, arrived time.Time) bool {
	return !t.IsZero() && t.After(arrived.Add(-w.Past)) && t.Before(arrived.Add(w.Future))
}

// Expiration reads the property of that name: whole milliseconds as text.
func Expiration(text string) (valid time.Duration, ok bool) {
	if text == "" { // most messages; ParseInt would allocate an error
		return 0, false
	}
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ms < 0 {
		return 0, false
	}
	return time.Duration(min(ms, backoff.MaxDelay.Milliseconds())) * time.Millisecond, true
}
