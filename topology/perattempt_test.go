package topology_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/topology"
)

func ExamplePerAttempt() {
	delays := []time.Duration{5 * time.Second, 5 * time.Second, time.Minute}
	plan, err := topology.PerAttempt{Delays: delays}.Plan("orders", nil)
	if err != nil {
		fmt.Println(err)
	}
	for attempt := 1; attempt <= 4; attempt++ {
		route, _ := plan.Route(topology.Retry{Delay: 5 * time.Second, Attempt: attempt})
		fmt.Println("attempt", attempt, "waits in", route.RoutingKey)
	}
	// An error asks for a delay between the steps.
	route, _ := plan.Route(topology.Retry{Delay: 50 * time.Second, Attempt: 1})
	fmt.Println("50s wait in", route.RoutingKey)
	// Output:
	// attempt 1 waits in orders.retry.1.5s
	// attempt 2 waits in orders.retry.2.5s
	// attempt 3 waits in orders.retry.2.5s
	// attempt 4 waits in orders.retry.2.5s
	// 50s wait in orders.retry.3.1m
}

func TestPerAttemptPlan(t *testing.T) {
	t.Parallel()
	const ms, s = time.Millisecond, time.Second
	type delays = []time.Duration
	series := func(of ...time.Duration) topology.PerAttempt { return topology.PerAttempt{Delays: of} }
	classic := topology.PerAttempt{Type: topology.Classic}
	steps := "q.retry.1.1s q.retry.2.5s q.retry.3.30s q.retry.4.2m q.retry.5.10m q.retry.6.1h"
	type testCase struct {
		strategy topology.PerAttempt
		delays   delays
		want     string
	}
	rig.Each(t, map[string]testCase{
		"the policy's delays": {
			series(), delays{s, 2 * s, 3 * s}, "q.retry.1.1s q.retry.2.2s q.retry.3.3s",
		},
		"repeated": {series(s, s), delays{s}, "q.retry.1.1s q.retry.2.1s"},
		"down again": {
			series(3*s, s, 3*s), delays{s, 3 * s}, "q.retry.2.1s q.retry.1.3s q.retry.3.3s",
		},
		"more than the series": {
			series(2*s, s),
			delays{s, 2 * s, 5 * s, 1500 * ms},
			"q.retry.2.1s q.retry.3.1.5s q.retry.1.2s q.retry.4.5s",
		},
		"a second for snoozes": {series(), delays{100 * ms}, "q.retry.1.100ms q.retry.0.1s"},
		"no retries":           {series(), delays{}, "q.retry.0.1s"},
		"unknown":              {series(), nil, steps},
		"unknown, a series":    {series(s), nil, "q.retry.1.1s"},
		"unknown, a series and wait steps": {
			topology.PerAttempt{Delays: delays{s}, WaitSteps: delays{9 * s}},
			nil,
			"q.retry.1.1s q.retry.2.9s",
		},
		"rounded up": {series(s + 1), delays{s + 2}, "q.retry.1.1.001s"},
		"classic":    {classic, delays{s}, "q.retry.1.1s.classic"},
	}, func(t *testing.T, c testCase) {
		plan := rig.PlanOf(t, c.strategy, "q", c.delays...)
		want := strings.Fields(c.want)
		var names []string
		for _, q := range plan.Queues {
			if q.Delay > 0 {
				names = append(names, q.Name)
			}
		}
		require.Equal(t, want, names)
		require.Equal(t, "q.dlq", plan.Dead.RoutingKey)
		for i, step := range plan.WaitSteps {
			waits, end := rig.Walk(t, plan, step)
			require.Equal(t, "q", end)
			require.Len(t, waits, 1)
			require.Equal(t, want[i], waits[0].Name)
			require.Equal(t, step.Delay, waits[0].Delay)
		}
	})
}

func TestPerAttemptRoutes(t *testing.T) {
	t.Parallel()
	const s = time.Second
	delays := []time.Duration{2 * s, 5 * s, 2 * s, 5 * s}
	plan := rig.PlanOf(t, topology.PerAttempt{Delays: delays}, "q")
	type testCase struct {
		retry topology.Retry
		want  string
	}
	rig.Each(t, map[string]testCase{
		"its own":                  {topology.Retry{Delay: 2 * s, Attempt: 1}, "q.retry.1.2s"},
		"its own, further on":      {topology.Retry{Delay: 2 * s, Attempt: 3}, "q.retry.3.2s"},
		"the last before it":       {topology.Retry{Delay: 2 * s, Attempt: 2}, "q.retry.1.2s"},
		"none before it":           {topology.Retry{Delay: 5 * s, Attempt: 1}, "q.retry.2.5s"},
		"beyond the last":          {topology.Retry{Delay: 2 * s, Attempt: 1000}, "q.retry.3.2s"},
		"snoozed":                  {topology.Retry{Delay: s}, "q.retry.1.2s"},
		"longer than its own":      {topology.Retry{Delay: 4 * s, Attempt: 3}, "q.retry.2.5s"},
		"a round of a shorter one": {topology.Retry{Delay: 3 * s, Attempt: 3}, "q.retry.3.2s"},
		"the rest of the round": {
			topology.Retry{Delay: s - 1, Asked: 3 * s, Attempt: 3}, "q.retry.3.2s",
		},
		"longer than all, a round": {topology.Retry{Delay: time.Hour, Attempt: 4}, "q.retry.4.5s"},
		"garbage":                  {topology.Retry{Delay: -s, Attempt: -1}, "q.retry.1.2s"},
	}, func(t *testing.T, c testCase) {
		route, err := plan.Route(c.retry)
		require.NoError(t, err)
		require.Equal(t, c.want, route.RoutingKey)
		require.Equal(t, "q.retry", route.Exchange)
	})
}

func TestPerAttemptRefuses(t *testing.T) {
	t.Parallel()
	_, err := topology.PerAttempt{
		Delays:       []time.Duration{-1, time.Second, 2 * time.Second, backoff.MaxDelay + 1},
		WaitName:     func(queue string, _ int, _ time.Duration) string { return "same" },
		ExchangeName: func(string) string { return "" },
		Type:         "stream",
	}.Plan("q", nil)
	rig.RequireTexts(t, err, "delay -1ns is not positive", "at most 315360000000 ms", `"same"`,
		"retry exchange is empty", `"stream"`)
}
