package topology

import (
	"cmp"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// defaultPrefix begins the names of everything that queues share.
const defaultPrefix = "millpond"

// Shared lets all queues wait in the same wait queues, one for each delay:
//
//	orders ── fails ──► exchange millpond.wait.5s ──► queue millpond.wait.5s
//	                                                        │ TTL
//	orders ◄── bound by its name ── exchange millpond.return
//	                                                        │ no queue bound
//	                    queue millpond.stranded ◄── exchange millpond.stranded
//
// A message is published with the name of its queue as the routing key, and keeps the key while
// it waits. A message whose queue has vanished goes to the stranded queue, where it can be seen.
// Without that queue, 32 such messages would stop an at-least-once wait queue for all queues
// (F5, F19).
//
// Because the message keeps its key, a policy with dead-letter-routing-key must not match the
// wait queues: it leads their messages to the stranded queue, or to another queue, whose
// Subscriber sends them on (F36).
//
// A new queue costs a binding and a dead-letter queue, for any number of delays. The zero value
// is ready to use.
type Shared struct {
	// Type of the wait, stranded and dead-letter queues. Default: Quorum.
	Type QueueType
	// Prefix begins the name of everything shared: <prefix>.wait.<delay>, <prefix>.return,
	// <prefix>.stranded. Services with the same prefix share the wait queues. Types and
	// WaitArguments that differ have wait queues of different names. Default: millpond.
	Prefix string
	// WaitArguments are added to the arguments of every wait queue; see PerQueue.
	// Default: none.
	WaitArguments amqp.Table
	// Via names exchanges of yours. A message that came by one of them passes it on its way back
	// to the queue, with the routing key that it arrived with. Other queues may get it, too: see
	// the type Via. Queues with a Via share wait queues, whose names end in ".via".
	// Default: none, a message comes back to the one queue that failed it.
	Via []string
	// Dead says where dead letters go. Default: <queue>.dlq.
	Dead DeadLetters
	// WaitSteps are the delays planned for a policy that cannot list its delays.
	// Default: 1s, 5s, 30s, 2m, 10m and 1h.
	WaitSteps []time.Duration
}

// Validate returns an error that lists every invalid field. Open calls it.
func (s Shared) Validate() error {
	return checkFields(s.Type, s.WaitSteps, s.WaitArguments,
		s.Dead)
}

// Plan implements Strategy.
func (s Shared) Plan(queue string, delays []time.Duration) (Plan, error) {
	prefix := cmp.Or(s.Prefix, defaultPrefix)
	p, steps := newPlanner(queue, delays, s.WaitSteps, s.Type)
	back := p.wayBack(s.Via, prefix, s.Type)
	through, stranded := prefix+".return", prefix+".stranded"
	if back.Via == nil {
		p.exchange(Exchange{Name: stranded, Kind: "fanout"}, "stranded exchange")
		caught := amqp.Table{"alternate-exchange": stranded}
		p.exchange(Exchange{Name: through, Kind: "direct", Arguments: caught}, "return exchange")
	} else {
		through = back.Through
	}
	for _, delay := range steps {
		name := prefix + ".wait." + delayName(delay) + s.Type.suffix(s.WaitArguments) + back.suffix()
		q := s.Type.waitQueue(name, delay, Route{Exchange: through})
		p.step(q, p.waitExchange(q), s.WaitArguments)
	}
	if back.Via == nil {
		p.strandedQueue(stranded, s.Type)
		p.bind(through, queue, queue)
	}
	p.bindBack(back)
	p.deadLetters(s.Dead, s.Type)
	return p.finish()
}
