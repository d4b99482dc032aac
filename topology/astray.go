package topology

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// errChangedKey is why a message came to another queue than its own.
var errChangedKey = errors.New("the routing key was changed when the wait was over")

// changedKey returns the routing key that a message had while it waited, and whether
// it came back with another one. The wait queues of Shared, Levels and Via set no
// dead-letter routing key, because a message keeps its own there, so a policy with
// dead-letter-routing-key sets one (F36). The broker notes the first one in x-death,
// which no copy takes into a wait queue.
func (p *Plan) changedKey(raw *amqp.Delivery) (before string, changed bool) {
	returns := raw.Exchange != "" && slices.ContainsFunc(p.Queues, func(q Queue) bool {
		_, fixed := q.Arguments["x-dead-letter-routing-key"]
		return q.Delay > 0 && !fixed && q.Arguments["x-dead-letter-exchange"] == raw.Exchange
	})
	deaths, _ := raw.Headers["x-death"].([]any)
	if !returns || len(deaths) == 0 {
		return "", false
	}
	first, _ := deaths[len(deaths)-1].(amqp.Table) // the newest is in front
	keys, _ := first["routing-keys"].([]any)
	if len(keys) == 0 {
		return "", false
	}
	before, known := keys[0].(string)
	return before, known && before != raw.RoutingKey
}

// misled takes a delivery whose routing key was changed from before on its way back;
// owner is the queue that its notes name.
//
// With Via the queue itself gets its retry whatever the key is, and handles it
// with the key that it had. A sibling has a copy that the changed key has brought it,
// and drops it. Elsewhere the key alone leads to the queue: a delivery of another
// queue is the only copy, and goes on with the key that it had.
func (d *delivery) misled(owner, before string) {
	through, own := d.sub.plan.Via.passedBy(&d.raw), owner == d.Queue
	switch {
	case through && own:
		d.sub.sayChangedReturn(d.raw.RoutingKey, before)
		d.raw.RoutingKey = before
	case through:
		d.sub.sayChangedReturn(d.raw.RoutingKey, before)
		d.Queue, d.astray = owner, &Route{}
	case !own:
		d.sub.sayAstray(owner, &d.raw, before)
		d.Queue, d.astray = owner, &Route{Exchange: d.raw.Exchange, RoutingKey: before}
	}
}

// sendOn takes a delivery of another queue to its end: the message goes on to its
// queue as it came, with its notes, and no attempt is counted.
func (d *delivery) sendOn() {
	if d.astray.Exchange == "" { // a second copy
		d.ack()
		return
	}
	notes := d.State
	d.settle("Message of another queue cannot be sent on, holding it", func(ctx context.Context) error {
		return d.forward(ctx, &notes)
	}, func() {
		if notes.Reason != "" {
			d.observeSettled(middleware.EventDeadLettered, notes, errChangedKey)
		}
	})
}

// forward has a copy of the delivery confirmed behind the exchange that it came by,
// with the routing key that it had. No note names a queue here: the message gets
// where the bindings lead it. A user who may not write there has it dead-lettered,
// with notes that are completed, because the delivery would be held without end.
func (d *delivery) forward(ctx context.Context, notes *header.RetryState) error {
	if d.pending.IsOpen() {
		if settled, err := d.earlier(ctx); settled {
			return err
		}
	}
	if notes.Reason == "" {
		msg := wire.Publishing(&d.raw, func(string) bool { return false }, nil)
		err := d.publish(ctx, *d.astray, &msg, false)
		if !isCode(err, amqp.AccessRefused) {
			return d.sub.outage.note(d, err)
		}
		d.misdirected(notes, err)
	}
	return d.deadLetter(ctx, *notes)
}

// misdirected completes the notes of a delivery that err keeps from its queue.
func (d *delivery) misdirected(notes *header.RetryState, err error) {
	d.sub.logger.Error("Message of another queue cannot be sent on, dead-lettering it", err, d.LogFields())
	notes.Reason, notes.DeadAt = header.ReasonMisdirected, time.Now()
	notes.Error = errors.Join(errChangedKey, err).Error()
	d.raw.Priority = wire.Priority(&d.raw, header.Priority)
}

// deadLetterAstray reports whether a delivery of another queue that could not be sent
// on for as long as it may be held is in the dead-letter queue. It must not be set
// aside: it would wait for this queue, whose handler would have it as its own.
func (d *delivery) deadLetterAstray(cause error) bool {
	d.pending.Release()
	notes := d.State
	d.misdirected(&notes, cause)
	if d.deadLetter(context.WithoutCancel(d.ctx), notes) != nil {
		return false
	}
	d.ack()
	d.observeSettled(middleware.EventDeadLettered, notes, errChangedKey)
	return true
}

// sayAstray says once that a message of another queue has come.
func (s *subscription) sayAstray(owner string, raw *amqp.Delivery, before string) {
	s.misled.Do(func() {
		s.logger.Error("A retry of another queue came here, because its routing key was changed when its wait was over: it is sent "+
			"on to its queue and not handled here; the likely cause is a policy with dead-letter-routing-key, which rabbitmqctl "+
			"list_policies shows: let its pattern match no wait queue", errChangedKey, watermill.LogFields{
			"belongs_to": owner, "exchange": raw.Exchange, "routing_key": raw.RoutingKey, "routing_key_before": before,
		})
	})
}

// sayChangedReturn says once that retries pass the user's exchange with a wrong key.
func (s *subscription) sayChangedReturn(key, before string) {
	s.misled.Do(func() {
		s.logger.Error("A retry returned through the exchange with another routing key than it had: its queue handles it with the "+
			"key that it had, queues with the same Via drop their copies of it; the likely cause is a policy with dead-letter-routing-key, "+
			"which rabbitmqctl list_policies shows: let its pattern match no wait queue", errChangedKey, watermill.LogFields{
			"exchange": s.plan.Via.Exchange, "routing_key": key, "routing_key_before": before,
		})
	})
}
