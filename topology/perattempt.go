package topology

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// PerAttempt gives every queue a wait queue for each attempt, behind a retry exchange, so that
// the depths of the queues show how far the failing messages have come:
//
//	orders ── fails the 2nd time ──► exchange orders.retry ──► orders.retry.2.5s
//	                                                                │ TTL
//	orders ◄─────────────────── default exchange ◄──────────────────┘
//
// The delay comes first, then the attempt: a message waits on the shortest wait step that is
// long enough. If several attempts have that delay, it waits in the queue of its attempt, or
// of the last attempt before it. So a delay that another attempt or an error asks for is never
// cut, there is no attempt without a queue, and a policy that goes on beyond the last attempt
// stays with the longest delay.
//
// The zero value is ready to use.
type PerAttempt struct {
	// Delays are the delays of the attempts, in their order: the first failure waits for the
	// first one. It is needed if the policy repeats a delay, as 5s 5s 5s does, or goes down
	// again, because a policy tells a strategy its delays and not their order. A delay that
	// only the policy lists gets a queue with a number behind the last attempt.
	// Default: the delays of the policy, each once, the shortest first.
	Delays []time.Duration
	// Type of the wait queues and the dead-letter queue. Default: Quorum.
	Type QueueType
	// WaitName returns the name of the wait queue of an attempt. Attempt 0 is the queue of
	// messages that are snoozed: a queue of one second, planned if no delay is from one second
	// to five. Everything that the name does not tell apart cannot change while the queue
	// exists: see PerQueue. Default: <queue>.retry.<attempt>.<delay>, with the suffixes of
	// PerQueue.
	WaitName func(queue string, attempt int, delay time.Duration) string
	// ExchangeName returns the name of the retry exchange, a direct exchange in which the key of
	// a wait queue is its name. Default: <queue>.retry.
	ExchangeName func(queue string) string
	// WaitArguments are added to the arguments of every wait queue; see PerQueue.
	// Default: none.
	WaitArguments amqp.Table
	// Dead says where dead letters go. Default: <queue>.dlq.
	Dead DeadLetters
	// WaitSteps are planned beside Delays if the policy cannot list its delays.
	// Default: Delays, or 1s, 5s, 30s, 2m, 10m and 1h.
	WaitSteps []time.Duration
}

// Validate returns an error that lists every invalid field. Open calls it.
func (s PerAttempt) Validate() error {
	return checkFields(s.Type, slices.Concat(s.Delays, s.WaitSteps), s.WaitArguments, s.Dead)
}

// Plan implements Strategy.
func (s PerAttempt) Plan(queue string, delays []time.Duration) (Plan, error) {
	asked := append([]time.Duration{}, s.Delays...)
	switch {
	case delays != nil:
		asked = append(asked, delays...)
	case len(s.Delays)+len(s.WaitSteps) > 0:
		asked = append(asked, s.WaitSteps...)
	default:
		asked = defaultWaitSteps()
	}
	p, steps := newPlanner(queue, asked, nil, s.Type)
	exchange := queue + ".retry"
	if s.ExchangeName != nil {
		exchange = s.ExchangeName(queue)
	}
	p.exchange(Exchange{Name: exchange, Kind: "direct"}, "retry exchange")
	for _, r := range attempts(s.Delays, asked, steps) {
		name := queue + ".retry." + strconv.Itoa(r.attempt) + "." + delayName(r.delay) +
			s.Type.suffix(s.WaitArguments)
		if s.WaitName != nil {
			name = s.WaitName(queue, r.attempt, r.delay)
		}
		p.bind(exchange, name, name)
		route := Route{Exchange: exchange, RoutingKey: name, Attempt: r.attempt}
		p.step(s.Type.waitQueue(name, r.delay, Route{RoutingKey: queue}), route, s.WaitArguments)
	}
	p.deadLetters(s.Dead, s.Type)
	return p.finish()
}

// attemptStep is a wait queue that is not planned yet.
type attemptStep struct {
	attempt int
	delay   time.Duration
}

// attempts numbers the wait steps: the steps of the series by their place, other delays that
// were asked for behind the series, and 0 for the step that was not asked for, which is for
// messages that are snoozed. The result is sorted by delay, then by attempt.
func attempts(series, asked, steps []time.Duration) []attemptStep {
	numbered := make([]attemptStep, 0, len(series)+len(steps))
	for i, d := range series {
		numbered = append(numbered, attemptStep{i + 1, wholeMilliseconds(d)})
	}
	next := len(series) + 1
	for _, d := range steps {
		same := func(other time.Duration) bool { return wholeMilliseconds(other) == d }
		switch {
		case slices.ContainsFunc(series, same):
		case !slices.ContainsFunc(asked, same):
			numbered = append(numbered, attemptStep{0, d})
		default:
			numbered = append(numbered, attemptStep{next, d})
			next++
		}
	}
	slices.SortFunc(numbered, func(a, b attemptStep) int {
		return cmp.Or(cmp.Compare(a.delay, b.delay), a.attempt-b.attempt)
	})
	return numbered
}
