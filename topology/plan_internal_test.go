package topology

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
)

// Only quorum queues sort waiting messages, and only above priority 4.
func TestWhereAPriorityIsLowered(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		strategy Strategy
		lowered  bool
	}{
		"per queue":           {PerQueue{}, true},
		"per queue, classic":  {PerQueue{Type: Classic}, false},
		"per attempt":         {PerAttempt{}, true},
		"shared":              {Shared{}, true},
		"shared, classic":     {Shared{Type: Classic}, false},
		"levels":              {Levels{}, true},
		"levels, classic":     {Levels{Type: Classic}, false},
		"through an exchange": {PerQueue{Via: "events"}, true},
	} {
		plan, err := c.strategy.Plan("orders", nil)
		require.NoError(t, err, name)
		require.Equal(t, c.lowered, plan.toConsumer().SortsPriorities, name)
	}
}

// How long a message really waits, in all rounds together.
func TestPlanWaits(t *testing.T) {
	t.Parallel()
	const s, ms = time.Second, time.Millisecond
	steps := func(delays ...time.Duration) Strategy { return PerQueue{WaitSteps: delays} }
	for name, c := range map[string]struct {
		strategy    Strategy
		asked, want time.Duration
	}{
		"nothing":                             {steps(s), 0, s},
		"negative":                            {steps(s), -s, s},
		"exact":                               {steps(s, 5*s), 5 * s, 5 * s},
		"the next longer":                     {steps(s, 5*s), 2 * s, 5 * s},
		"rounds that fit":                     {steps(s, 5*s), 10 * s, 10 * s},
		"a last round that is longer":         {steps(s, 5*s), 12 * s, 15 * s},
		"a last round that fits":              {steps(s, 5*s), 11 * s, 11 * s},
		"a rest that is not worth a round":    {steps(s), 2*s + 50*ms, 2*s + 50*ms},
		"a rest that is":                      {steps(s), 2*s + 51*ms, 3 * s},
		"a hundredth is not worth one":        {steps(s, 60*s), 6030 * s, 6030 * s},
		"ten years in seconds":                {steps(s), backoff.MaxDelay, backoff.MaxDelay},
		"levels":                              {Levels{}, 250 * ms, 300 * ms},
		"levels, up to a hundredth longer":    {Levels{}, 7 * time.Minute, 422400 * ms},
		"levels, a round and the rest":        {Levels{Max: 3 * s}, 3101 * ms, 3200 * ms},
		"levels, rounds of the longest alone": {Levels{Max: 3 * s}, 3200 * ms, 3200 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan, err := c.strategy.Plan("orders", nil)
			require.NoError(t, err)
			require.Equal(t, c.want.String(), plan.waits(c.asked).String())
		})
	}
	require.Equal(t, time.Minute, Plan{}.waits(time.Minute), "a plan without steps")
}

// The exchanges behind wait queues that leave the routing key to the message. A policy of the
// broker may change that key.
func TestExchangesThatKeepTheRoutingKey(t *testing.T) {
	t.Parallel()
	// A strategy of the user's own, whose wait queue sets the key.
	own := Plan{Queue: "orders", Queues: []Queue{WaitQueue("w", time.Second, Route{
		Exchange:   "back",
		RoutingKey: "fixed",
	})}}
	require.Empty(t, own.toConsumer().KeyKept)
	for name, c := range map[string]struct {
		strategy Strategy
		want     []string
	}{
		"per queue":  {PerQueue{}, nil},
		"perattempt": {PerAttempt{}, nil},
		"shared":     {Shared{}, []string{"millpond.return"}},
		"with Via":   {Shared{Via: "events"}, []string{"millpond.return.events"}},
		"levels": {Levels{Max: 500 * time.Millisecond}, []string{
			"millpond.level.return",
			"millpond.level.0", "millpond.level.1", "millpond.level.2",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan, err := c.strategy.Plan("orders", []time.Duration{5 * time.Second})
			require.NoError(t, err)
			require.Equal(t, c.want, plan.toConsumer().KeyKept)
		})
	}
}
