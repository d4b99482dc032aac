package topology

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
)

// What a message really waits, rounds and all.
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
		"levels, a round and what is left":    {Levels{Max: 3 * s}, 3101 * ms, 3200 * ms},
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
