package topology

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// PerQueue gives every queue its own wait queues, one for each delay:
//
//	orders ── fails ──► orders.wait.5s ── TTL ──► default exchange ──► orders
//	       ── gives up ──► orders.dlq
//
// One hop, no exchange, no binding. A message comes back to the one queue that failed it. A
// queue that is missing or full holds up only its own retries.
//
// The zero value is ready to use.
type PerQueue struct {
	// Type of the wait queues and the dead-letter queue. Default: Quorum.
	Type QueueType
	// WaitName returns the name of the wait queue of a delay. RabbitMQ cannot change a queue's
	// arguments, so the name must tell apart everything that differs: the queue, the delay, and
	// the type if it may change one day. Default: <queue>.wait.<delay>, with the suffix
	// ".classic" for Classic, a hash of WaitArguments if there are any, and ".via"
	// with Via.
	WaitName func(queue string, delay time.Duration) string
	// WaitArguments are added to the arguments of every wait queue. Those under which the queue
	// would drop messages are refused, x-expires for example; see ValidatePlan. Default: none.
	WaitArguments amqp.Table
	// Via names exchanges of yours. A message that came by one of them passes it on its way back
	// to the queue, with the routing key that it arrived with. Other queues may get it, too: see
	// the type Via. Default: none, a message comes back to the one queue that failed it.
	Via []string
	// Prefix begins the names of everything that queues with a Via share: <prefix>.via and
	// <prefix>.stranded. Default: millpond.
	Prefix string
	// Dead says where dead letters go. Default: <queue>.dlq.
	Dead DeadLetters
	// WaitSteps are the delays planned for a policy that cannot list its delays.
	// Default: 1s, 5s, 30s, 2m, 10m and 1h.
	WaitSteps []time.Duration
}

// Validate returns an error that lists every invalid field. Open calls it.
func (s PerQueue) Validate() error {
	return checkFields(s.Type, s.WaitSteps, s.WaitArguments,
		s.Dead)
}

// Plan implements Strategy.
func (s PerQueue) Plan(queue string, delays []time.Duration) (Plan, error) {
	p, steps := newPlanner(queue, delays, s.WaitSteps, s.Type)
	back := p.wayBack(s.Via, s.Prefix, s.Type)
	for _, delay := range steps {
		name := queue + ".wait." + delayName(delay) + s.Type.suffix(s.WaitArguments) + back.suffix()
		if s.WaitName != nil {
			name = s.WaitName(queue, delay)
		}
		q := s.Type.waitQueue(name, delay, back.target())
		route := Route{RoutingKey: name}
		if back.Via != nil {
			route = p.waitExchange(q)
		}
		p.step(q, route, s.WaitArguments)
	}
	p.bindBack(back)
	p.deadLetters(s.Dead, s.Type)
	return p.finish()
}
