package topology_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/topology"
)

func ExampleReturn() {
	delays := []time.Duration{5 * time.Second}
	plan, err := topology.PerQueue{Via: "events"}.Plan("orders", delays)
	if err != nil {
		fmt.Println(err)
	}
	for _, b := range plan.Bindings {
		fmt.Println(b.Exchange, "→", b.Queue+b.ToExchange)
	}
	retry := topology.Retry{Delay: time.Second, Exchange: "events", RoutingKey: "order.created.eu"}
	route, _ := plan.Route(retry)
	fmt.Println("published to", route.Exchange, "with the key", route.RoutingKey)
	// Output:
	// orders.wait.5s.to.events → orders.wait.5s.to.events
	// millpond.stranded → millpond.stranded
	// orders.return.events → orders
	// millpond.return.events → orders
	// millpond.return.events → orders.return.events
	// published to orders.wait.5s.to.events with the key order.created.eu
}

// A message that came by the exchange, for the first time or back, keeps its key.
func TestReturnKeepsTheKeyOfItsExchange(t *testing.T) {
	t.Parallel()
	for name, strategy := range map[string]topology.Strategy{
		"per queue":   topology.PerQueue{Via: "events"},
		"per attempt": topology.PerAttempt{Via: "events"},
		"shared":      topology.Shared{Via: "events"},
		"without Via": topology.Shared{},
	} {
		plan, err := strategy.Plan("q", []time.Duration{time.Second})
		require.NoError(t, err)
		keys := map[string]string{"": "q", "others": "q", "millpond.return.others": "q", "events": "q"}
		if plan.Via != nil {
			keys["events"], keys[plan.Via.Through] = "a.b", "a.b"
		}
		for from, want := range keys {
			retry := topology.Retry{Delay: time.Second, Exchange: from, RoutingKey: "a.b"}
			route, err := plan.Route(retry)
			require.NoError(t, err)
			require.Equal(t, want, route.RoutingKey, "%s, from %q", name, from)
		}
	}
}

func TestReturnNamesThatAreTooLong(t *testing.T) {
	t.Parallel()
	strategy := topology.PerQueue{Via: strings.Repeat("e", 250)}
	_, err := strategy.Plan("q", []time.Duration{time.Second})
	for _, want := range []string{"wait queue of 1s", "return exchange", "exchange to return from"} {
		require.ErrorContains(t, err, want)
	}
}
