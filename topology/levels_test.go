package topology_test

import (
	"fmt"
	"math"
	"math/bits"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
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
	for _, asked := range []time.Duration{
		0, 500 * time.Millisecond, 1234 * time.Millisecond, 4 * time.Second,
	} {
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

// noDLQ sends dead letters to an exchange, so that no name is longer than the queue's.
var noDLQ = topology.DeadLetters{
	Target: func(string) topology.Route { return topology.Route{Exchange: "dead"} },
}

func TestLevelsRoundToFewerHops(t *testing.T) {
	t.Parallel()
	const (
		ms, s, m = time.Millisecond, time.Second, time.Minute
		tenYears = backoff.MaxDelay
	)
	exact := topology.Levels{Tolerance: -1}
	tolerating := func(part float64) topology.Levels { return topology.Levels{Tolerance: part} }
	threeSeconds := topology.Levels{Max: 3 * s}
	cases := map[string]struct {
		strategy topology.Levels
		asked    time.Duration
		want     time.Duration
		hops     int
	}{
		"zero":                        {topology.Levels{}, 0, 100 * ms, 1},
		"seven minutes, a hundredth":  {topology.Levels{}, 7 * m, 422400 * ms, 2},
		"seven minutes, exact":        {exact, 7 * m, 7 * m, 4},
		"seven minutes, any":          {tolerating(1), 7 * m, 819200 * ms, 1},
		"another resolution":          {topology.Levels{Resolution: s}, 6100 * ms, 7 * s, 3},
		"ten years, a hundredth":      {topology.Levels{}, tenYears, 315411660800 * ms, 5},
		"all levels together":         {threeSeconds, 3100 * ms, 3100 * ms, 5},
		"longer: a round of the last": {threeSeconds, 3101 * ms, 1600 * ms, 1},
		"no rounding beyond all": {
			topology.Levels{Max: 3 * s, Tolerance: 1}, 2700 * ms, 2800 * ms, 3,
		},
		"a Max under a second": {topology.Levels{Max: 100 * ms}, s, s, 2},
		"one level":            {topology.Levels{Resolution: 5 * s, Max: 5 * s}, s, 5 * s, 1},
		"milliseconds for ten years": {
			topology.Levels{Resolution: ms, Tolerance: -1}, tenYears - ms, tenYears - ms, 27,
		},
		"beyond the longest wait": {topology.Levels{}, math.MaxInt64, 1 << 31 * 100 * ms, 1},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan := rig.PlanOf(t, c.strategy, "orders")
			route, err := plan.Route(topology.Retry{Delay: c.asked})
			require.NoError(t, err)
			require.Equal(t, []any{c.want.String(), c.hops}, []any{route.Delay.String(), route.Hops})
			requireWalk(t, plan, plan, route)
		})
	}
}

// requireWalk asserts that a message on the route ends in the queue of the plan. It must
// pass as many wait queues as the route says, the longest first, for as long in total.
func requireWalk(t testing.TB, broker, plan topology.Plan, route topology.Route) {
	t.Helper()
	waits, end := walk(t, broker, route)
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

// The expected number is found by trying every number within the tolerance.
func TestLevelsTakeTheFewestHopsThereAre(t *testing.T) {
	t.Parallel()
	const resolution = 100 * time.Millisecond
	for _, tolerance := range []float64{0.01, 0.05, 0.3, 1} {
		plan := rig.PlanOf(t, topology.Levels{Tolerance: tolerance, Max: time.Hour}, "orders")
		for steps := uint64(1); steps < 3000; steps++ {
			route, err := plan.Route(topology.Retry{Delay: time.Duration(steps) * resolution})
			require.NoError(t, err)
			best := steps
			for n := steps; float64(n) <= float64(steps)*(1+tolerance)+1e-9; n++ {
				if bits.OnesCount64(n) < bits.OnesCount64(best) {
					best = n
				}
			}
			require.Equal(t, time.Duration(best)*resolution, route.Delay,
				"%d steps, tolerance %v", steps, tolerance)
		}
	}
}

func TestLevelsPlanDependsOnNoDelay(t *testing.T) {
	t.Parallel()
	none := rig.PlanOf(t, topology.Levels{}, "orders")
	delays := []time.Duration{time.Second, 123 * time.Millisecond, backoff.MaxDelay}
	some := rig.PlanOf(t, topology.Levels{}, "orders", delays...)
	require.Equal(t, none, some)
	require.Len(t, none.WaitSteps, 32)
	require.Len(t, none.Queues, 32+2)
	require.Equal(t, int64(214748364800), none.Queues[31].Arguments["x-message-ttl"])
	require.Contains(t, none.String(), "millpond.level.enter   *.*.1.*")
	require.Contains(t, none.String(),
		"any delay in steps of 100ms up to 119304h38m49.5s, 1 % more for fewer levels")

	another := rig.PlanOf(t, topology.Levels{}, "letters")
	require.Equal(t, none.Queues[:33], another.Queues[:33])
	require.Equal(t, none.Exchanges, another.Exchanges)
	require.Len(t, merged(none, another).Bindings, len(none.Bindings)+1)
}

// Given different strategies on one broker, then equal names have equal arguments, and
// every message takes the way of its plan.
func TestLevelsThatDifferDoNotConflict(t *testing.T) {
	t.Parallel()
	var plans []topology.Plan
	declared := map[string]any{}
	requireSame := func(name string, got any) {
		if known, ok := declared[name]; ok {
			require.Equal(t, known, got, name)
		}
		declared[name] = got
	}
	for i, s := range []topology.Strategy{
		topology.Levels{},
		topology.Levels{Max: time.Minute},
		topology.Levels{Max: time.Hour, Tolerance: -1},
		topology.Levels{Resolution: time.Second},
		topology.Levels{Resolution: 10 * time.Millisecond, Max: time.Minute},
		topology.Levels{WaitArguments: map[string]any{"x-max-length": int64(1000)}},
		topology.Shared{},
	} {
		plan := rig.PlanOf(t, s, fmt.Sprintf("queue-%d", i))
		plans = append(plans, plan)
		for _, q := range plan.Queues {
			requireSame("queue "+q.Name, q.Arguments)
		}
		for _, e := range plan.Exchanges {
			requireSame("exchange "+e.Name, e)
		}
	}
	broker := merged(plans...)
	for _, plan := range plans {
		for _, asked := range []time.Duration{
			1, time.Second, 59900 * time.Millisecond, 80 * time.Second,
		} {
			route, err := plan.Route(topology.Retry{Delay: asked})
			require.NoError(t, err)
			requireWalk(t, broker, plan, route)
		}
	}
}

func TestLevelsNames(t *testing.T) {
	t.Parallel()
	bounded := map[string]any{"x-max-length": 5}
	type testCase struct {
		strategy topology.Levels
		level    string
		suffix   string // of the level and of the entry exchange
	}
	rig.Each(t, map[string]testCase{
		"default":    {topology.Levels{}, "millpond.level.", ""},
		"100 ms":     {topology.Levels{Resolution: 100 * time.Millisecond}, "millpond.level.", ""},
		"prefix":     {topology.Levels{Prefix: "shop"}, "shop.level.", ""},
		"resolution": {topology.Levels{Resolution: 50 * time.Millisecond}, "millpond.level.", ".50ms"},
		"classic":    {topology.Levels{Type: topology.Classic}, "millpond.level.", ".classic"},
		"everything": {
			topology.Levels{Resolution: time.Second, Type: topology.Classic, WaitArguments: bounded},
			"millpond.level.", ".1s.classic.x94bc49b6",
		},
	}, func(t *testing.T, c testCase) {
		plan := rig.PlanOf(t, c.strategy, "orders")
		require.Equal(t, c.level+"3"+c.suffix, plan.Queues[3].Name)
		require.Equal(t, c.level+"enter"+c.suffix, plan.WaitSteps[3].Exchange)
	})
}

func TestLevelsRefuse(t *testing.T) {
	t.Parallel()
	const ms, us = time.Millisecond, time.Microsecond
	ttl := map[string]any{"x-message-ttl": 1}
	two := topology.Levels{Tolerance: 2, Resolution: -1, Type: "stream"}
	long := topology.Levels{Prefix: strings.Repeat("p", 250)}
	type testCase struct {
		strategy topology.Levels
		queue    string
		delay    time.Duration
		want     string // texts, with ; between
	}
	rig.Each(t, map[string]testCase{
		"long resolution": {
			topology.Levels{Resolution: backoff.MaxDelay + ms}, "q", 1, "shorter than the resolution",
		},
		"negative Max": {topology.Levels{Max: -1}, "q", 1, "longest delay -1ns"},
		"long Max": {
			topology.Levels{Max: backoff.MaxDelay + 1}, "q", 1, "over ten years: at most 315360000000 ms",
		},
		"tolerance": {
			topology.Levels{Tolerance: 1.5}, "q", 1, "tolerance 1.5 is not between 0 and 1",
		},
		"not a number": {topology.Levels{Tolerance: math.NaN()}, "q", 1, "tolerance NaN"},
		"name of a level": {
			topology.Levels{}, "millpond.level.7", 1, "and the queue itself have the same name",
		},
		"long prefix":   {long, "q", 1, "wait queue of 100ms has;entry exchange has"},
		"our arguments": {topology.Levels{WaitArguments: ttl}, "q", 1, "x-message-ttl"},
		"everything":    {two, "", 1, "tolerance;resolution;stream;queue is empty"},
	}, func(t *testing.T, c testCase) {
		_, err := c.strategy.Plan(c.queue, []time.Duration{c.delay})
		rig.RequireTexts(t, err, strings.Split(c.want, ";")...)
	})
}

func TestLevelsEscapeDestinations(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("q", 160)
	const sum = "86906c8c1f493503bf31af8bcd12d4d6203f367dc6a9baef109e192d280ea502"
	for queue, want := range map[string]string{
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
		long + "q":    strings.Repeat("q", 80) + "%~" + sum,
	} {
		plan := rig.PlanOf(t, topology.Levels{Dead: noDLQ}, queue)
		require.Equal(t, want, plan.Levels.Destination)
	}
}

// tricky are names of queues that a careless scheme would mix up.
var tricky = []string{
	"orders", "eu.orders", "orders.#", "*", "#", "*.orders", "#.orders", "0", "1", "1.orders",
	"0.1.orders", "1.1", "%", "%2A", "%2E", "orders.", ".orders", "..", strings.Repeat("x", 200),
	strings.Repeat("x", 199) + "y", strings.Repeat(".", 200), strings.Repeat(".", 199),
	strings.Repeat("x", 255), strings.Repeat("注", 85), strings.Repeat("注", 84) + "文",
	"bestellungen-straße", "\xff", "\xff.", "\uFFFD", "%FF",
}

// For any two names and any delay, a message ends in its own queue only. It waits for as
// long as the route says and at least for the delay.
func FuzzLevels(f *testing.F) {
	for i, a := range tricky {
		f.Add(a, tricky[(i+1)%len(tricky)], int64(time.Duration(i+1)*time.Second), uint16(100), 0.01)
	}
	f.Add("orders", "orders2", int64(1)<<62, uint16(1), 1.0)
	f.Add("orders", "millpond.level.3", int64(-1), uint16(0), 0.5)
	f.Fuzz(func(t *testing.T, a, b string, asked int64, resolution uint16, tolerance float64) {
		strategy := topology.Levels{
			Dead: noDLQ, Resolution: time.Duration(resolution) * time.Millisecond,
			Tolerance: tolerance, Max: 1000 * time.Hour,
		}
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
		requireWalk(t, merged(first, second), first, route)
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
