package chaos

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/topology"
)

func TestStrategies(t *testing.T) {
	t.Parallel()
	for _, name := range Strategies {
		good, err := NewStrategy(name, "")
		require.NoError(t, err)
		bad, err := NewStrategy(name, AtMostOnce)
		require.NoError(t, err)
		with, err := good.Plan(queueName, Delays)
		require.NoError(t, err)
		without, err := bad.Plan(queueName, Delays)
		require.NoError(t, err)
		require.NoError(t, topology.ValidatePlan(without), "the bug must get as far as the broker")
		waits := 0
		for i, q := range with.Queues {
			if q.Delay > 0 {
				waits++
				assert.Equal(t, "at-least-once", q.Arguments["x-dead-letter-strategy"], q.Name)
				assert.Equal(t, "at-most-once", without.Queues[i].Arguments["x-dead-letter-strategy"], q.Name)
				assert.NotContains(t, without.Queues[i].Arguments, "x-overflow", q.Name)
			}
			if q.Name == with.Dead.RoutingKey {
				assert.EqualValues(t, dlqLimit, q.Arguments["x-max-length"], "it can be filled")
			}
		}
		assert.GreaterOrEqual(t, waits, 3)
	}
	_, err := NewStrategy("nothing", "")
	assert.ErrorContains(t, err, "perqueue, shared, levels")
}
