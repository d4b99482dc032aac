package topology

import (
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/consumer"
	"github.com/millpond-go/millpond/middleware/header"
)

// Return is the way of a message back through an exchange of the user's, which
// the Via of PerQueue, Shared and PerAttempt names:
//
//	orders.wait.5s.to.events ── TTL, with its own routing key ──► exchange millpond.return.events
//	                                                                    │ for orders
//	            ┌───────────────────────────────────────────────────────┤
//	            ▼                                                       ▼
//	          orders ◄── anchor ── exchange orders.return.events        │ nobody bound
//	                                        │ alternate                 ▼
//	                                     events ──► orders, mail    millpond.stranded
//
// A message that came by that exchange returns with the routing key it came with.
// The exchange is the strategy's, and the key the delivery's: no header of a message
// steers it anywhere. What came another way returns to its queue alone.
//
// Whoever is bound there gets every retry: a sibling of the queue sees each as a
// new message, its first attempt. What the sibling fails of those returns to it
// alone, so that retries do not multiply without end; and a message that
// is set aside, or waits in rounds, passes the exchange no more often than it has
// failed. Choose it where the others want the retries, or where nobody else is
// bound. A sibling needs a Subscriber of this package, for watermill-amqp's cannot
// decode what has waited and nacks it in a hot loop (F1). One that is full or out of reach holds up a quorum wait queue (broker
// fact F5).
//
// The queue itself gets its retry once, though two ways lead to it (F27), and also
// where the exchange or its binding has vanished. Where the queue has vanished, its
// own exchange in between is gone with it, for that is deleted with its last
// binding: the message lands in the stranded queue, where it can be seen, and stops no
// other.
//
// A policy with dead-letter-routing-key must not match the wait queues. Under one the
// queue still gets its retry, with the key it came with, but siblings get none (F36).
//
// Levels has no Via: the routing key is where it keeps the delay.
type Via struct {
	// Exchange is the user's.
	Exchange string
	// Through is ours: what returns is delivered by it.
	Through string
}

// brought reports whether a delivery came by the exchange, for the first time or
// on its way back.
func (r *Via) brought(retry Retry) bool {
	return r != nil && (retry.Exchange == r.Exchange || retry.Exchange == r.Through)
}

// wayBack is how messages leave the wait queues of one queue.
type wayBack struct {
	*Via
	queue, anchor, stranded string
	kind                    QueueType
}

// wayBack adds the exchanges of a return through the user's exchange; straight to
// the queue where to is empty.
func (p *planner) wayBack(to, prefix string, kind QueueType) wayBack {
	w := wayBack{queue: p.plan.Queue, kind: kind}
	if to == "" {
		return w
	}
	prefix = prefixOr(prefix)
	w.Via = &Via{Exchange: to, Through: prefix + ".return." + to}
	w.anchor, w.stranded = w.queue+".return."+to, prefix+".stranded"
	p.plan.Via = w.Via
	p.exchange(Exchange{Name: w.stranded, Kind: "fanout"}, "stranded exchange")
	p.exchange(Exchange{Name: w.Through, Kind: "headers", Arguments: amqp.Table{"alternate-exchange": w.stranded}}, "return exchange")
	p.exchange(Exchange{Name: w.anchor, Kind: "direct", AutoDelete: true, Arguments: amqp.Table{"alternate-exchange": to}}, "exchange to return from")
	return w
}

// bindBack adds the queue of the stranded and the bindings that lead back.
func (p *planner) bindBack(w wayBack) {
	if w.Via == nil {
		return
	}
	p.strandedQueue(w.stranded, w.kind)
	// The anchor: it is there as long as the queue is, and the exchange as long as
	// it is (F27). No message has its key, so all go to the alternate exchange.
	p.bind(w.anchor, w.anchor, w.queue)
	p.plan.Bindings = append(p.plan.Bindings,
		Binding{Exchange: w.Through, RoutingKey: w.queue, Queue: w.queue, Header: header.Queue, Value: w.queue},
		Binding{Exchange: w.Through, RoutingKey: w.queue, ToExchange: w.anchor, Header: header.Via, Value: consumer.ViaHeader(w.queue)},
	)
}

// suffix is what the name of a wait queue must carry of the way back.
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

// waitExchange adds an exchange for one wait queue, through which a message keeps
// its routing key, and returns the route.
func (p *planner) waitExchange(q Queue) Route {
	p.exchange(Exchange{Name: q.Name, Kind: "fanout"}, "wait exchange of "+delayName(q.Delay))
	p.bind(q.Name, "", q.Name)
	return Route{Exchange: q.Name, RoutingKey: p.plan.Queue}
}
