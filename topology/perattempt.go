package topology

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// PerAttempt gives every queue a wait queue for each attempt, behind a retry
// exchange, so that the depths say how far the failing messages have come:
//
//	orders ── fails the 2nd time ──► exchange orders.retry ──► orders.retry.2.5s
//	                                                                │ TTL
//	orders ◄─────────────────── default exchange ◄──────────────────┘
//
// The delay comes first, then the attempt: a message waits on the shortest wait step
// that is long enough, and where several attempts have that delay, in the queue of
// its own, or of the last one before it. So a delay that another attempt
// or an error asks for is never cut, there is no attempt without a queue, and a
// policy that goes on beyond the last one stays with the longest.
//
// The zero value is ready to use.
type PerAttempt struct {
	// Delays are what the attempts wait, in their order: the first failure the first
	// one. Needed where the policy repeats a delay, as 5s 5s 5s does, or goes down
	// again: a policy tells a strategy its delays, not their order. What
	// the policy lists and Delays does not gets a queue of a number behind them.
	// Default: the delays of the policy, each once, the shortest first.
	Delays []time.Duration
	// Type of the wait queues and the dead-letter queue. Default: Quorum.
	Type QueueType
	// WaitName names the wait queue of an attempt. Attempt 0 is that of messages
	// which are set aside: a queue of one second, planned where no delay is from one
	// second to five. What a name does not carry cannot change while the queue
	// exists: see PerQueue. Default:
	// <queue>.retry.<attempt>.<delay>, with the suffixes of PerQueue.
	WaitName func(queue string, attempt int, delay time.Duration) string
	// ExchangeName names the retry exchange, a direct one in which the key of a wait
	// queue is its name. Default: <queue>.retry.
	ExchangeName func(queue string) string
	// WaitArguments are declared beside ours on every wait queue; see PerQueue.
	// Default: none.
	WaitArguments amqp.Table
	// Via is an exchange of yours that retries pass on their way back to the
	// queue; see Return. Each wait queue has an exchange of its own then, in place of
	// the retry exchange. Default: none.
	Via string
	// Prefix begins the names of what queues with the same Via share:
	// <prefix>.return.<exchange> and <prefix>.stranded. Default: millpond.
	Prefix string
	// Dead says where dead letters go. Default: <queue>.dlq.
	Dead DeadLetters
	// WaitSteps are the delays planned, beside Delays, for a policy that cannot list its
	// own. Default: Delays, or 1s, 5s, 30s, 2m, 10m and 1h.
	WaitSteps []time.Duration
}

// Validate returns an error that lists every field that no plan can be made with. Open calls it.
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
	p, rungs := newPlanner(queue, asked, nil, s.Type)
	exchange := queue + ".retry"
	if s.ExchangeName != nil {
		exchange = s.ExchangeName(queue)
	}
	if s.Via == "" {
		p.exchange(Exchange{Name: exchange, Kind: "direct"}, "retry exchange")
	}
	back := p.wayBack(s.Via, s.Prefix, s.Type)
	for _, r := range attempts(s.Delays, asked, rungs) {
		number := strconv.Itoa(r.attempt)
		name := queue + ".retry." + number + "." + delayName(r.delay) + s.Type.suffix(s.WaitArguments) + back.suffix()
		if s.WaitName != nil {
			name = s.WaitName(queue, r.attempt, r.delay)
		}
		q := s.Type.waitQueue(name, r.delay, back.target())
		route := Route{Exchange: exchange, RoutingKey: name, Attempt: r.attempt}
		if s.Via != "" {
			route = p.waitExchange(q)
			route.Attempt = r.attempt
		} else {
			p.bind(exchange, name, name)
		}
		p.rung(q, route, s.WaitArguments)
	}
	p.bindBack(back)
	p.deadLetters(s.Dead, s.Type)
	return p.finish()
}

// attemptRung is a wait queue to be.
type attemptRung struct {
	attempt int
	delay   time.Duration
}

// attempts numbers the wait steps: those of the series by their place, what else was
// asked for behind it, and what nobody asked for, which is for messages that are set
// aside, 0. Ascending by delay, then by attempt.
func attempts(series, asked, rungs []time.Duration) []attemptRung {
	numbered := make([]attemptRung, 0, len(series)+len(rungs))
	for i, d := range series {
		numbered = append(numbered, attemptRung{i + 1, wholeMilliseconds(d)})
	}
	next := len(series) + 1
	for _, d := range rungs {
		same := func(other time.Duration) bool { return wholeMilliseconds(other) == d }
		switch {
		case slices.ContainsFunc(series, same):
		case !slices.ContainsFunc(asked, same):
			numbered = append(numbered, attemptRung{0, d})
		default:
			numbered = append(numbered, attemptRung{next, d})
			next++
		}
	}
	slices.SortFunc(numbered, func(a, b attemptRung) int {
		return cmp.Or(cmp.Compare(a.delay, b.delay), a.attempt-b.attempt)
	})
	return numbered
}
