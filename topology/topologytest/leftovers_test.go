package topologytest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/experiment"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// observed runs the suite, and returns the trials by their names.
func observed(t *testing.T, c Config) map[string]*trial {
	t.Helper()
	found := map[string]*trial{}
	run(t.Helper, c, func(group string, checked []*trial) bool {
		for _, tr := range checked {
			found[group+"/"+tr.Name] = tr
			require.False(t, tr.Failed, "%s: %v", tr.Name, tr.Lines)
		}
		return true
	})
	return found
}

// Given a strategy whose queues share parts, when the suite ends, then the parts of its queues are
// gone. The shared parts are named and stay, unless DeleteShared is set.
func TestSharedPartsStay(t *testing.T) {
	t.Parallel()
	for _, deleteShared := range []bool{false, true} {
		t.Run(fmt.Sprint(deleteShared), func(t *testing.T) {
			t.Parallel()
			url, shared := testbroker.URL(t), rig.Shared(t, topology.Quorum)
			s := newSuite(Config{
				Strategy: shared, URL: url, DeleteShared: deleteShared, Patience: rig.Patience,
			})
			tr := experiment.New(context.Background(), "Start", s.Patience)
			tr.Run(func() { s.start(tr) })
			require.False(t, tr.Failed, tr.Lines)
			plan, stay := s.a.plan, 0
			rig.RemovePlan(t, url, shared, plan.Queue, s.delays())
			for _, q := range append(plan.Queues, topology.Queue{Name: plan.Queue}) {
				require.Equal(t, 0, testbroker.Depth(t, url, q.Name), q.Name)
			}
			tr.Clean()
			s.parts.tellKept(tr)
			require.False(t, tr.Failed, tr.Lines)
			for _, q := range append(plan.Queues, topology.Queue{Name: plan.Queue}) {
				left := testbroker.Depth(t, url, q.Name)
				if strings.HasPrefix(q.Name, shared.Prefix) && !deleteShared {
					require.Equal(t, 0, left, q.Name)
					require.Contains(t, tr.Lines[0], q.Name)
					stay++
				} else {
					require.Equal(t, -1, left, q.Name)
				}
			}
			for _, e := range plan.Exchanges {
				err := testbroker.Channel(t, url).ExchangeDeclarePassive(e.Name, e.Kind, true, false, false,
					false, nil)
				require.Equal(t, deleteShared, err != nil, e.Name)
			}
			require.Equal(t, map[bool]int{false: 4, true: 0}[deleteShared], stay)
		})
	}
}

// Given a dead-letter queue with a message of another program, when the suite runs, then it
// refuses, and the message is still there.
func TestLettersOfOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	url, graves := testbroker.URL(t), testbroker.Queue(t)
	rig.DeclareQueue(t, url, graves, amqp.Table{"x-queue-type": "quorum"})
	rig.Publish(t, url, "", graves, rig.Message("another program's"))
	strategy := topology.PerQueue{
		Dead: topology.DeadLetters{Name: func(string) string { return graves }},
	}
	found := failures(t, Config{Strategy: strategy, URL: url}, func() {})
	require.Contains(t, found["Start"], "this test would take them away")
	rig.AwaitDepth(t, url, graves, 1)
}

// Given dead letters in one queue for all, or behind an exchange of the user, then the suite
// passes, and takes its own letters alone.
func TestOtherTargetsOfDeadLetters(t *testing.T) {
	t.Parallel()
	url, all := testbroker.URL(t), testbroker.Queue(t)
	exchange := rig.TopicExchange(t)
	rig.Each(t, map[string]topology.DeadLetters{
		"one queue": {Name: func(string) string { return all }},
		"exchange": {Target: func(queue string) topology.Route {
			return topology.Route{Exchange: exchange, RoutingKey: "dead." + queue}
		}},
	}, func(t *testing.T, dead topology.DeadLetters) {
		found := failures(t, Config{
			Strategy: topology.PerQueue{Dead: dead}, URL: url, Patience: rig.Patience,
		}, func() {}, named(t, "AttemptsAreCountedUntilTheDeadLetter")...)
		require.Empty(t, found)
	})
}

// The names of these wait queues do not tell delays apart, as some systems have it.
func TestFixedDelays(t *testing.T) {
	t.Parallel()
	strategy := topology.PerAttempt{WaitName: func(queue string, attempt int, _ time.Duration) string {
		return fmt.Sprintf("%s__retry.%d", queue, attempt)
	}}
	require.Contains(t, planFailures(t, Config{Strategy: strategy}), "AllowsAnotherPolicy")
	fixed := Config{Strategy: strategy, FixedDelays: true}
	require.Empty(t, planFailures(t, fixed))
	fixed.URL = testbroker.URL(t)
	require.Empty(t, failures(t, fixed, func() {},
		named(t, "EachDelayIsKept", "AnotherPolicyForAQueueIsKept")...))
}

func TestWithoutABrokerThePlansAreTested(t *testing.T) {
	t.Parallel()
	found := observed(t, Config{Strategy: topology.PerQueue{}})
	require.Len(t, found, len(planChecks)+1)
	require.True(t, found["Broker/Skipped"].Skipped)
	require.Contains(t, found["Broker/Skipped"].Lines[0], "Config.URL is empty")
}

func TestConfigNamesEveryProblem(t *testing.T) {
	t.Parallel()
	rig.RequireTexts(t, Config{ManagementURL: "http://localhost:15672", Patience: -1}.check(),
		"Strategy is nil", "ManagementURL without a URL", "Patience is negative")
}

// verdict records how a test ends.
type verdict struct {
	testing.TB
	lines []any
	end   string
}

func (v *verdict) Helper()         {}
func (v *verdict) Log(args ...any) { v.lines = append(v.lines, args...) }
func (v *verdict) FailNow()        { v.end = "failed" }
func (v *verdict) SkipNow()        { v.end = "skipped" }

func TestTrialsAreReported(t *testing.T) {
	t.Parallel()
	for want, run := range map[string]func(*trial){
		"":        func(*trial) {},
		"failed":  func(tr *trial) { tr.Fatalf("it is %s", "lost") },
		"skipped": func(tr *trial) { tr.Skipf("it is %s", "lost") },
	} {
		tr, v := experiment.New(context.Background(), "one", time.Second), &verdict{TB: t}
		tr.Run(func() { run(tr); tr.Logf("the end") })
		report(v, tr)
		require.Equal(t, want, v.end)
		require.Equal(t, map[bool]any{true: "the end", false: "it is lost"}[want == ""], v.lines[0])
		require.Len(t, v.lines, 1)
	}
	tr := experiment.New(context.Background(), "cleanup", time.Second)
	tr.Cleanup(func() error { return fmt.Errorf("still there") })
	tr.Clean()
	require.True(t, tr.Failed)
}
