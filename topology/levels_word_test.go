package topology_test

import (
	"strings"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/topology"
)

func TestLevelsEscapeDestinations(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("q", 160)
	cases := map[string]string{
		"orders":      "orders",
		"eu.orders":   "eu%2Eorders",
		"eu%2Eorders": "eu%252Eorders",
		"orders.#":    "orders%2E%23",
		"*":           "%2A",
		"#":           "%23",
		"1":           "1",
		"straße/注文":   "straße/注文",
		"\xff\xfe":    "%FF%FE",
		"\uFFFD":      "\uFFFD",
		long:          long,
		long + "q":    strings.Repeat("q", 80) + "%~86906c8c1f493503bf31af8bcd12d4d6203f367dc6a9baef109e192d280ea502",
	}
	for queue, want := range cases {
		plan, err := topology.Levels{Dead: noDLQ}.Plan(queue, nil)
		require.NoError(t, err)
		require.Equal(t, want, plan.Levels.Destination)
	}
}

// tricky are names that a scheme with less care mixes up.
var tricky = []string{
	"orders", "eu.orders", "orders.#", "*", "#", "*.orders", "#.orders", "0", "1", "1.orders", "0.1.orders", "1.1", "%", "%2A", "%2E", "orders.", ".orders", "..",
	strings.Repeat("x", 200), strings.Repeat("x", 199) + "y", strings.Repeat(".", 200), strings.Repeat(".", 199), strings.Repeat("x", 255),
	strings.Repeat("注", 85), strings.Repeat("注", 84) + "文", "bestellungen-straße", "\xff", "\xff.", "\uFFFD", "%FF",
}

// Every name beside every other on one broker: a message reaches its own queue
// alone, by a routing key of at most 255 bytes.
func TestLevelsKeepDestinationsApart(t *testing.T) {
	t.Parallel()
	for _, strategy := range []topology.Levels{{Dead: noDLQ, Max: time.Minute}, {Dead: noDLQ, Resolution: time.Millisecond, Tolerance: -1}} {
		var plans []topology.Plan
		for _, name := range tricky {
			plan, err := strategy.Plan(name, nil)
			require.NoError(t, err, name)
			plans = append(plans, plan)
		}
		broker := rig.Merged(plans...)
		for _, plan := range plans {
			for _, asked := range []time.Duration{1, 777 * time.Millisecond, 9876 * time.Millisecond, 1<<38*time.Millisecond - 1} {
				route, err := plan.Route(topology.Retry{Delay: asked})
				require.NoError(t, err)
				require.LessOrEqual(t, len(route.RoutingKey), 255)
				requireWalk(t, broker, plan, route)
			}
		}
	}
}

// Whatever two queues are called and whatever delay is asked for: a message ends
// in its own queue alone, after as long as the route says and no less than asked.
func FuzzLevels(f *testing.F) {
	for i, a := range tricky {
		f.Add(a, tricky[(i+1)%len(tricky)], int64(time.Duration(i+1)*time.Second), uint16(100), 0.01)
	}
	f.Add("orders", "orders2", int64(1)<<62, uint16(1), 1.0)
	f.Add("orders", "millpond.level.3", int64(-1), uint16(0), 0.5)
	f.Fuzz(func(t *testing.T, a, b string, asked int64, resolution uint16, tolerance float64) {
		strategy := topology.Levels{Dead: noDLQ, Resolution: time.Duration(resolution) * time.Millisecond, Tolerance: tolerance, Max: 1000 * time.Hour}
		first, err := strategy.Plan(a, nil)
		if err != nil {
			return
		}
		require.NoError(t, topology.ValidatePlan(first))
		second, err := strategy.Plan(b, nil)
		if err != nil || a == b {
			return
		}
		require.NotEqual(t, first.Levels.Destination, second.Levels.Destination)
		delay := time.Duration(asked)
		route, err := first.Route(topology.Retry{Delay: delay})
		require.NoError(t, err)
		require.LessOrEqual(t, len(route.RoutingKey), 255)
		requireWalk(t, rig.Merged(first, second), first, route)
		step := first.Levels.Resolution
		longest := time.Duration(1<<first.Levels.Levels-1) * step
		if delay <= longest {
			require.GreaterOrEqual(t, route.Delay, max(delay, step))
			slack := max(float64(step), float64(delay)*first.Levels.Tolerance+1)
			require.LessOrEqual(t, float64(route.Delay-max(delay, step)), slack)
		} else {
			require.Equal(t, 1, route.Hops, "a round")
		}
	})
}
