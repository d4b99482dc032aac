package topology_test

import (
	"fmt"
	"math"
	"math/bits"
	"strings"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/topology"
)

func ExampleLevels() {
	plan, err := topology.Levels{Max: 5 * time.Second}.Plan("eu.orders", nil)
	if err != nil {
		fmt.Println(err)
	}
	for _, q := range plan.Queues {
		fmt.Println(q.Name, q.Arguments["x-message-ttl"])
	}
	for _, asked := range []time.Duration{0, 500 * time.Millisecond, 1234 * time.Millisecond, 4 * time.Second} {
		route, _ := plan.Route(topology.Retry{Delay: asked})
		fmt.Println(asked, "waits", route.Delay, "on", route.RoutingKey)
	}
	// Output:
	// millpond.level.0 100
	// millpond.level.1 200
	// millpond.level.2 400
	// millpond.level.3 800
	// millpond.level.4 1600
	// millpond.level.5 3200
	// millpond.stranded <nil>
	// eu.orders.dlq <nil>
	// 0s waits 100ms on 1.eu%2Eorders
	// 500ms waits 500ms on 1.0.1.eu%2Eorders
	// 1.234s waits 1.3s on 1.0.1.1.eu%2Eorders
	// 4s waits 4s on 0.0.0.1.0.1.eu%2Eorders
}

// noDLQ sends dead letters elsewhere, so that no name is longer than the queue's.
var noDLQ = topology.DeadLetters{Target: func(string) topology.Route { return topology.Route{Exchange: "dead"} }}

func TestLevelsRoundToFewerHops(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		strategy topology.Levels
		asked    time.Duration
		want     time.Duration
		hops     int
	}{
		"negative":                     {topology.Levels{}, -time.Second, 100 * time.Millisecond, 1},
		"zero":                         {topology.Levels{}, 0, 100 * time.Millisecond, 1},
		"under the resolution":         {topology.Levels{}, 1, 100 * time.Millisecond, 1},
		"the resolution":               {topology.Levels{}, 100 * time.Millisecond, 100 * time.Millisecond, 1},
		"rounded up":                   {topology.Levels{}, 100*time.Millisecond + 1, 200 * time.Millisecond, 1},
		"a second":                     {topology.Levels{}, time.Second, time.Second, 2},
		"seven seconds are exact":      {topology.Levels{}, 7 * time.Second, 7 * time.Second, 3},
		"seven minutes, a hundredth":   {topology.Levels{}, 7 * time.Minute, 422400 * time.Millisecond, 2},
		"seven minutes, exact":         {topology.Levels{Tolerance: -1}, 7 * time.Minute, 7 * time.Minute, 4},
		"seven minutes, a tenth":       {topology.Levels{Tolerance: 0.1}, 7 * time.Minute, 422400 * time.Millisecond, 2},
		"seven minutes, any":           {topology.Levels{Tolerance: 1}, 7 * time.Minute, 819200 * time.Millisecond, 1},
		"as long already has few":      {topology.Levels{Tolerance: 0.1}, 6400 * time.Millisecond, 6400 * time.Millisecond, 1},
		"just under the tolerance":     {topology.Levels{Tolerance: 0.05}, 6100 * time.Millisecond, 6400 * time.Millisecond, 1},
		"just over it":                 {topology.Levels{Tolerance: 0.049}, 6100 * time.Millisecond, 6100 * time.Millisecond, 5},
		"a resolution of its own":      {topology.Levels{Resolution: time.Second}, 6100 * time.Millisecond, 7 * time.Second, 3},
		"ten years":                    {topology.Levels{Tolerance: -1}, backoff.MaxDelay, backoff.MaxDelay, 15},
		"ten years, a hundredth":       {topology.Levels{}, backoff.MaxDelay, 315411660800 * time.Millisecond, 5},
		"all levels together":          {topology.Levels{Max: 3 * time.Second}, 3100 * time.Millisecond, 3100 * time.Millisecond, 5},
		"longer: a round of the last":  {topology.Levels{Max: 3 * time.Second}, 3101 * time.Millisecond, 1600 * time.Millisecond, 1},
		"no rounding beyond all":       {topology.Levels{Max: 3 * time.Second, Tolerance: 1}, 2700 * time.Millisecond, 2800 * time.Millisecond, 3},
		"a Max under a second":         {topology.Levels{Max: 100 * time.Millisecond}, time.Second, time.Second, 2},
		"one level":                    {topology.Levels{Resolution: 5 * time.Second, Max: 5 * time.Second}, time.Second, 5 * time.Second, 1},
		"milliseconds for ten years":   {topology.Levels{Resolution: time.Millisecond, Tolerance: -1}, backoff.MaxDelay - time.Millisecond, backoff.MaxDelay - time.Millisecond, 27},
		"beyond what anybody may wait": {topology.Levels{}, math.MaxInt64, 1 << 31 * 100 * time.Millisecond, 1},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan, err := c.strategy.Plan("orders", nil)
			require.NoError(t, err)
			route, err := plan.Route(topology.Retry{Delay: c.asked})
			require.NoError(t, err)
			require.Equal(t, []any{c.want.String(), c.hops}, []any{route.Delay.String(), route.Hops})
			requireWalk(t, plan, plan, route)
		})
	}
}

// requireWalk asserts that a message on the route passes as many wait queues as
// the route says, the longest first, together as long as it says, and ends in the
// queue of the plan.
func requireWalk(t testing.TB, broker, plan topology.Plan, route topology.Route) {
	t.Helper()
	waits, end := rig.Walk(t, broker, route)
	require.Equal(t, plan.Queue, end)
	require.Len(t, waits, route.Hops)
	var total time.Duration
	for i, q := range waits {
		total += q.Delay
		require.Equal(t, q.Delay.Milliseconds(), q.Arguments["x-message-ttl"])
		require.True(t, i == 0 || q.Delay < waits[i-1].Delay, "%s comes after a shorter one", q.Name)
	}
	require.Equal(t, route.Delay.String(), total.String())
}

// Fewest hops, found by trying every number within the tolerance.
func TestLevelsTakeTheFewestHopsThereAre(t *testing.T) {
	t.Parallel()
	const resolution = 100 * time.Millisecond
	for _, tolerance := range []float64{0.01, 0.05, 0.3, 1} {
		plan, err := topology.Levels{Tolerance: tolerance, Max: time.Hour}.Plan("orders", nil)
		require.NoError(t, err)
		for steps := uint64(1); steps < 3000; steps++ {
			route, err := plan.Route(topology.Retry{Delay: time.Duration(steps) * resolution})
			require.NoError(t, err)
			best := steps
			for n := steps; float64(n) <= float64(steps)*(1+tolerance)+1e-9; n++ {
				if bits.OnesCount64(n) < bits.OnesCount64(best) {
					best = n
				}
			}
			require.Equal(t, time.Duration(best)*resolution, route.Delay, "%d steps, tolerance %v", steps, tolerance)
		}
	}
}

func TestLevelsPlanDependsOnNoDelay(t *testing.T) {
	t.Parallel()
	none, err := topology.Levels{}.Plan("orders", nil)
	require.NoError(t, err)
	some, err := topology.Levels{}.Plan("orders", []time.Duration{time.Second, 123 * time.Millisecond, backoff.MaxDelay})
	require.NoError(t, err)
	require.Equal(t, none, some)
	require.Len(t, none.WaitSteps, 32)
	require.Len(t, none.Queues, 32+2)
	require.Equal(t, int64(214748364800), none.Queues[31].Arguments["x-message-ttl"])
	require.Contains(t, none.String(), "millpond.level.enter   *.*.1.*")
	require.Contains(t, none.String(), "any delay in steps of 100ms up to 119304h38m49.5s, 1 % more for fewer levels")

	another, err := topology.Levels{}.Plan("letters", nil)
	require.NoError(t, err)
	require.Equal(t, none.Queues[:33], another.Queues[:33])
	require.Equal(t, none.Exchanges, another.Exchanges)
	require.Len(t, rig.Merged(none, another).Bindings, len(none.Bindings)+1)
}

// Strategies that differ share a broker: what has the same name is the same, and
// every message takes the way of its own plan.
func TestLevelsThatDifferDoNotConflict(t *testing.T) {
	t.Parallel()
	strategies := []topology.Strategy{
		topology.Levels{},
		topology.Levels{Max: time.Minute},
		topology.Levels{Max: time.Hour, Tolerance: -1},
		topology.Levels{Resolution: time.Second},
		topology.Levels{Resolution: 10 * time.Millisecond, Max: time.Minute},
		topology.Levels{WaitArguments: map[string]any{"x-max-length": int64(1000)}},
		topology.Shared{},
	}
	var plans []topology.Plan
	arguments := map[string]any{}
	for i, s := range strategies {
		plan, err := s.Plan(fmt.Sprintf("queue-%d", i), nil)
		require.NoError(t, err)
		plans = append(plans, plan)
		for _, q := range plan.Queues {
			if known, ok := arguments[q.Name]; ok {
				require.Equal(t, known, q.Arguments, q.Name)
			}
			arguments[q.Name] = q.Arguments
		}
		for _, e := range plan.Exchanges {
			if known, ok := arguments["exchange "+e.Name]; ok {
				require.Equal(t, known, e, e.Name)
			}
			arguments["exchange "+e.Name] = e
		}
	}
	broker := rig.Merged(plans...)
	for _, plan := range plans {
		for _, asked := range []time.Duration{1, time.Second, 59900 * time.Millisecond, 80 * time.Second} {
			route, err := plan.Route(topology.Retry{Delay: asked})
			require.NoError(t, err)
			requireWalk(t, broker, plan, route)
		}
	}
}

func TestLevelsNames(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		strategy topology.Levels
		level    string
		enter    string
	}{
		"default":        {topology.Levels{}, "millpond.level.3", "millpond.level.enter"},
		"the default":    {topology.Levels{Resolution: 100 * time.Millisecond}, "millpond.level.3", "millpond.level.enter"},
		"prefix":         {topology.Levels{Prefix: "shop"}, "shop.level.3", "shop.level.enter"},
		"resolution":     {topology.Levels{Resolution: 50 * time.Millisecond}, "millpond.level.3.50ms", "millpond.level.enter.50ms"},
		"classic":        {topology.Levels{Type: topology.Classic}, "millpond.level.3.classic", "millpond.level.enter.classic"},
		"all that there": {topology.Levels{Resolution: time.Second, Type: topology.Classic, WaitArguments: map[string]any{"x-max-length": 5}}, "millpond.level.3.1s.classic.x94bc49b6", "millpond.level.enter.1s.classic.x94bc49b6"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan, err := c.strategy.Plan("orders", nil)
			require.NoError(t, err)
			require.Equal(t, c.level, plan.Queues[3].Name)
			require.Equal(t, c.enter, plan.WaitSteps[3].Exchange)
		})
	}
}

func TestLevelsRefuse(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		strategy topology.Levels
		queue    string
		delays   []time.Duration
		want     []string
	}{
		"negative resolution": {topology.Levels{Resolution: -1}, "q", nil, []string{"resolution -1ns is negative"}},
		"microseconds":        {topology.Levels{Resolution: 1500 * time.Microsecond}, "q", nil, []string{"resolution 1.5ms is not in whole milliseconds"}},
		"over five seconds":   {topology.Levels{Resolution: 5001 * time.Millisecond}, "q", nil, []string{"resolution 5.001s is over 5s"}},
		"long resolution":     {topology.Levels{Resolution: backoff.MaxDelay + time.Millisecond}, "q", nil, []string{"shorter than the resolution"}},
		"negative Max":        {topology.Levels{Max: -1}, "q", nil, []string{"longest delay -1ns"}},
		"long Max":            {topology.Levels{Max: backoff.MaxDelay + 1}, "q", nil, []string{"over ten years: at most 315360000000 ms"}},
		"tolerance":           {topology.Levels{Tolerance: 1.5}, "q", nil, []string{"tolerance 1.5 is not between 0 and 1"}},
		"no number":           {topology.Levels{Tolerance: math.NaN()}, "q", nil, []string{"tolerance NaN"}},
		"a delay":             {topology.Levels{}, "q", []time.Duration{-1}, []string{"delay -1ns is not positive"}},
		"one of ours":         {topology.Levels{}, "millpond.level.7", nil, []string{"is also that of the queue itself"}},
		"long prefix":         {topology.Levels{Prefix: strings.Repeat("p", 250)}, "q", nil, []string{"wait queue of 100ms has", "entry exchange has"}},
		"our arguments":       {topology.Levels{WaitArguments: map[string]any{"x-message-ttl": 1}}, "q", nil, []string{"x-message-ttl"}},
		"everything":          {topology.Levels{Tolerance: 2, Resolution: -1, Type: "stream"}, "", nil, []string{"tolerance", "resolution", "stream", "queue is empty"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := c.strategy.Plan(c.queue, c.delays)
			for _, text := range c.want {
				require.ErrorContains(t, err, text)
			}
		})
	}
}
