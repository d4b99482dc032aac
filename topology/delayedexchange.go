package topology

import (
	"cmp"
	"math"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
)

// DelayedExchange lets the messages of all queues wait in an exchange of RabbitMQ's
// delayed-message plugin. It is for those who run the plugin already. The plugin ends with RabbitMQ
// 4.2, and its promises are the weakest of all strategies:
//
//	orders ── fails ──► exchange millpond.delayed, header x-delay
//	                         │ a table of one node, in no queue
//	                         ▼
//	orders ◄── bound by its name ── exchange millpond.delayed.return
//	                                       │ no queue bound
//	               queue millpond.stranded ◄── exchange millpond.stranded
//
// Waiting messages are on one node and on no other. The confirm comes before they are on its disk:
// a node that is killed loses the messages of the last seconds, and a lost node loses all. Messages
// whose wait ends while the broker restarts are lost before a quorum queue (F49).
//
// A delay costs no queue, so the plan has some three hundred wait steps beside the delays of the
// policies: no delay grows by more than a twentieth or 100 ms. A delay over 49 days waits in
// rounds.
//
// No message is visible while it waits. The zero value is ready to use.
type DelayedExchange struct {
	// Type of the stranded and dead-letter queues. Default: Quorum.
	Type QueueType
	// Via names exchanges of yours. A message that came by one of them passes it on its way back
	// with its own routing key, so that the siblings of the queue get every retry, too; see
	// the type Via. Queues with a Via share another exchange, <prefix>.delayed.via.
	//
	// Default: none, a message comes back to the one queue that failed it.
	Via []string
	// Prefix begins the name of everything shared: <prefix>.delayed, <prefix>.delayed.return,
	// <prefix>.stranded. Default: millpond.
	Prefix string
	// Dead says where dead letters go. Default: <queue>.dlq.
	Dead DeadLetters
}

// delayedKind is the type of the plugin's exchanges.
const delayedKind = audit.DelayedKind

// maxDelayed is the longest x-delay. The plugin delivers a message with a longer one at once (F49).
const maxDelayed = math.MaxUint32 * time.Millisecond

// Validate returns an error that lists every invalid field. Open calls it.
func (s DelayedExchange) Validate() error { return checkFields(s.Type, nil, nil, s.Dead) }

// Plan implements Strategy. The wait steps are the delays and a ladder.
func (s DelayedExchange) Plan(queue string, delays []time.Duration) (Plan, error) {
	p, steps := newPlanner(queue, append(delayedLadder(), delays...), nil, s.Type)
	prefix := cmp.Or(s.Prefix, defaultPrefix)
	back := p.wayBack(s.Via, prefix, s.Type)
	delayed, stranded := prefix+".delayed"+back.suffix(), prefix+".stranded"
	through := prefix + ".delayed.return"

	// The plugin tells the broker of every message that it has no queue, so that an alternate
	// exchange would get each one at once: this exchange names itself. The messages that find no
	// queue when they are due are caught behind it.
	if back.Via == nil {
		p.exchange(Exchange{Name: stranded, Kind: "fanout"}, "stranded exchange")
		p.exchange(Exchange{Name: through, Kind: "direct", Arguments: alternateTo(stranded)},
			"return exchange")
	} else {
		through = back.Through
	}
	p.exchange(Exchange{Name: delayed, Kind: delayedKind, Arguments: amqp.Table{
		"x-delayed-type": "fanout", "alternate-exchange": delayed,
	}}, "delayed exchange")
	for _, delay := range steps {
		if delay <= maxDelayed {
			p.plan.WaitSteps = append(p.plan.WaitSteps, Route{
				Exchange: delayed, RoutingKey: queue, Delay: delay,
				Headers: amqp.Table{"x-delay": delay.Milliseconds()},
			})
		}
	}
	if back.Via == nil {
		p.strandedQueue(stranded, s.Type)
		p.bindExchange(delayed, "", through)
		p.bind(through, queue, queue)
	} else {
		p.bindExchange(delayed, "", through)
		p.bindBack(back)
	}
	p.deadLetters(s.Dead, s.Type)
	return p.finish()
}

// delayedLadder returns wait steps up to the longest delay: 100 ms apart, later a twentieth.
func delayedLadder() []time.Duration {
	const least = 100 * time.Millisecond
	var ladder []time.Duration
	for d := least; d < maxDelayed; d += max(least, (d / 20).Truncate(least)) {
		ladder = append(ladder, d)
	}
	return append(ladder, maxDelayed)
}

// delaysMessages reports whether the exchange keeps the messages that are published with x-delay.
func (e Exchange) delaysMessages() bool { return e.Kind == delayedKind }

// routesAs returns the type by which the exchange routes a message that is due.
func (e Exchange) routesAs() string {
	if e.delaysMessages() {
		kind, _ := e.Arguments["x-delayed-type"].(string)
		return kind
	}
	return e.Kind
}

// delayingExchanges returns the names of the exchanges that keep messages until they are due.
func (p *Plan) delayingExchanges() (names []string) {
	for _, e := range p.Exchanges {
		if e.delaysMessages() {
			names = append(names, e.Name)
		}
	}
	return names
}

// routeHeaders returns the keys of the headers that the routes write.
func (p *Plan) routeHeaders() (keys []string) {
	for _, step := range p.WaitSteps {
		for key := range step.Headers {
			if !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
	}
	slices.Sort(keys)
	return keys
}
