package rig

import (
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// Strategies are the strategies that every scenario is run with.
var Strategies = map[string]func(t testing.TB) topology.Strategy{
	"quorum":           func(testing.TB) topology.Strategy { return topology.PerQueue{} },
	"classic":          func(testing.TB) topology.Strategy { return classic },
	"attempt quorum":   func(testing.TB) topology.Strategy { return topology.PerAttempt{} },
	"shared quorum":    func(t testing.TB) topology.Strategy { return Shared(t, topology.Quorum) },
	"shared classic":   func(t testing.TB) topology.Strategy { return Shared(t, topology.Classic) },
	"levels quorum":    func(t testing.TB) topology.Strategy { return Levels(t, topology.Quorum) },
	"levels classic":   func(t testing.TB) topology.Strategy { return Levels(t, topology.Classic) },
	"returning quorum": func(t testing.TB) topology.Strategy { return SharedVia(t, "amq.topic") },
}

var classic = topology.PerQueue{Type: topology.Classic}

// Shared returns a Shared strategy with wait queues of the test's own.
func Shared(t testing.TB, kind topology.QueueType) topology.Shared {
	t.Helper()
	return topology.Shared{Type: kind, Prefix: testbroker.Queue(t)}
}

// SharedVia returns a Shared strategy whose messages come back through an exchange.
func SharedVia(t testing.TB, exchange string) topology.Shared {
	t.Helper()
	s := Shared(t, topology.Quorum)
	s.Via = []string{exchange}
	return s
}

// Levels returns a Levels strategy of the test's own, with few wait queues.
func Levels(t testing.TB, kind topology.QueueType) topology.Levels {
	t.Helper()
	return topology.Levels{Type: kind, Prefix: testbroker.Queue(t), Max: time.Hour}
}

// WithDeadLetters returns a strategy with another place for dead letters.
func WithDeadLetters(strategy topology.Strategy, dead topology.DeadLetters) topology.Strategy {
	switch s := strategy.(type) {
	case topology.PerQueue:
		s.Dead = dead
		return s
	case topology.PerAttempt:
		s.Dead = dead
		return s
	case topology.Shared:
		s.Dead = dead
		return s
	case topology.Levels:
		s.Dead = dead
		return s
	}
	panic("rig.WithDeadLetters does not know the strategy")
}

// Quickly retries after 100 ms each time.
func Quickly(retries int) backoff.Policy {
	return backoff.Constant{Interval: 100 * time.Millisecond, Retries: retries}
}

// Unlisted is a policy that cannot list its delays.
var Unlisted = backoff.Limit{Retries: 3, Policy: backoff.PolicyFunc(
	func(backoff.Failure) (time.Duration, bool) { return time.Millisecond, true })}

// PlanOf returns the plan of a queue for these delays; without any, they are unknown.
func PlanOf(
	t testing.TB, strategy topology.Strategy, queue string, delays ...time.Duration,
) topology.Plan {
	t.Helper()
	plan, err := strategy.Plan(queue, delays)
	require.NoError(t, err)
	return plan
}

// RemovePlan returns the plan of a queue and deletes its queues and exchanges at the end of the
// test. A broker that is gone by then is no error.
func RemovePlan(
	t testing.TB, url string, strategy topology.Strategy, queue string, delays []time.Duration,
) topology.Plan {
	t.Helper()
	plan := PlanOf(t, strategy, queue, delays...)
	t.Cleanup(func() {
		ch, closed, err := dial(url)
		if err != nil {
			return
		}
		defer closed()
		for _, q := range plan.Queues {
			_, err := ch.QueueDelete(q.Name, false, false, false)
			require.NoError(t, err)
		}
		for _, e := range plan.Exchanges {
			require.NoError(t, ch.ExchangeDelete(e.Name, false, false))
		}
	})
	return plan
}

// Waiting counts the messages in all wait queues of a plan. A message that the broker is
// moving between two queues is in neither.
func Waiting(t testing.TB, url string, plan topology.Plan) int {
	t.Helper()
	n := 0
	for _, q := range plan.Queues {
		if q.Delay > 0 {
			ready := testbroker.Depth(t, url, q.Name)
			require.NotEqual(t, -1, ready, "there is no queue "+q.Name)
			n += ready
		}
	}
	return n
}

// QueueNames returns the names of the queues of a plan, in its order.
func QueueNames(p topology.Plan) []string {
	var names []string
	for _, q := range p.Queues {
		names = append(names, q.Name)
	}
	return names
}

// Merged is the topology of a broker that has declared several plans.
func Merged(plans ...topology.Plan) topology.Plan {
	var all topology.Plan
	for _, p := range plans {
		all.Queues = append(all.Queues, p.Queues...)
		all.Exchanges = append(all.Exchanges, p.Exchanges...)
		for _, b := range p.Bindings {
			if !slices.Contains(all.Bindings, b) {
				all.Bindings = append(all.Bindings, b)
			}
		}
	}
	return all
}

// Walk takes a message on a route through the data of a plan, as a broker would. It returns the
// wait queues that the message passes and the queue where it ends. Every hop must lead to one
// queue exactly.
func Walk(t testing.TB, plan topology.Plan, r topology.Route) (waits []topology.Queue, end string) {
	t.Helper()
	exchange, key := r.Exchange, r.RoutingKey
	for range 64 {
		queues := routed(t, plan, exchange, key)
		require.Len(t, queues, 1, "exchange %q, routing key %q", exchange, key)
		i := slices.IndexFunc(plan.Queues, func(q topology.Queue) bool { return q.Name == queues[0] })
		if i < 0 || plan.Queues[i].Delay == 0 {
			return waits, queues[0]
		}
		q := plan.Queues[i]
		waits = append(waits, q)
		exchange = q.Arguments["x-dead-letter-exchange"].(string)
		if k, ok := q.Arguments["x-dead-letter-routing-key"].(string); ok {
			key = k
		}
	}
	t.Fatalf("routing key %q goes round in circles", key)
	return nil, ""
}

// routed returns the queues that a message reaches from an exchange.
func routed(t testing.TB, plan topology.Plan, exchange, key string) []string {
	t.Helper()
	if exchange == "" {
		return []string{key}
	}
	if plan.Via != nil && slices.Contains(plan.Via.Exchanges, exchange) {
		return nil // the exchange belongs to the user
	}
	i := slices.IndexFunc(plan.Exchanges, func(e topology.Exchange) bool { return e.Name == exchange })
	require.GreaterOrEqual(t, i, 0, "exchange %q is declared", exchange)
	e := plan.Exchanges[i]
	var queues []string
	matched := false
	for _, b := range plan.Bindings {
		if b.Exchange != exchange || !matches(t, e.Kind, b.RoutingKey, key) {
			continue
		}
		matched = true
		if b.ToExchange != "" {
			queues = append(queues, routed(t, plan, b.ToExchange, key)...)
		} else {
			queues = append(queues, b.Queue)
		}
	}
	if alternate, ok := e.Arguments["alternate-exchange"].(string); ok && !matched {
		return routed(t, plan, alternate, key)
	}
	slices.Sort(queues)
	return slices.Compact(queues)
}

func matches(t testing.TB, kind, binding, key string) bool {
	switch kind {
	case "fanout":
		return true
	case "direct":
		return binding == key
	case "headers":
		return true // the plan belongs to one queue, and the header has its name
	case "topic":
		return topicMatches(strings.Split(binding, "."), strings.Split(key, "."))
	}
	t.Fatalf("exchange type %q", kind)
	return false
}

// topicMatches applies the rule of AMQP: * is one word, # is any number of words.
func topicMatches(pattern, words []string) bool {
	switch {
	case len(pattern) == 0:
		return len(words) == 0
	case pattern[0] == "#":
		return topicMatches(pattern[1:], words) || len(words) > 0 && topicMatches(pattern, words[1:])
	case len(words) == 0:
		return false
	}
	return (pattern[0] == "*" || pattern[0] == words[0]) && topicMatches(pattern[1:], words[1:])
}

// PerQueueByHand is a strategy as a user writes it, with WaitQueue.
type PerQueueByHand struct{}

// Plan has a wait queue of a second, and one for each delay in the order of the policy.
func (PerQueueByHand) Plan(queue string, delays []time.Duration) (topology.Plan, error) {
	plan := topology.Plan{Queue: queue, Dead: topology.Route{RoutingKey: queue + ".failed"}}
	for _, d := range append([]time.Duration{time.Second}, delays...) {
		wait := topology.WaitQueue(queue+".in."+d.String(), d, topology.Route{RoutingKey: queue})
		plan.Queues = append(plan.Queues, wait)
		plan.WaitSteps = append(plan.WaitSteps, topology.Route{RoutingKey: wait.Name, Delay: d, Hops: 1})
	}
	plan.Queues = append(plan.Queues, topology.Queue{
		Name:      queue + ".failed",
		Arguments: amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(2147483647)},
	})
	return plan, nil
}
