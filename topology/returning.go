package topology

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/consumer"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/middleware/header"
)

// Via is the way of a message back to its queue through the exchange that it came by. The field Via
// of PerQueue, Shared and DelayedExchange names the exchanges of the user for which that is so:
//
//	orders.wait.5s.via ── TTL, with its own routing key ──► exchange millpond.via
//	                                                              │ for orders, by events
//	            ┌─────────────────────────────────────────────────┤
//	            ▼                                                 ▼
//	          orders ◄── anchor ── exchange orders.return.events  │ no queue bound
//	                                        │ alternate           ▼
//	                                     events ──► orders, mail  millpond.stranded
//
// A message that came by one of these exchanges comes back through the same one, with the routing
// key that it arrived with. The strategy names the exchanges, and the delivery has the exchange
// and the key: no header of a producer decides where a message goes. A message that came another
// way comes back to its queue alone. All the exchanges have one set of wait queues.
//
// A message came by the exchange that it was published to. If that exchange leads to the queue by
// another exchange, name the first.
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
type Via struct {
	// Exchanges are the exchanges of the user.
	Exchanges []string
	// Through is the exchange of the plan that all messages pass on their way back.
	Through string
}

const viaSuffix = ".via"

// older returns the exchanges of the plan that delivered messages before one plan could have
// several exchanges, each with the exchange of the user that its messages came by.
func (r *Via) older() map[string]string {
	prefix, named := strings.CutSuffix(r.Through, viaSuffix)
	if !named {
		return nil
	}
	older := map[string]string{}
	for _, exchange := range r.Exchanges {
		older[prefix+".return."+exchange] = exchange
	}
	return older
}

// keepsKey reports whether a message that arrived by an exchange waits with its own routing key: it
// came by an exchange of the user, at first or on its way back.
func (p Plan) keepsKey(exchange string) bool {
	if p.Via == nil || exchange == "" {
		return false
	}
	_, older := p.Via.older()[exchange]
	return older || consumer.IsOlderLevel(exchange, p.Via.Through) ||
		slices.Contains(p.Via.Exchanges, exchange) ||
		slices.Contains(p.delayingExchanges(), exchange) ||
		slices.ContainsFunc(p.Queues, func(q Queue) bool {
			return q.Delay > 0 && q.Arguments["x-dead-letter-exchange"] == exchange
		})
}

// wayBack is how messages leave the wait queues of one queue.
type wayBack struct {
	*Via
	queue, stranded string
	kind            QueueType
}

// wayBack adds the exchanges of a way back through exchanges of the user. Without any, messages go
// straight to the queue.
func (p *planner) wayBack(exchanges []string, prefix string, kind QueueType) wayBack {
	w := wayBack{queue: p.plan.Queue, kind: kind}
	if len(exchanges) == 0 {
		return w
	}
	prefix = cmp.Or(prefix, defaultPrefix)
	w.Via = &Via{Exchanges: slices.Sorted(slices.Values(exchanges)), Through: prefix + viaSuffix}
	w.stranded = prefix + ".stranded"
	p.plan.Via = w.Via
	p.problem(checkVia(exchanges, w.Through, w.stranded))
	p.exchange(Exchange{Name: w.stranded, Kind: "fanout"}, "stranded exchange")
	p.exchange(Exchange{Name: w.Through, Kind: "headers", Arguments: alternateTo(w.stranded)},
		"return exchange")
	for _, to := range w.Exchanges {
		p.exchange(Exchange{
			Name: w.anchor(to), Kind: "direct", AutoDelete: true, Arguments: alternateTo(to),
		}, "exchange to return from")
	}
	return w
}

// checkVia returns an error about names that are no exchanges of the user.
func checkVia(exchanges []string, own ...string) error {
	var problems []error
	for i, name := range exchanges {
		switch {
		case name == "":
			problems = append(problems, errors.New("Via names the default exchange, whose messages come "+
				"back to their queue alone: leave it out"))
		case slices.Contains(exchanges[:i], name):
			problems = append(problems, fmt.Errorf("Via names exchange %q twice: name it once", name))
		case slices.Contains(own, name):
			problems = append(problems, fmt.Errorf("Via names exchange %q, which the plan declares: name "+
				"exchanges of yours", name))
		}
	}
	return errors.Join(problems...)
}

// anchor is the exchange of the queue that leads to an exchange of the user.
func (w wayBack) anchor(to string) string { return w.queue + ".return." + to }

func alternateTo(exchange string) amqp.Table { return amqp.Table{"alternate-exchange": exchange} }

// bindBack adds the stranded queue and the bindings that lead back.
func (p *planner) bindBack(w wayBack) {
	if w.Via == nil {
		return
	}
	p.strandedQueue(w.stranded, w.kind)
	p.plan.Bindings = append(p.plan.Bindings, Binding{
		Exchange: w.Through, RoutingKey: w.queue, Header: header.Queue, Value: w.queue,
		Queue: w.queue,
	})
	for _, to := range w.Exchanges {
		// The anchor binding exists as long as the queue, and its exchange as long as the binding
		// (F27). No message has its key, so all messages go to the alternate exchange.
		p.bind(w.anchor(to), w.anchor(to), w.queue)
		p.plan.Bindings = append(p.plan.Bindings, Binding{
			Exchange: w.Through, RoutingKey: w.queue, Header: keys.Via,
			Value: consumer.ViaHeader(w.queue, to), ToExchange: w.anchor(to),
		})
	}
}

// suffix is the part of a wait queue's name that tells the way back apart.
func (w wayBack) suffix() string {
	if w.Via == nil {
		return ""
	}
	return viaSuffix
}

// target is where the wait queues lead.
func (w wayBack) target() Route {
	if w.Via != nil {
		return Route{Exchange: w.Through}
	}
	return Route{RoutingKey: w.queue}
}
