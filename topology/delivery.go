package topology

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/hold"
	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// delivery is a delivery as it arrived, from its arrival until it is settled.
type delivery struct {
	middleware.Attached
	sub *subscription
	on  *consumer
	raw amqp.Delivery
	ctx context.Context // the message's; done when it is settled or stale

	republished middleware.Republished // what the last try to republish made of the copy

	pending publisher.Pending // the copy whose outcome is open
	astray  *Route            // where a message of another queue goes on; see misled
}

func (d *delivery) plan() Plan { return d.sub.plan }

// process takes one delivery to its end: acked once it was handled or another
// durable copy is confirmed, given back otherwise.
func (s *subscription) process(c *consumer, a arrival) {
	d, end := s.newDelivery(c, a)
	defer end()
	if d.astray != nil {
		d.sendOn()
		return
	}
	if a.turn != nil && d.isolated() {
		return
	}
	if d.remaining() > 0 {
		d.settle("Waiting message cannot begin its next round, holding it", func(ctx context.Context) error {
			notes := d.State
			return d.republish(ctx, max(d.remaining(), time.Millisecond), &notes)
		}, nil)
		return
	}
	msg, err := d.decode()
	if err != nil {
		d.dropUndecodable(err)
		return
	}

	s.inHand.add(d, msg.UUID)
	defer s.inHand.remove(d)
	select {
	case s.out <- msg:
	case <-s.stop.Done():
		d.putBack()
		return
	case <-d.ctx.Done():
		return
	}
	// A stale message keeps its slot until its handler has ended, so that no more
	// handlers run at once than the user asked for.
	select {
	case <-msg.Acked():
		if d.Unsettled() {
			s.logger.Error("Message was acked though DelayedRetry could not settle it: a middleware outside, such as PoisonQueue, "+
				"has taken the error away; leave it out, or let ErrInterrupted and ErrNotHandedOver pass", errOrder, d.LogFields())
			d.nacked() // no copy is confirmed: acking would lose it
			return
		}
		d.ack()
	case <-msg.Nacked():
		d.nacked()
	case <-s.base.Done():
		d.abandon()
	}
}

// newDelivery makes a delivery of an arrival. end ends its context.
func (s *subscription) newDelivery(c *consumer, a arrival) (d *delivery, end context.CancelFunc) {
	raw := a.raw
	ctx, end := context.WithCancel(c.ctx)
	d = &delivery{sub: s, on: c, raw: raw, ctx: ctx}
	d.Queue = s.plan.Queue
	d.MessageID, d.CorrelationID = raw.MessageId, raw.CorrelationId
	d.Arrived, d.HoldUntil = a.at, a.at.Add(c.hold)
	d.Redelivered = raw.Redelivered
	d.Gone = ctx.Done()
	d.Closing = s.stop.Done()
	d.Given = s.given
	d.Source = d
	get := func(key string) (string, bool) {
		text, ok := raw.Headers[key].(string)
		return text, ok
	}
	owner, noted := get(header.Queue)
	if noted && (owner == d.Queue || s.plan.Via.passedBy(&raw)) {
		d.raw.Priority = wire.Priority(&raw, header.Priority)
	}
	if noted {
		if before, changed := s.plan.changedKey(&raw); changed {
			d.misled(owner, before)
		}
	}
	if owner != d.Queue {
		d.raw.Headers = withoutLiveNotes(raw.Headers)
	}
	d.State = header.Parse(d.Queue, get)
	if d.State.OriginExchange == "" && d.State.OriginRoutingKey == "" {
		d.State.OriginExchange, d.State.OriginRoutingKey = s.plan.Via.origin(raw.Exchange), raw.RoutingKey
	}
	if d.State.Deadline.IsZero() {
		d.State.Deadline, d.State.DeadlineFrom = s.subscriber.opts.timestamps.deadline(&raw, d.Arrived)
	}
	return d, end
}

// withoutLiveNotes drops notes that belong to another queue, before anyone
// reads them: the message was forwarded or copied here.
func withoutLiveNotes(headers amqp.Table) amqp.Table {
	if !hasLiveNotes(headers) {
		return headers
	}
	others := make(amqp.Table, len(headers))
	for key, value := range headers {
		if !header.IsLive(key) {
			others[key] = value
		}
	}
	return others
}

func hasLiveNotes(headers amqp.Table) bool {
	for key := range headers {
		if header.IsLive(key) {
			return true
		}
	}
	return false
}

// remaining returns how long the message must go on waiting: it waits in rounds.
// What is left under max(50 ms, 1 %) is not worth another one. A forged
// not-before is bounded by the delay noted with it.
func (d *delivery) remaining() time.Duration {
	if d.State.NotBefore.IsZero() {
		return 0
	}
	asked := min(max(d.State.Delay, d.State.Snoozed), backoff.MaxDelay)
	left := min(time.Until(d.State.NotBefore), asked)
	if left <= negligible(asked) {
		return 0
	}
	return left
}

// errUnreadable is that of a message whose headers are no headers any more; see
// internal/link.
var errUnreadable = errors.New("its headers cannot be read: nested too deep, too many or of a type that amqp091-go does not know; " +
	"their bytes are in the header " + header.Unreadable)

// decode makes the message that the handler sees, sharing nothing with the
// delivery.
func (d *delivery) decode() (msg *message.Message, err error) {
	if _, unreadable := d.raw.Headers[header.Unreadable].([]byte); unreadable {
		return nil, errUnreadable
	}
	seen := d.raw
	seen.Acknowledger = nil
	seen.Headers = wire.TextHeaders(d.raw.Headers)
	seen.Body = bytes.Clone(d.raw.Body)
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("marshaler panicked: %v", r)
		}
	}()
	msg, err = d.sub.subscriber.cfg.unmarshal(seen)
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

func (d *delivery) dropUndecodable(err error) {
	// The marshaler is the user's, and so is the text of its error.
	d.sub.logger.Error("Message cannot be decoded, dead-lettering it", errors.New(middleware.Event{Err: err}.ErrorText()), d.LogFields())
	notes := d.State
	notes.Reason, notes.DeadAt = header.ReasonUndecodable, time.Now()
	notes.Error, notes.Class = err.Error(), header.ClassPermanent
	d.settle("Undecodable message cannot be dead-lettered, holding it", func(ctx context.Context) error {
		return d.deadLetter(ctx, notes)
	}, func() { d.observeSettled(middleware.EventDeadLettered, notes, err) })
}

// nacked: the router nacked, because a middleware outside ours failed or the
// handler's messages could not be published. The message is set aside with its
// counts unchanged; at shutdown it goes straight back.
func (d *delivery) nacked() {
	if d.ctx.Err() != nil {
		if !d.on.ch.IsClosed() { // else the broker has the delivery back
			d.abandon()
		}
		d.observeReturned(context.Cause(d.ctx), 0, 0)
		return
	}
	if d.sub.stop.Err() != nil || d.sub.subscriber.opts.requeue {
		if !d.putBack() {
			d.observeReturned(errNacked, 0, 0)
		}
		return
	}
	notes := d.asideNotes()
	d.settle("Nacked message cannot be set aside, holding it", func(ctx context.Context) error {
		again := notes
		return d.republish(ctx, minSetAside, &again)
	}, func() { d.observeSettled(middleware.EventSnoozed, notes, nil) })
}

// errNacked is what observers are told of a message that the router has nacked.
var errNacked = errors.New("the router has nacked the message")

// asideNotes are the notes of a message that is set aside: all that tells of
// failures is left as it was.
func (d *delivery) asideNotes() header.RetryState {
	notes := d.State
	notes.NotBefore = time.Time{}
	notes.Snoozed = d.asideFor()
	notes.WaitingSince = time.Now()
	return notes
}

// asideFor is how long a message is set aside: shortly, but no shorter than the
// rest of a wait in rounds.
func (d *delivery) asideFor() time.Duration { return max(minSetAside, d.remaining()) }

// settle acks the delivery once handOver has a durable copy confirmed, and
// gives it back where that does not succeed. While it fails the delivery is held.
// Observers are told after the broker was, with settled if that is not nil.
func (d *delivery) settle(holding string, handOver func(context.Context) error, settled func()) {
	tries, held := 0, time.Duration(0)
	err := hold.Do(d.ctx, hold.Options{
		Stop:  d.Closing,
		Until: d.HoldUntil,
		Failed: func(err error, n int, t time.Duration) {
			tries, held = n, t
			d.observeMachinery(middleware.EventFailing, func(e *middleware.Event) { e.Err, e.Tries, e.Held = err, n, t })
		},
		Recovered: func(n int, t time.Duration) {
			d.observeMachinery(middleware.EventRecovered, func(e *middleware.Event) { e.Tries, e.Held = n, t })
		},
		Failing: func(err error, _ int, held time.Duration) {
			d.sub.logger.Error(holding, err, d.LogFields().Add(watermill.LogFields{"held": held}))
		},
	}, func() error { return handOver(context.WithoutCancel(d.ctx)) })
	if err != nil {
		d.sub.logger.Error("Message goes back to its queue", err, d.LogFields())
		if errors.Is(err, hold.ErrLimit) {
			if d.astray != nil && d.deadLetterAstray(err) || d.astray == nil && d.setAsideAtLast() {
				return
			}
			d.sub.suspend(d)
		}
		d.giveBack()
		d.observeReturned(err, tries, held)
		return
	}
	d.ack()
	if settled != nil {
		settled()
	}
}

// setAsideAtLast reports whether a message that could not be handed over for as
// long as it may be held was set aside. Only its own target may be out of order. An
// outcome that is still open is given up, as it would be by giving the delivery
// back, which counts against the delivery limit.
func (d *delivery) setAsideAtLast() bool {
	d.pending.Release()
	notes := d.asideNotes()
	if d.republish(context.WithoutCancel(d.ctx), notes.Snoozed, &notes) != nil {
		return false
	}
	d.ack()
	d.observeSettled(middleware.EventSnoozed, notes, nil)
	return true
}

// ack and giveBack fail only where the channel is gone; the broker has taken
// the message back then.
func (d *delivery) ack() {
	if err := d.on.settle(func() error { return d.raw.Ack(false) }); err != nil {
		d.sub.logger.Debug("Cannot ack, the message comes again: "+err.Error(), d.LogFields())
	}
}

func (d *delivery) giveBack() {
	if err := d.on.settle(func() error { return d.raw.Nack(false, true) }); err != nil {
		d.sub.logger.Debug("Cannot nack, the message comes again: "+err.Error(), d.LogFields())
	}
}
