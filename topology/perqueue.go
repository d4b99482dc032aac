package topology

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// PerQueue gives every queue wait queues of its own, one for each delay:
//
//	orders ── fails ──► orders.wait.5s ── TTL ──► default exchange ──► orders
//	       ── gives up ──► orders.dlq
//
// One hop, no exchange, no binding. A message returns to the one queue that
// failed it, and a queue that is missing or full holds up nobody else's retries.
//
// The zero value is ready to use.
type PerQueue struct {
	// Type of the wait queues and the dead-letter queue. Default: Quorum.
	Type QueueType
	// WaitName names the wait queue of a delay. RabbitMQ cannot change a queue's
	// arguments, so a name must carry what differs: the queue and the delay; and
	// the type, where it may change one day. Default: <queue>.wait.<delay>, with
	// the suffix ".classic" for Classic, a hash of WaitArguments if there are any,
	// and ".to.<exchange>" with Via.
	WaitName func(queue string, delay time.Duration) string
	// WaitArguments are declared beside ours on every wait queue. Those that would
	// make it drop messages are refused, x-expires for example; see ValidatePlan.
	// Default: none.
	WaitArguments amqp.Table
	// Via is an exchange of yours that retries pass on their way back to the
	// queue, with the routing key they came with; see Return for who else gets them.
	// Default: none, a message returns to the one queue that failed it.
	Via string
	// Prefix begins the names of what queues with the same Via share:
	// <prefix>.return.<exchange> and <prefix>.stranded. Default: millpond.
	Prefix string
	// Dead says where dead letters go. Default: <queue>.dlq.
	Dead DeadLetters
	// WaitSteps are the delays planned for a policy that cannot list its own.
	// Default: 1s, 5s, 30s, 2m, 10m and 1h.
	WaitSteps []time.Duration
}

// Validate returns an error that lists every field that no plan can be made with. Open calls it.
func (s PerQueue) Validate() error { return checkFields(s.Type, s.WaitSteps, s.WaitArguments, s.Dead) }

// Plan implements Strategy.
func (s PerQueue) Plan(queue string, delays []time.Duration) (Plan, error) {
	p, rungs := newPlanner(queue, delays, s.WaitSteps, s.Type)
	back := p.wayBack(s.Via, s.Prefix, s.Type)
	for _, delay := range rungs {
		name := queue + ".wait." + delayName(delay) + s.Type.suffix(s.WaitArguments) + back.suffix()
		if s.WaitName != nil {
			name = s.WaitName(queue, delay)
		}
		q := s.Type.waitQueue(name, delay, back.target())
		route := Route{RoutingKey: name}
		if s.Via != "" {
			route = p.waitExchange(q)
		}
		p.rung(q, route, s.WaitArguments)
	}
	p.bindBack(back)
	p.deadLetters(s.Dead, s.Type)
	return p.finish()
}
