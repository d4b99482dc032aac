package topology_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/topology"
)

// merged is the broker that has declared several plans.
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

// walk takes a message on a route through the plan's data as a broker would, and
// returns the wait queues it passes and the queue it ends in. Every hop must lead
// to one queue exactly.
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
	if plan.Via != nil && exchange == plan.Via.Exchange {
		return nil // the user's
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
		return true // the plan is that of one queue, whose name the header has
	case "topic":
		return topicMatches(strings.Split(binding, "."), strings.Split(key, "."))
	}
	t.Fatalf("exchange type %q", kind)
	return false
}

// topicMatches is AMQP's rule: * is one word, # any number of them.
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
