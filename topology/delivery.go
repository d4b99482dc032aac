package topology

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/hold"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware"
)

// delivery is a delivery as it arrived, from its arrival until it is settled.
type delivery struct {
	middleware.Delivery
	sub *subscription
	raw amqp.Delivery
	ctx context.Context // the message's; done when it is settled or stale
}

func (d *delivery) plan() Plan { return d.sub.plan }

// process takes one delivery to its end: acked once it was handled or another
// durable copy is confirmed, given back otherwise.
func (s *subscription) process(c *consumer, raw amqp.Delivery) {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	d := s.newDelivery(ctx, raw)

	if d.guarded() {
		return
	}
	if wait := d.remaining(); wait > 0 {
		d.settle("Waiting message cannot begin its next round, holding it", func(ctx context.Context) error {
			return d.republish(ctx, wait, d.Notes)
		})
		return
	}
	msg, err := d.decode()
	if err != nil {
		d.dropUndecodable(err)
		return
	}

	select {
	case s.out <- msg:
	case <-s.stop.Done():
		d.giveBack()
		return
	case <-ctx.Done():
		return
	}
	// A stale message keeps its slot until its handler has ended, so that no more
	// handlers run at once than the user asked for.
	select {
	case <-msg.Acked():
		d.ack()
	case <-msg.Nacked():
		d.nacked()
	case <-s.base.Done():
		d.giveBack()
	}
}

func (s *subscription) newDelivery(ctx context.Context, raw amqp.Delivery) *delivery {
	d := &delivery{sub: s, raw: raw, ctx: ctx}
	d.Queue = s.plan.Queue
	d.Arrived = time.Now()
	d.Gone = ctx.Done()
	d.Closing = s.stop.Done()
	d.Source = d
	header := func(key string) (string, bool) {
		text, ok := raw.Headers[key].(string)
		return text, ok
	}
	if owner, _ := header(middleware.QueueKey); owner != d.Queue {
		d.raw.Headers = withoutLiveNotes(raw.Headers)
	}
	d.Notes = middleware.ParseNotes(d.Queue, header)
	if d.Notes.OriginExchange == "" && d.Notes.OriginRoutingKey == "" {
		d.Notes.OriginExchange, d.Notes.OriginRoutingKey = raw.Exchange, raw.RoutingKey
	}
	if d.Notes.Deadline.IsZero() {
		d.Notes.Deadline = deadline(&raw, d.Arrived)
	}
	return d
}

// withoutLiveNotes drops notes that belong to another queue, before anyone
// reads them: the message was forwarded or copied here.
func withoutLiveNotes(headers amqp.Table) amqp.Table {
	out := headers
	for key := range headers {
		if !middleware.IsLiveKey(key) {
			continue
		}
		if len(out) == len(headers) { // the first: copy before the change
			out = make(amqp.Table, len(headers))
			for k, v := range headers {
				if !middleware.IsLiveKey(k) {
					out[k] = v
				}
			}
			break
		}
	}
	return out
}

// deadline returns the end of the message's own expiration, which the broker
// removes when the message waits (F15).
func deadline(raw *amqp.Delivery, arrived time.Time) time.Time {
	ms, err := strconv.ParseInt(raw.Expiration, 10, 64)
	if err != nil || ms < 0 {
		return time.Time{}
	}
	since := raw.Timestamp
	if since.IsZero() {
		since = arrived
	}
	return since.Add(time.Duration(min(ms, backoff.MaxDelay.Milliseconds())) * time.Millisecond)
}

// remaining returns how long the message must go on waiting: it waits in rounds.
// What is left under max(50 ms, 1 %) is not worth another one. A forged
// not-before is bounded by the delay noted with it.
func (d *delivery) remaining() time.Duration {
	if d.Notes.NotBefore.IsZero() {
		return 0
	}
	asked := min(max(d.Notes.Delay, d.Notes.SetAside), backoff.MaxDelay)
	left := min(d.Notes.NotBefore.Sub(d.Arrived), asked)
	if left <= max(50*time.Millisecond, asked/100) {
		return 0
	}
	return left
}

// decode makes the message that the handler sees, sharing nothing with the
// delivery.
func (d *delivery) decode() (msg *message.Message, err error) {
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
	d.sub.logger.Error("Message cannot be decoded, dead-lettering it", err, d.logFields())
	notes := d.Notes
	notes.Reason, notes.DeadAt = middleware.ReasonUndecodable, time.Now()
	notes.Error, notes.Class = err.Error(), middleware.ClassPermanent
	d.settle("Undecodable message cannot be dead-lettered, holding it", func(ctx context.Context) error {
		return d.deadLetter(ctx, notes)
	})
}

// nacked: the router nacked, because a middleware outside ours failed or the
// handler's messages could not be published. The message is set aside with its
// counts unchanged; at shutdown it goes straight back.
func (d *delivery) nacked() {
	if d.ctx.Err() != nil {
		return // stale: the broker has it back
	}
	if d.sub.stop.Err() != nil || d.sub.subscriber.opts.requeue {
		d.giveBack()
		return
	}
	notes := d.Notes
	notes.NotBefore = time.Time{}
	d.settle("Nacked message cannot be set aside, holding it", func(ctx context.Context) error {
		return d.republish(ctx, minSetAside, notes)
	})
}

// settle acks the delivery once handOver has a durable copy confirmed, and
// gives it back where that does not succeed. While it fails the delivery is held.
func (d *delivery) settle(holding string, handOver func(context.Context) error) {
	err := hold.Do(d.ctx, hold.Options{
		Stop:  d.Closing,
		Until: d.Arrived.Add(defaultHoldLimit),
		Failing: func(err error, _ int, held time.Duration) {
			d.sub.logger.Error(holding, err, d.logFields().Add(watermill.LogFields{"held": held}))
		},
	}, func() error { return handOver(context.WithoutCancel(d.ctx)) })
	if err != nil {
		d.sub.logger.Error("Message goes back to its queue", err, d.logFields())
		d.giveBack()
		return
	}
	d.ack()
}

// ack and giveBack fail only where the channel is gone; the broker has taken
// the message back then.
func (d *delivery) ack() {
	if err := d.raw.Ack(false); err != nil {
		d.sub.logger.Debug("Cannot ack, the message comes again: "+err.Error(), d.logFields())
	}
}

func (d *delivery) giveBack() {
	if err := d.raw.Nack(false, true); err != nil {
		d.sub.logger.Debug("Cannot nack, the message comes again: "+err.Error(), d.logFields())
	}
}

func (d *delivery) logFields() watermill.LogFields {
	fields := watermill.LogFields{"message_id": d.raw.MessageId}
	if msg := d.Message(); msg != nil {
		fields["message_uuid"] = msg.UUID
	}
	return fields
}
