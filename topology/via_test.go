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
	plan, err := topology.PerQueue{Via: "events"}.Plan("orders", []time.Duration{5 * time.Second})
	if err != nil {
		fmt.Println(err)
	}
	for _, b := range plan.Bindings {
		fmt.Println(b.Exchange, "→", b.Queue+b.ToExchange)
	}
	route, _ := plan.Route(topology.Retry{Delay: time.Second, Exchange: "events", RoutingKey: "order.created.eu"})
	fmt.Println("published to", route.Exchange, "with the key", route.RoutingKey)
	// Output:
	// orders.wait.5s.to.events → orders.wait.5s.to.events
	// millpond.stranded → millpond.stranded
	// orders.return.events → orders
	// millpond.return.events → orders
	// millpond.return.events → orders.return.events
	// published to orders.wait.5s.to.events with the key order.created.eu
}

// Only what came by the exchange, for the first time or back, keeps its key.
func TestReturnKeepsTheKeyOfItsExchange(t *testing.T) {
	t.Parallel()
	for name, strategy := range map[string]topology.Strategy{
		"per queue":   topology.PerQueue{Via: "events"},
		"per attempt": topology.PerAttempt{Via: "events"},
		"shared":      topology.Shared{Via: "events"},
	} {
		plan, err := strategy.Plan("q", []time.Duration{time.Second})
		require.NoError(t, err)
		for from, want := range map[string]string{"events": "a.b", plan.Via.Through: "a.b", "": "q", "others": "q", "millpond.return.others": "q"} {
			route, err := plan.Route(topology.Retry{Delay: time.Second, Exchange: from, RoutingKey: "a.b"})
			require.NoError(t, err)
			require.Equal(t, want, route.RoutingKey, "%s, from %q", name, from)
		}
	}
	plan, err := topology.Shared{}.Plan("q", nil)
	require.NoError(t, err)
	route, err := plan.Route(topology.Retry{Delay: time.Second, Exchange: "events", RoutingKey: "a.b"})
	require.NoError(t, err)
	require.Equal(t, "q", route.RoutingKey)
}

func TestReturnNamesThatAreTooLong(t *testing.T) {
	t.Parallel()
	_, err := topology.PerQueue{Via: strings.Repeat("e", 250)}.Plan("q", []time.Duration{time.Second})
	for _, want := range []string{"wait queue of 1s", "return exchange", "exchange to return from"} {
		require.ErrorContains(t, err, want)
	}
}
