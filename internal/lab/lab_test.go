package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

func TestMain(m *testing.M) {
	maybeServe()
	testbroker.Main(m, func() error { return goleak.Find() })
}

// short is a run of seconds on a single node, with these lanes of faults.
func short(t *testing.T, sc *scenario, change func(*settings), faults ...[]fault) *report {
	t.Helper()
	testbroker.RequireNode(t)
	s := sc.settings
	s.Seed, s.Length, s.Nodes, s.Instances, s.Memory, s.Out = 1, time.Second, 1, 2, true, t.Output()
	s.Schedule, s.Timer = faults, 2*time.Second
	change(&s)
	require.NoError(t, s.check())
	r, err := sc.do(t.Context(), s)
	require.NoError(t, err)
	t.Log("\n" + strings.Join(r.rows, "\n"))
	if r.kept != "" {
		require.NoError(t, os.RemoveAll(r.kept))
	}
	return r
}

// Given all strategies at once, confirms that come seconds after the confirm timeout on connections
// that live, an operator who applies a policy and an alarm, then nothing is lost, and no message is
// handled again.
func TestLateConfirmsAPolicyAndAnAlarmMakeNoCopies(t *testing.T) {
	t.Parallel()
	r := short(t, chaos, func(s *settings) { s.Queues, s.Length = 20, 13*time.Second },
		[]fault{{Kind: delayConfirms, Hold: confirmTimeout + 3*time.Second}},
		[]fault{{Kind: raiseAlarm, Hold: 2 * time.Second}},
		[]fault{{Kind: applyPolicy, Hold: time.Second, Aim: true}})
	require.NoError(t, r.err())
	assert.Contains(t, r.rows[1], "map[apply policy:1 delay confirms:1 raise alarm:1]")
	assert.Empty(t, reasons(r))
}

// braked is a small fleet whose messages soon come back.
func braked(instances int) func(*settings) {
	return func(s *settings) {
		s.Instances, s.Rate, s.Length = instances, 50, 25*time.Second
		s.Delays = slices.Repeat([]time.Duration{2 * time.Second}, 20)
	}
}

// Given a fleet whose downstream service is out, when the instance that probes is killed, frozen or
// cut off, then another one probes alone, and no message spends an attempt.
func TestTheProberIsLost(t *testing.T) {
	t.Parallel()
	r := short(t, outages, braked(4),
		[]fault{{Kind: putOut, Hold: 24 * time.Second}}, []fault{
			{At: 4 * time.Second, Kind: killInstance, Aim: true},
			{At: 8 * time.Second, Kind: freezeInstance, Aim: true, Hold: 5 * time.Second},
			{At: 15 * time.Second, Kind: silenceInstance, Aim: true, Hold: 5 * time.Second},
		})
	require.NoError(t, r.err())
	assert.Contains(t, r.rows[1], "kill instance:1 silence instance:1")
}

// Given such a fleet, when the broker restarts, and when it refuses to write for a while, then the
// fleet stays stopped, and everything is handled when the service is back.
func TestTheBrokerIsAwayDuringAStop(t *testing.T) {
	t.Parallel()
	r := short(t, outages, braked(3),
		[]fault{{Kind: putOut, Hold: 24 * time.Second}}, []fault{
			{At: 4 * time.Second, Kind: restartNode},
			{At: 12 * time.Second, Kind: raiseAlarm, Hold: 8 * time.Second},
		})
	require.NoError(t, r.err())
	assert.Contains(t, r.rows[1], "raise alarm:1 restart node:1")
}

// Given a node, an instance and connections that are killed, frozen and cut, then messages without
// order are found out of it, and nothing else is wrong.
func TestMessagesOutOfOrderAreFound(t *testing.T) {
	t.Parallel()
	r := short(t, ordered, func(s *settings) {
		s.Strategy, s.Keys, s.Rate, s.Length = "perqueue", 60, 150, 15*time.Second
		s.Fates.Dead = 0
	},
		[]fault{
			{At: time.Second, Kind: killInstance, Aim: true},
			{At: 2 * time.Second, Kind: freezeInstance, Aim: true, Hold: time.Second},
			{At: 4 * time.Second, Kind: cutInstance, Aim: true},
			{At: 6 * time.Second, Kind: killNode},
		})
	require.ErrorContains(t, r.err(), " inversions:")
	assert.NotContains(t, r.err().Error(), "lost")
	assert.NotContains(t, r.err().Error(), "not be done")
}

func TestEventsSurviveTheLog(t *testing.T) {
	t.Parallel()
	log, err := openLog(filepath.Join(t.TempDir(), "events"))
	require.NoError(t, err)
	defer log.close()
	at := time.Date(2026, 11, 26, 10, 0, 0, 123456789, time.UTC)
	events := []event{
		{Kind: sent, At: at, id: id{8, 9}},
		{
			Kind: begun, At: at, Who: "i12345/perattempt", Call: 1 << 50, id: id{1 << 20, 1 << 30},
			Attempt: 23, Epoch: 1 << 50, Copy: "0123456789abcdef-123456", Redelivered: true, Aside: true,
			Probe: true, Priority: 9,
		},
		{Kind: over, At: at, Fault: silenceInstance, Who: "i2", Began: at, Text: strings.Repeat("ä", 30)},
		{Kind: sampled, At: at, Figures: map[string]float64{"heap": 1.5}},
	}
	for _, e := range events {
		require.NoError(t, log.append(e))
	}
	got, err := log.next()
	require.NoError(t, err)
	require.Equal(t, events, got)
	info, err := log.file.Stat()
	require.NoError(t, err)
	require.EqualValues(t, len(events)*eventSize, info.Size(), "no line crosses a page")

	for _, half := range []string{"nonsense", strings.Repeat(" ", eventSize)} {
		got, err = log.next()
		require.NoError(t, err, "half a line is not read")
		require.Empty(t, got)
		_, err = log.file.WriteString(half)
		require.NoError(t, err)
	}
	_, err = log.next()
	require.ErrorContains(t, err, "nonsense")
}

// The fates of a seed are the same in every process, and each kind has its share.
func TestFates(t *testing.T) {
	t.Parallel()
	f, other := chaos.settings.Fates, chaos.settings.Fates
	other.Seed = 8
	failures, differ := map[int]int{}, 0
	for n := range 20_000 {
		m := id{1, n}
		failures[f.failures(m)]++
		if f.failures(m) != other.failures(m) {
			differ++
		}
		require.Equal(t, f.failures(m) < 0 || f.failures(m) > f.Retries, f.dies(m))
	}
	for _, n := range []int{-1, 0, 1, 2, 3, 4, 5} {
		assert.Greater(t, failures[n], 200, "messages with %d failures", n)
	}
	assert.Greater(t, differ, 5000, "another seed is another run")
}

// A seed is a schedule. Within five minutes each fault of its lanes strikes, the long ones too.
func TestSchedules(t *testing.T) {
	t.Parallel()
	for _, sc := range []*scenario{chaos, ordered, outages} {
		s := sc.settings
		require.NotEmpty(t, sc.schedule(s), sc.name)
		require.Equal(t, sc.schedule(s), sc.schedule(s), sc.name)
		first := sc.schedule(s)
		s.Seed++
		require.NotEqual(t, first, sc.schedule(s), sc.name)
	}
	for seed := range uint64(100) {
		s := chaos.settings
		s.Seed = seed
		kinds := map[faultKind]int{}
		for _, lane := range chaos.schedule(s) {
			before := time.Duration(0)
			for _, f := range lane {
				kinds[f.Kind]++
				require.Greater(t, f.At, before)
				require.Less(t, f.At, s.Length)
				before = f.At + f.Hold
				if own, ok := holds[f.Kind]; ok {
					require.True(t, own.least <= f.Hold && f.Hold <= own.most, f)
				}
			}
		}
		for _, kind := range []faultKind{minority, delayConfirms, pauseNode, applyPolicy} {
			require.Positive(t, kinds[kind], "%s, seed %d", kind, seed)
		}
	}
	s := chaos.settings
	s.Only = []faultKind{delayConfirms}
	require.Empty(t, chaos.schedule(s)[0])
	require.NotEmpty(t, chaos.schedule(s)[1])
	s = ordered.settings
	kinds := map[faultKind]int{}
	for _, f := range ordered.schedule(s)[0] {
		kinds[f.Kind]++
		require.True(t, f.Aim, "at the leader")
	}
	require.Len(t, kinds, 7)
}

// A passage that was changed in the library would leave its mistake out.
func TestThePassagesOfTheMistakesAreThere(t *testing.T) {
	t.Parallel()
	for _, b := range bugs {
		require.True(t, slices.ContainsFunc(scenarios, func(sc *scenario) bool {
			return sc.name == b.scenario
		}), b.name)
		for _, p := range b.plantings {
			source, err := os.ReadFile(filepath.Join("../..", filepath.FromSlash(p.file)))
			require.NoError(t, err)
			require.Equal(t, 1, strings.Count(string(source), p.old), "%s: %s", b.name, p.file)
		}
	}
}

func TestBadArgumentsStartNoRun(t *testing.T) {
	t.Parallel()
	for _, args := range []string{
		"", "-scenario nothing", "-scenario chaos -length 0s", "-scenario chaos -nodes 0",
		"-scenario chaos -timer -1s", "-scenario chaos -strategy nothing", "-scenario chaos -bug nothing",
		"-scenario chaos -seed x", "-scenario chaos -block", "-seed 1",
	} {
		assert.Equal(t, 2, start(strings.Fields(args), t.Output()), args)
	}
}

// While the service is overloaded the delays grow, and it gets far fewer calls. When it recovers
// they shrink, and the backlog drains no later. Delays that are always as long spare it no less,
// but a message that fails while all is well waits as long.
func TestAdaptiveDelaysSpareAnOverloadedService(t *testing.T) {
	t.Parallel()
	alone, adapted := simulated(t, standard, plain), simulated(t, standard, adapts)
	for metric, most := range map[string]float64{
		callsDown: 2. / 3, callsAll: 2. / 3, callsPeak: 3. / 4, drainedIn: 1, delayBefore: 0.8,
		delayAtLast: 0.8,
	} {
		assert.Less(t, adapted[metric], most*alone[metric], metric)
	}
	assert.Positive(t, adapted[drainedIn])
	assert.InDelta(t, 8, adapted[delayDuring], 0.01, "it grows to Most")
	longer := simulated(t, standard, eightAll)
	assert.Less(t, 8*adapted[delayBefore], longer[delayBefore])
	assert.Less(t, adapted[callsDown], longer[callsDown]*3/2)
	assert.Equal(t, adapted, simulated(t, standard, adapts), "a seed decides all")
}

// Each refused call costs the service a tenth of the work of another call. The retries of the
// policy alone keep it overloaded for good, although it could take twice the messages that arrive.
// If refusals cost nothing there is nothing to win but calls, and little to lose.
func TestAdaptiveDelaysEndAnOverloadThatRetriesKeepUp(t *testing.T) {
	t.Parallel()
	c := standard
	c.refusal, c.longest = 0.1, c.end
	require.Zero(t, simulated(t, c, plain)[drainedIn], "never")
	drained := simulated(t, c, adapts)[drainedIn]
	require.Positive(t, drained)
	require.Less(t, drained, 900.0)

	c = standard
	c.refusal = 0
	for _, low := range []float64{0, 30} { // a service that takes some calls keeps the delays short
		c.low = low
		alone, adapted := simulated(t, c, plain), simulated(t, c, adapts)
		require.Less(t, adapted[callsDown], alone[callsDown])
		require.Less(t, adapted[drainedIn], 2*alone[drainedIn])
		require.Greater(t, adapted[delayDuring], 1.0)
	}
}

func simulated(t *testing.T, c simulation, name string) map[string]float64 {
	t.Helper()
	of := c.figures(name)
	t.Logf("refusal %v, %s: %v", c.refusal, name, of)
	return of
}

// The table of the page has the figures of the simulation, which is the same on every machine.
func TestOverloadIsInThePageAsSimulated(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/notes/performance.md")
	require.NoError(t, err)
	for _, metric := range overloadMetrics {
		row := "| " + metric + " |"
		for _, name := range []string{adapts, eightAll, plain} {
			value := standard.figures(name)[metric]
			cell := fmt.Sprintf("%.0f", value)
			if value < 100 {
				cell = fmt.Sprintf("%.3g", value)
			}
			row += " " + cell + " |"
		}
		assert.Contains(t, string(page), row)
	}
}
