package overload_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/overload"
)

func simulate(t *testing.T, c overload.Config, name string) overload.Figures {
	t.Helper()
	policy, err := overload.Contender(name)
	require.NoError(t, err)
	f := overload.FiguresOf(c, overload.Run(c, policy))
	t.Logf("refusal %v, %s: %+v", c.Refusal, name, f)
	return f
}

// While the service is overloaded the delays grow, and it gets far fewer calls. When it recovers
// they shrink, and the backlog drains no later.
func TestAdaptiveDelaysSpareAnOverloadedService(t *testing.T) {
	t.Parallel()
	plain := simulate(t, overload.Standard, overload.Plain)
	adapts := simulate(t, overload.Standard, overload.Adapts)

	assert.Less(t, adapts.Down, plain.Down*2/3, "calls during the overload")
	assert.Less(t, adapts.All, plain.All*2/3, "calls in all")
	assert.Less(t, adapts.Peak, plain.Peak*3/4, "calls in the worst second after it")
	require.Positive(t, adapts.Drained, "it drains")
	require.Positive(t, plain.Drained)
	assert.Less(t, adapts.Drained, plain.Drained, "and sooner")

	assert.InDelta(t, 0.5, adapts.Before, 0.3, "the delay after a first failure is short")
	assert.InDelta(t, 8, adapts.During, 0.01, "it grows to Most")
	assert.InDelta(t, 0.5, adapts.After, 0.3, "and is short again")
	assert.InDelta(t, 1, plain.Before, 0.01, "the policy alone sees no service")
	assert.InDelta(t, 1, plain.After, 0.01)
}

// A policy that is always eight times as long spares the service no less, but a message that fails
// while all is well waits as long.
func TestAdaptiveDelaysAreShortWhileAllIsWell(t *testing.T) {
	t.Parallel()
	longer := simulate(t, overload.Standard, overload.EightAll)
	adapts := simulate(t, overload.Standard, overload.Adapts)
	require.InDelta(t, 8, longer.Before, 0.01)
	require.Less(t, 8*adapts.Before, longer.Before)
	require.Less(t, adapts.Down, longer.Down*3/2)
}

// Each refused call costs the service a tenth of the work of another call. The retries of the
// policy alone keep it overloaded for good, although it could take twice the messages that arrive.
func TestAdaptiveDelaysEndAnOverloadThatRetriesKeepUp(t *testing.T) {
	t.Parallel()
	config := overload.Standard
	config.Refusal, config.Longest = 0.1, config.End
	policy, err := overload.Contender(overload.Plain)
	require.NoError(t, err)
	alone := overload.Run(config, policy)
	after, end := alone[int(config.Until.Seconds())].Waiting, alone[len(alone)-1].Waiting
	t.Logf("alone: %d wait at the end of the overload, %d fourteen minutes later", after, end)
	require.Greater(t, end, 2*after, "it never recovers")

	adapts := simulate(t, config, overload.Adapts)
	require.Positive(t, adapts.Drained)
	require.Less(t, adapts.Drained, 15*time.Minute)
}

// If refusals cost nothing there is nothing to win but calls, and little to lose.
func TestAdaptiveDelaysCostLittleTime(t *testing.T) {
	t.Parallel()
	config := overload.Standard
	config.Refusal = 0
	plain, adapts := simulate(t, config, overload.Plain), simulate(t, config, overload.Adapts)
	require.Less(t, adapts.Down, plain.Down*2/3)
	require.Less(t, adapts.Drained, plain.Drained*3/2)
}

// A service that takes some calls keeps the delays between the bounds.
func TestAdaptiveDelaysFollowAHalfOverload(t *testing.T) {
	t.Parallel()
	config := overload.Standard
	config.Refusal, config.Low = 0, 30
	for seed := range uint64(2) {
		config.Seed = seed
		plain, adapts := simulate(t, config, overload.Plain), simulate(t, config, overload.Adapts)
		require.Less(t, adapts.Down, plain.Down)
		require.Greater(t, adapts.During, 1.0)
		require.Less(t, adapts.Drained, 2*plain.Drained)
	}
}

// The same seed gives the same simulation.
func TestSimulationsRepeat(t *testing.T) {
	t.Parallel()
	config := overload.Standard
	config.Until, config.End = 2*time.Minute, 3*time.Minute
	require.Equal(t, simulate(t, config, overload.Adapts), simulate(t, config, overload.Adapts))
	require.Equal(t, simulate(t, config, overload.EightAll), simulate(t, config, overload.EightAll))
}
