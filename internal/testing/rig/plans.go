package rig

import (
	"testing"
	"time"

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
