package chaos

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/topology"
)

func TestTailReadsWhatIsComplete(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "log")
	reader := tail{consumer: func(int) string { return "c1" }, name: name}
	got, err := reader.read()
	require.NoError(t, err)
	assert.Empty(t, got, "a consumer that has not begun")

	first := Attempt{
		Consumer: "c1", Began: time.Unix(0, 3), At: time.Unix(0, 17),
		N: 3, Attempt: 2, Priority: 9, Outcome: Panicked, Redelivered: true, Aside: true, Nonce: "ab-1",
	}
	second := Attempt{
		Consumer: "c1", Began: time.Unix(4, 0), At: time.Unix(5, 0), N: 4, Attempt: 1, Outcome: Handled,
	}
	require.NoError(t, os.WriteFile(name, []byte(first.line()+second.line()[:9]), 0o600))
	got, err = reader.read()
	require.NoError(t, err)
	assert.Equal(t, []Attempt{first}, got)

	require.NoError(t, os.WriteFile(name, []byte(first.line()+second.line()), 0o600))
	got, err = reader.read()
	require.NoError(t, err)
	assert.Equal(t, []Attempt{second}, got)

	require.NoError(t, os.WriteFile(name, []byte(first.line()+second.line()+"what is this\n"), 0o600))
	_, err = reader.read()
	assert.ErrorContains(t, err, "what is this")

	_, err = parseLine("1 2 three 4 0 ok true true -")
	assert.ErrorContains(t, err, "three")
}

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
