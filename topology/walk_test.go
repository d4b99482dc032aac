package topology_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/topology"
)

// merged is the topology of a broker that has declared several plans.
func merged(plans ...topology.Plan) topology.Plan {
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

// walk takes a message on a route through the data of a plan, as a broker would. It returns the
// wait queues that the message passes and the queue where it ends. Every hop must lead to one
// queue exactly.
func walk(t testing.TB, plan topology.Plan, r topology.Route) (waits []topology.Queue, end string) {
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

// perQueueByHand is a strategy as a user writes it, with WaitQueue.
type perQueueByHand struct{}

// Plan has a wait queue of a second, and one for each delay in the order of the policy.
func (perQueueByHand) Plan(queue string, delays []time.Duration) (topology.Plan, error) {
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
