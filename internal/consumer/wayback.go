package consumer

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/clock"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology/wait"
)

// Via is the way of messages back to their queue through the exchange of the user that each
// came by. The zero value means that they go straight to their queue.
type Via struct {
	// Exchanges are the exchanges of the user.
	Exchanges []string
	// Through are the exchanges of the plan that its wait queues lead to. They deliver the
	// messages.
	Through []string
	// Older are exchanges of an earlier version that deliver messages, each for one exchange
	// of the user. Messages of wait queues of that version come by them.
	Older map[string]string
}

const (
	// viaOwed is the header of a message that has failed and waits in rounds: its last round
	// passes the exchange.
	viaOwed = "owed"
	// viaKept is the header of a message that is snoozed and may pass another time.
	viaKept = "kept"
)

// ViaHeader is the header of a message of the queue that passes the exchange. No other queue and
// exchange have the same, because the escaped name of the exchange has no space.
func ViaHeader(queue, exchange string) string {
	return "through " + url.PathEscape(exchange) + " " + queue
}

// brought returns the exchange of the user that a delivery came by at first, and the first word
// of its header if it comes from a wait queue; "" if it came another way. The header counts only
// on a delivery of a wait queue, and names only exchanges of the plan: a producer that forges it
// changes nothing.
func (v *Via) brought(exchange string, headers amqp.Table) (by, before string) {
	if slices.Contains(v.Exchanges, exchange) {
		return exchange, ""
	}
	if !v.passedBy(exchange) {
		return "", ""
	}
	text, _ := headers[keys.Via].(string)
	before, rest, _ := strings.Cut(text, " ")
	if before == "" {
		return "", ""
	}
	if by, older := v.Older[exchange]; older {
		return by, before
	}
	word, _, _ := strings.Cut(rest, " ")
	by, err := url.PathUnescape(word)
	if err != nil || !slices.Contains(v.Exchanges, by) {
		return "", ""
	}
	return by, before
}

// header returns the header that tells the broker and the next delivery whether the message
// passes the exchange that it came by when its wait is over; "" if it may not pass. A message
// from a wait queue may pass if it did so before. The copy of a sibling did not: it arrives
// without the header.
func (v *Via) header(d *delivery, failed, lastRound bool) string {
	by, before := v.brought(d.raw.Exchange, d.raw.Headers)
	switch {
	case by == "":
		return ""
	case !failed && before != viaOwed:
		return viaKept + " " + url.PathEscape(by)
	case !lastRound:
		return viaOwed + " " + url.PathEscape(by)
	}
	return ViaHeader(d.Queue, by)
}

// passedBy reports whether an exchange delivers messages of wait queues.
func (v *Via) passedBy(exchange string) bool {
	_, older := v.Older[exchange]
	return older || slices.ContainsFunc(v.Through, func(through string) bool {
		return exchange == through || IsOlderLevel(exchange, through)
	})
}

// IsOlderLevel reports whether an exchange led from a level of Levels to the exchange through.
// Before v0.1.0 Levels had a Via, with names such as millpond.level.0.via and millpond.via. Their
// messages have the headers of today.
func IsOlderLevel(exchange, through string) bool {
	prefix, named := strings.CutSuffix(through, ".via")
	return named && strings.HasPrefix(exchange, prefix+".level.") &&
		strings.HasSuffix(exchange, ".via")
}

// origin returns the exchange that a message without retry state came from. A copy of a
// sibling's retry came from the exchange of the user, which its header names.
func (v *Via) origin(exchange string, headers amqp.Table) string {
	if by, _ := v.brought(exchange, headers); by != "" {
		return by
	}
	return exchange
}

// keepsKey reports whether an exchange is behind wait queues that leave the routing key to the
// message.
func (w *Waits) keepsKey(exchange string) bool {
	return slices.Contains(w.KeyKept, exchange) || w.Via.passedBy(exchange)
}

// waited reports whether a delivery comes from a wait queue: it has passed an exchange behind wait
// queues, or x-death names a wait queue last. A producer that knows the name may write that, too.
func (w *Waits) waited(raw *amqp.Delivery) bool {
	var newest amqp.Table
	if deaths, _ := raw.Headers["x-death"].([]any); len(deaths) > 0 {
		newest, _ = deaths[0].(amqp.Table)
	}
	queue, _ := newest["queue"].(string)
	return w.keepsKey(raw.Exchange) || slices.Contains(w.Queues, queue)
}

// changedKey returns the routing key that a message had while it waited, and whether it came
// back with another one. A policy with dead-letter-routing-key changes the key of messages
// whose wait queue leaves it to them (F36). The broker notes the first key in x-death, which
// no copy takes into a wait queue.
func (s *Subscription) changedKey(raw *amqp.Delivery) (before string, changed bool) {
	deaths, _ := raw.Headers["x-death"].([]any)
	if len(deaths) == 0 || !s.cfg.Waits.keepsKey(raw.Exchange) {
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

// misled decides about a delivery whose routing key was changed from before on its way back.
// owner is the queue that its headers name.
//
// With Via the queue itself gets its retry under any key and handles it with the key that it
// had. A sibling has a copy that the changed key has led to it, and drops it. Without Via the
// key alone leads to the queue: a delivery of another queue is the only copy and goes on with
// the key that it had.
func (d *delivery) misled(owner, before string) {
	through, own := d.sub.cfg.Waits.Via.passedBy(d.raw.Exchange), owner == d.Queue
	switch {
	case through && own:
		d.sub.logChangedReturn(&d.raw, before)
		d.raw.RoutingKey = before
	case through:
		d.sub.logChangedReturn(&d.raw, before)
		d.Queue, d.astray = owner, &wait.Route{}
	case !own:
		d.sub.logAstray(owner, &d.raw, before)
		d.Queue, d.astray = owner, &wait.Route{Exchange: d.raw.Exchange, RoutingKey: before}
	}
}

// sendOn takes a delivery of another queue to its end: the message goes on to its queue as it
// came, with its retry state, and no attempt is counted.
func (d *delivery) sendOn() {
	if d.astray.Exchange == "" { // a second copy
		d.ack()
		return
	}
	state := d.State
	d.settle("Message of another queue cannot be sent on, holding it",
		func(ctx context.Context) error {
			return d.forward(ctx, &state)
		}, func() {
			if state.Reason != "" {
				d.observeSettled(middleware.EventDeadLettered, state, errChangedKey)
			}
		})
}

// forward publishes a copy of the delivery to the exchange that it came from, with the routing
// key that it had, and waits for the confirm. No header names a queue here: the bindings lead
// the message. If the user may not write to the exchange, forward dead-letters the message and
// completes state, because otherwise the delivery would be held without end.
func (d *delivery) forward(ctx context.Context, state *header.RetryState) error {
	if d.pending.IsOpen() {
		if settled, err := d.earlier(ctx); settled {
			return err
		}
	}
	if state.Reason == "" {
		msg := wire.Publishing(&d.raw, func(string) bool { return false }, nil)
		err := d.publish(ctx, d.astray, &msg, false)
		if !isCode(err, amqp.AccessRefused) {
			return d.sub.outage.note(d, err)
		}
		d.misdirected(state, err)
	}
	return d.deadLetter(ctx, *state)
}

// misdirected completes the state of a delivery that err keeps from its queue.
func (d *delivery) misdirected(state *header.RetryState, err error) {
	d.sub.logger.Error("Message of another queue cannot be sent on, dead-lettering it", err,
		d.logFields())
	state.Reason, state.DeadAt = header.ReasonMisdirected, clock.Now()
	state.Error = errors.Join(errChangedKey, err).Error()
	d.raw.Priority = wire.Priority(&d.raw, keys.Priority)
}

// deadLetterAstray dead-letters a delivery of another queue that could not be sent on for as
// long as it may be held, and reports whether that worked. It must not be snoozed: it would
// wait for this queue, whose handler would take it for its own.
func (d *delivery) deadLetterAstray(cause error) bool {
	d.pending.Release()
	state := d.State
	d.misdirected(&state, cause)
	if d.deadLetter(context.WithoutCancel(d.ctx), state) != nil {
		return false
	}
	d.ackAfter(func() { d.observeSettled(middleware.EventDeadLettered, state, errChangedKey) })
	return true
}

// logAstray logs once that a message of another queue has come.
func (s *Subscription) logAstray(owner string, raw *amqp.Delivery, before string) {
	s.misled.Do(func() {
		s.logger.Error("A retry of another queue came here because its routing key was changed when "+
			"its wait was over: it is sent on to its queue and not handled here; the likely cause is a "+
			"policy with dead-letter-routing-key: find it with rabbitmqctl list_policies and let its "+
			"pattern match no wait queue", errChangedKey, watermill.LogFields{
			"belongs_to": owner, "exchange": raw.Exchange, "routing_key": raw.RoutingKey,
			"routing_key_before": before,
		})
	})
}

// logChangedReturn logs once that retries pass the user's exchange with a wrong key.
func (s *Subscription) logChangedReturn(raw *amqp.Delivery, before string) {
	s.misled.Do(func() {
		exchange := s.cfg.Waits.Via.origin(raw.Exchange, raw.Headers)
		s.logger.Error("A retry came back through the exchange with another routing key than it had: "+
			"its queue handles it with the key that it had, and queues with the same Via drop their "+
			"copies of it; the likely cause is a policy with dead-letter-routing-key: find it with "+
			"rabbitmqctl list_policies and let its pattern match no wait queue",
			errChangedKey, watermill.LogFields{
				"exchange": exchange, "routing_key": raw.RoutingKey, "routing_key_before": before,
			})
	})
}
