package topology

import (
	"cmp"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/consumer"
	"github.com/millpond-go/millpond/middleware/header"
)

// Via is the way of a message back to its queue through an exchange of the user, which the field
// Via of PerQueue, Shared and PerAttempt names:
//
//	orders.wait.5s.to.events ── TTL, with its own routing key ──► exchange millpond.return.events
//	                                                                    │ for orders
//	            ┌───────────────────────────────────────────────────────┤
//	            ▼                                                       ▼
//	          orders ◄── anchor ── exchange orders.return.events        │ no queue bound
//	                                        │ alternate                 ▼
//	                                     events ──► orders, mail    millpond.stranded
//
// A message that came by that exchange comes back with the routing key that it arrived with. The
// strategy names the exchange, and the delivery has the key: no header of a message decides
// where it goes. A message that came another way comes back to its queue alone.
//
// Every queue that is bound to the exchange gets every retry: a sibling of the queue sees each
// retry as a new message, as its first attempt. If the sibling fails it, the retry of that
// failure comes back to the sibling alone, so that retries do not multiply without end. A
// message that is snoozed, or that waits in rounds, passes the exchange only as often as it has
// failed. Choose Via if the siblings want the retries, or if there are no siblings. A sibling
// needs a Subscriber of this package: watermill-amqp's Subscriber cannot decode a message that
// has waited, and nacks it in a hot loop (F1). A sibling queue that is full or out of reach
// holds up a quorum wait queue (F5).
//
// The queue itself gets its retry once, although two ways lead to it (F27), and also if the
// exchange or its binding has vanished. If the queue has vanished, its exchange
// orders.return.events is gone, too, because it is deleted with its last binding. Then the
// message goes to the stranded queue, where it can be seen, and stops no other message.
//
// A policy with dead-letter-routing-key must not match the wait queues. Under such a policy the
// queue still gets its retry, with the key that it arrived with, but siblings get none (F36).
//
// Levels has no Via: it keeps the delay in the routing key.
type Via struct {
	// Exchange is the exchange of the user.
	Exchange string
	// Through is the exchange of the plan that delivers the messages that come back.
	Through string
}

// brought reports whether a delivery came by the exchange, at first or on its way back.
func (r *Via) brought(retry Retry) bool {
	return r != nil && (retry.Exchange == r.Exchange || retry.Exchange == r.Through)
}

// wayBack is how messages leave the wait queues of one queue.
type wayBack struct {
	*Via
	queue, anchor, stranded string
	kind                    QueueType
}

// wayBack adds the exchanges of a way back through the user's exchange to. If to is empty,
// messages go straight to the queue.
func (p *planner) wayBack(to, prefix string, kind QueueType) wayBack {
	w := wayBack{queue: p.plan.Queue, kind: kind}
	if to == "" {
		return w
	}
	prefix = cmp.Or(prefix, defaultPrefix)
	w.Via = &Via{Exchange: to, Through: prefix + ".return." + to}
	w.anchor, w.stranded = w.queue+".return."+to, prefix+".stranded"
	p.plan.Via = w.Via
	alternate := func(exchange string) amqp.Table { return amqp.Table{"alternate-exchange": exchange} }
	p.exchange(Exchange{Name: w.stranded, Kind: "fanout"}, "stranded exchange")
	p.exchange(Exchange{Name: w.Through, Kind: "headers", Arguments: alternate(w.stranded)},
		"return exchange")
	p.exchange(Exchange{Name: w.anchor, Kind: "direct", AutoDelete: true, Arguments: alternate(to)},
		"exchange to return from")
	return w
}

// bindBack adds the stranded queue and the bindings that lead back.
func (p *planner) bindBack(w wayBack) {
	if w.Via == nil {
		return
	}
	p.strandedQueue(w.stranded, w.kind)
	// The anchor binding exists as long as the queue, and its exchange as long as the binding
	// (F27). No message has its key, so all messages go to the alternate exchange.
	p.bind(w.anchor, w.anchor, w.queue)
	toQueue := Binding{
		Exchange: w.Through, RoutingKey: w.queue, Header: header.Queue, Value: w.queue,
		Queue: w.queue,
	}
	toAnchor := Binding{
		Exchange: w.Through, RoutingKey: w.queue, Header: header.Via,
		Value: consumer.ViaHeader(w.queue), ToExchange: w.anchor,
	}
	p.plan.Bindings = append(p.plan.Bindings, toQueue, toAnchor)
}

// suffix is the part of a wait queue's name that tells the way back apart.
func (w wayBack) suffix() string {
	if w.Via == nil {
		return ""
	}
	return ".to." + w.Exchange
}

// target is where the wait queues lead.
func (w wayBack) target() Route {
	if w.Via != nil {
		return Route{Exchange: w.Through}
	}
	return Route{RoutingKey: w.queue}
}
