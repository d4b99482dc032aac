package topology_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/ladder"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/native"
)

// A rejected message stays in its queue, so it cannot pass an exchange of the user.
func TestRejectsAndViaAreRefused(t *testing.T) {
	t.Parallel()
	via := topology.PerQueue{Via: []string{"events"}}
	strategy := native.Strategy{Min: time.Second, Max: time.Minute, Else: via}
	const want = "passes no exchange on its way back: leave Via out"
	require.ErrorContains(t, strategy.Validate(), want)
	plan := rig.PlanOf(t, via, "orders")
	plan.RejectMin, plan.RejectMax = time.Second, time.Minute
	require.ErrorContains(t, topology.ValidatePlan(plan), want)
	plan.Via = nil
	require.NotContains(t, fmt.Sprint(topology.ValidatePlan(plan)), want)
}

// Given delays of which the queue can hold some, when such a message has another delivery count,
// then its wait on the wait queues is no later than any other.
func TestNativeWaitsAreAsLateAsOthers(t *testing.T) {
	t.Parallel()
	linear := func(step time.Duration, n int) (list []time.Duration) {
		for i := range n {
			list = append(list, time.Duration(i+1)*step)
		}
		return list
	}
	for name, c := range map[string]struct {
		strategy native.Strategy
		delays   []time.Duration
		queues   int // without the dead-letter queue
	}{
		"short ones, beside a policy for the network": {
			native.Strategy{Min: 500 * time.Millisecond, Max: time.Second},
			[]time.Duration{
				500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second,
				250 * time.Millisecond, 3 * time.Second,
			},
			5,
		},
		"linear ones, beside a long one": {
			native.Strategy{Min: 5 * time.Second, Max: 10 * time.Minute},
			append(linear(5*time.Second, 120), 20*time.Minute),
			4,
		},
		"linear ones alone, on the default wait steps": {
			native.Strategy{Min: 5 * time.Second, Max: time.Minute}, linear(5*time.Second, 12), 6,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan, err := c.strategy.Plan("orders", c.delays)
			require.NoError(t, err)
			require.NoError(t, topology.ValidatePlan(plan))
			var steps []time.Duration
			for _, step := range plan.WaitSteps {
				steps = append(steps, step.Delay)
			}
			for _, delay := range c.delays {
				late := ladder.Total(steps, delay) - delay
				require.LessOrEqual(t, late, ladder.Allowed(delay), "%v on %v", delay, steps)
			}
			require.Len(t, steps, c.queues, "%v", steps)
		})
	}
}
