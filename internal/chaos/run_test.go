//go:build unix

package chaos_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/internal/chaos"
	"github.com/millpond-go/millpond/internal/testbench"
)

func TestMain(m *testing.M) {
	chaos.MaybeConsume()
	testbench.Main(m, func() error { return goleak.Find() })
}

// smoke is a run of seconds on a single node, whose seed kills the node, a consumer and all connections.
func smoke(t *testing.T, bug chaos.Bug) chaos.Run {
	t.Helper()
	testbench.RequireNode(t)
	r, err := chaos.Do(t.Context(), chaos.Config{
		Seed: smokeSeed, Faults: smokeLength, Nodes: 1, Consumers: 2, Rate: 60,
		Strategy: "perqueue", Bug: bug, Timer: 2 * time.Second, Out: t.Output(),
	})
	require.NoError(t, err)
	t.Logf("RabbitMQ %s\n%s", r.Version, r.Report)
	return r
}

const (
	smokeSeed   = 31
	smokeLength = 9 * time.Second
)

func TestNothingIsLostInAFewSecondsOfChaos(t *testing.T) {
	t.Parallel()
	r := smoke(t, "")
	require.NoError(t, r.Report.Err())
	for _, kind := range []chaos.Kind{chaos.KillNode, chaos.KillConsumer, chaos.CutClients} {
		assert.Positive(t, r.Report.Faults[kind], kind)
	}
	assert.Positive(t, r.Report.Handled)
	assert.Empty(t, r.Kept)
}

// The checker finds a consumer that acks too early. `make chaos-bugs` shows the other mistakes, which take minutes.
func TestAnEarlyAckIsFound(t *testing.T) {
	t.Parallel()
	r := smoke(t, chaos.AckEarly)
	require.ErrorContains(t, r.Report.Err(), "of the confirmed messages are lost")
	assert.DirExists(t, r.Kept)
	require.NoError(t, os.RemoveAll(r.Kept))
}
