package topology

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Shared lets all queues wait in the same wait queues, one for each delay:
//
//	orders ── fails ──► exchange millpond.wait.5s ──► queue millpond.wait.5s
//	                                                        │ TTL
//	orders ◄── bound by its name ── exchange millpond.return
//	                                                        │ nobody bound
//	                    queue millpond.stranded ◄── exchange millpond.stranded
//
// A message is published with the name of its queue as the routing key, which it
// keeps while it waits. One whose queue has vanished lands in the stranded queue,
// where it can be seen: without that, 32 of them would stop an at-least-once wait
// queue for everyone (broker facts F5 and F19).
//
// Because the message keeps its key, a policy with dead-letter-routing-key must not
// match the wait queues: it leads their messages to the stranded queue, or to another
// queue, whose Subscriber sends them on (F36).
//
// A new queue costs a binding and a dead-letter queue, whatever the number of
// delays. The zero value is ready to use.
type Shared struct {
	// Type of the wait, stranded and dead-letter queues. Default: Quorum.
	Type QueueType
	// Prefix begins the name of everything shared: <prefix>.wait.<delay>,
	// <prefix>.return, <prefix>.stranded. Services that use the same one share
	// the wait queues, and must agree on Type and WaitArguments only as far as
	// the names do. Default: millpond.
	Prefix string
	// WaitArguments are declared beside ours on every wait queue; see PerQueue.
	// Default: none.
	WaitArguments amqp.Table
	// Via is an exchange of yours that retries pass on their way back to the
	// queue, with the routing key they came with; see Return for who else gets them.
	// Queues that name the same one share the wait queues, whose names then end in
	// ".to.<exchange>". Default: none, a message returns to the one queue that failed it.
	Via string
	// Dead says where dead letters go. Default: <queue>.dlq.
	Dead DeadLetters
	// WaitSteps are the delays planned for a policy that cannot list its own.
	// Default: 1s, 5s, 30s, 2m, 10m and 1h.
	WaitSteps []time.Duration
}

// Validate returns an error that lists every field that no plan can be made with. Open calls it.
func (s Shared) Validate() error { return checkFields(s.Type, s.WaitSteps, s.WaitArguments, s.Dead) }

// Plan implements Strategy.
func (s Shared) Plan(queue string, delays []time.Duration) (Plan, error) {
	prefix := prefixOr(s.Prefix)
	p, rungs := newPlanner(queue, delays, s.WaitSteps, s.Type)
	back := p.wayBack(s.Via, prefix, s.Type)
	through, stranded := prefix+".return", prefix+".stranded"
	if back.Via == nil {
		p.exchange(Exchange{Name: stranded, Kind: "fanout"}, "stranded exchange")
		p.exchange(Exchange{Name: through, Kind: "direct", Arguments: amqp.Table{"alternate-exchange": stranded}}, "return exchange")
	} else {
		through = back.Through
	}
	for _, delay := range rungs {
		name := prefix + ".wait." + delayName(delay) + s.Type.suffix(s.WaitArguments) + back.suffix()
		q := s.Type.waitQueue(name, delay, Route{Exchange: through})
		p.rung(q, p.waitExchange(q), s.WaitArguments)
	}
	if back.Via == nil {
		p.strandedQueue(stranded, s.Type)
		p.bind(through, queue, queue)
	}
	p.bindBack(back)
	p.deadLetters(s.Dead, s.Type)
	return p.finish()
}
