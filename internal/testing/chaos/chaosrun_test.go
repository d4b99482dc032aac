//go:build unix

package chaos_test

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/internal/testing/chaos"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

func TestMain(m *testing.M) {
	chaos.MaybeConsume()
	testbroker.Main(m, func() error { return goleak.Find() })
}

// smoke runs for seconds on a single node. Its seed kills the node, a consumer and all
// connections. Late confirms take longer: TestNoMessageIsHandledAgainForALateConfirm has them.
func smoke(t *testing.T, bug chaos.Bug) chaos.Run {
	t.Helper()
	testbroker.RequireNode(t)
	r, err := chaos.Do(t.Context(), chaos.Config{
		Seed: smokeSeed, Faults: smokeLength, Nodes: 1, Consumers: 2, Rate: 60,
		Strategy: "perqueue", Bug: bug, Timer: 2 * time.Second, Out: t.Output(),
		Only: slices.DeleteFunc(slices.Clone(chaos.Kinds),
			func(k chaos.Kind) bool { return k == chaos.DelayConfirms }),
	})
	require.NoError(t, err)
	t.Logf("RabbitMQ %s\n%s", r.Version, r.Report)
	return r
}

const (
	smokeSeed   = 251
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

// Given a consumer that acks too early, then the checker finds the lost messages. `make chaos-bugs`
// shows the other mistakes, which take minutes.
func TestAnEarlyAckIsFound(t *testing.T) {
	t.Parallel()
	r := smoke(t, chaos.AckEarly)
	require.ErrorContains(t, r.Report.Err(), "of the confirmed messages are lost")
	assert.DirExists(t, r.Kept)
	require.NoError(t, os.RemoveAll(r.Kept))
}

// calm runs on a single node with the faults of the schedule only. The confirm timeout is
// short, so that a confirm is late soon.
func calm(t *testing.T, bug chaos.Bug, schedule chaos.Schedule) chaos.Run {
	t.Helper()
	testbroker.RequireNode(t)
	r, err := chaos.Do(t.Context(), chaos.Config{
		Seed: 1, Faults: time.Second, Nodes: 1, Consumers: 1, Rate: 60, Strategy: "perqueue", Bug: bug,
		Schedule: &schedule, Timeout: 2 * time.Second, Out: t.Output(),
	})
	require.NoError(t, err)
	t.Logf("RabbitMQ %s\n%s", r.Version, r.Report)
	return r
}

// Given a consumer that publishes a second copy, both confirmed, then no fault explains it.
func TestASecondCopyIsFound(t *testing.T) {
	t.Parallel()
	r := calm(t, chaos.PublishTwice, chaos.Schedule{})
	require.ErrorContains(t, r.Report.Err(), "more often than its faults explain")
	assert.Empty(t, r.Report.Lost)
	assert.Positive(t, r.Report.Again[chaos.TwoCopies].Unexplained)
	assert.Zero(t, r.Report.Again[chaos.TwoCopies].Explained)
	require.NoError(t, os.RemoveAll(r.Kept))
}

// Given confirms that come seconds after the confirm timeout on connections that live, and before
// three of them, then no message has a second copy.
func TestNoMessageIsHandledAgainForALateConfirm(t *testing.T) {
	t.Parallel()
	r := calm(t, "", chaos.Schedule{Clients: []chaos.Fault{{
		At: 0, Kind: chaos.DelayConfirms, Hold: 4 * time.Second,
	}}})
	require.NoError(t, r.Report.Err())
	assert.Positive(t, r.Report.Faults[chaos.DelayConfirms])
	assert.Zero(t, r.Report.Duplicates())
}

// Given all strategies at once, an operator who applies a policy and a disk that is full, on a node
// with other services, then nothing is lost and nothing is handled again.
func TestADiskAlarmAndAPolicyMakeNoCopies(t *testing.T) {
	t.Parallel()
	testbroker.RequireNode(t)
	r, err := chaos.Do(t.Context(), chaos.Config{
		Seed: 1, Faults: time.Second, Nodes: 1, Consumers: 1, Rate: 60, Queues: 20,
		Strategy: chaos.AllStrategies, Out: t.Output(), Schedule: &chaos.Schedule{
			Broker:  []chaos.Fault{{Kind: chaos.DiskAlarm, Hold: 2 * time.Second}},
			Clients: []chaos.Fault{{Kind: chaos.ApplyPolicy, Hold: 2 * time.Second, Aim: true}},
		},
	})
	require.NoError(t, err)
	t.Logf("RabbitMQ %s\n%s", r.Version, r.Report)
	require.NoError(t, r.Report.Err())
	assert.Equal(t, 1, r.Report.Faults[chaos.DiskAlarm])
	assert.Equal(t, 1, r.Report.Faults[chaos.ApplyPolicy])
	assert.Zero(t, r.Report.Duplicates())
}
