package operate_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

func TestInspectCountsEveryQueue(t *testing.T) {
	t.Parallel()
	for name, strategy := range rig.Strategies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, queue := testbroker.URL(t), testbroker.Queue(t)
			policy, strategy := backoff.List{time.Minute, time.Hour}, strategy(t)
			rig.RemovePlan(t, url, strategy, queue, policy)
			o, plan := opened(t, url, queue, strategy, policy)

			report, err := o.Inspect(t.Context(), plan)
			require.NoError(t, err)
			for _, q := range report.Queues {
				require.True(t, q.Missing, q.Name)
				require.Equal(t, operate.Count{N: -1}, q.Ready)
			}
			require.Contains(t, report.String(), "missing")

			rig.Provision(t, url, strategy, queue, policy)
			rig.Fill(t, url, queue, 3)
			longest := plan.Queues[len(plan.WaitSteps)-1]
			require.GreaterOrEqual(t, longest.Delay, 30*time.Minute)
			rig.Fill(t, url, longest.Name, 5)
			rig.Fill(t, url, plan.Dead.RoutingKey, 2)
			deliveries, err := testbroker.Channel(t, url).Consume(queue, "", false, false, false, false, nil)
			require.NoError(t, err)
			<-deliveries

			var roles []operate.Role
			rig.WaitFor(t, "the counts", func() bool { // a queue counts a little late
				report, err = o.Inspect(t.Context(), plan)
				require.NoError(t, err)
				roles = nil
				ready := map[string]int{}
				for _, q := range report.Queues {
					roles = append(roles, q.Role)
					ready[q.Name] = q.Ready.N
					require.False(t, q.Missing, q.Name)
					require.Equal(t, operate.SourceAMQP, q.Ready.Source)
					require.False(t, q.Total.Known(), "it is not known")
				}
				return ready[queue] == 0 && ready[plan.Queues[0].Name] == 0 && ready[longest.Name] == 5 &&
					ready[plan.Dead.RoutingKey] == 2
			})
			require.Equal(t, operate.Count{N: 1, Source: operate.SourceAMQP}, report.Queues[0].Consumers)
			want := []operate.Role{operate.RoleMain}
			for range plan.WaitSteps {
				want = append(want, operate.RoleWait)
			}
			if rig.Sharing[name] {
				want = append(want, operate.RoleStranded)
			}
			require.Equal(t, append(want, operate.RoleDead), roles)
			require.Equal(t, longest.Delay, report.Queues[len(plan.WaitSteps)].Delay)
			require.NoError(t, report.ManagementErr)
			require.Contains(t, report.String(), "5 (amqp)")
		})
	}
}

// The main queue is deleted while messages wait in quorum queues: the broker
// holds them, Verify names the missing target, the counts say who has seen them,
// and when the queue is back they come. In classic wait queues they are lost. With
// MILLPOND_LONG the broker keeps its own 180 s before it tries again, and the test
// lasts four minutes.
func TestQueueVanishesWhileItsMessagesWait(t *testing.T) {
	t.Parallel()
	const waiting = 1000
	rabbit, patience := `{dead_letter_worker_publisher_confirm_timeout, 5000}`, rig.Patience
	if os.Getenv("MILLPOND_LONG") != "" {
		rabbit, patience = "", 200*time.Second
	}
	node, api := testbroker.Managed(t, rabbit)
	// the queue must be gone before the wait ends
	url, policy := node.URL(), backoff.List{15 * time.Second}
	for _, kind := range []topology.QueueType{topology.Quorum, topology.Classic} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			queue, strategy := "vanishing-"+string(kind), topology.PerQueue{Type: kind}
			o, plan := opened(t, url, queue, strategy, policy, operate.WithManagement(api))
			rig.Provision(t, url, strategy, queue, policy)
			waits := plan.Queues[len(plan.WaitSteps)-1].Name // the longest
			rig.Fill(t, url, waits, waiting)
			rig.DeleteQueue(t, url, queue)
			testbroker.WaitFor(t, "the wait to end", patience,
				func() bool { return testbroker.Depth(t, url, waits) == 0 })

			if kind == topology.Classic {
				rig.Provision(t, url, strategy, queue, policy)
				<-time.After(8 * time.Second) // longer than the broker would take to try again
				back := testbroker.Depth(t, url, queue)
				t.Logf("classic: %d of %d messages are lost", waiting-back, waiting)
				require.Zero(t, back, "classic wait queues hold nothing")
				return
			}

			findings := rig.Verify(t, o, plan)
			require.Len(t, findings, 1, findings)
			require.Equal(t, operate.Missing, findings[0].Problem)
			require.Equal(t, queue, findings[0].Name)
			require.Contains(t, findings[0].Text, "the broker holds messages whose wait ends")
			var report operate.Report
			testbroker.WaitFor(t, "the management API to count", patience, func() bool {
				var err error
				report, err = o.Inspect(t.Context(), plan)
				require.NoError(t, err)
				require.NoError(t, report.ManagementErr)
				return report.Queues[len(plan.WaitSteps)].Held.N == waiting
			})
			t.Logf("%s\n%s", findings[0], report)
			require.True(t, report.Queues[0].Missing)
			require.Equal(t, operate.Count{N: 0, Source: operate.SourceAMQP},
				report.Queues[len(plan.WaitSteps)].Ready)
			require.Equal(t, operate.Count{N: waiting, Source: operate.SourceManagement},
				report.Queues[len(plan.WaitSteps)].Total)
			require.Contains(t, report.String(), fmt.Sprintf("%d (management)", waiting))

			rig.Provision(t, url, strategy, queue, policy)
			began := time.Now()
			testbroker.WaitFor(t, "all to be back", patience,
				func() bool { return testbroker.Depth(t, url, queue) == waiting })
			t.Logf("quorum: %d of %d messages are back %v after their queue", waiting, waiting,
				time.Since(began).Round(time.Second))
			for _, f := range rig.Verify(t, o, plan) {
				require.NotEqual(t, operate.Critical, f.Severity, f)
			}
		})
	}
}

// A queue's name in a report moved the cursor of the terminal.
func TestAReportPrintedNamesRaw(t *testing.T) {
	t.Parallel()
	const hostile = "o\x1b[2J\u202e\nrders"
	for _, text := range []string{
		operate.Report{
			Queues:        []operate.Queue{{Name: hostile}},
			ManagementErr: errors.New(hostile),
		}.String(),
		operate.Finding{Kind: "queue", Name: hostile, Text: hostile}.String(),
	} {
		require.Equal(t, 2, strings.Count(text, `o\x1b[2J\u202e\nrders`), text)
		require.NotContains(t, text, "\x1b")
	}
}

// A management API that is away, refuses or hangs costs counts and no more, and
// its password is in no text.
func TestManagementAPIThatIsAway(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	policy := backoff.List{time.Second}
	o, plan := opened(t, url, queue, topology.PerQueue{}, policy,
		operate.WithManagement("http://guest:hush@127.0.0.1:1/"))
	rig.Provision(t, url, topology.PerQueue{}, queue, policy)
	report, err := o.Inspect(t.Context(), plan)
	require.NoError(t, err)
	require.ErrorContains(t, report.ManagementErr, "127.0.0.1:1")
	require.Equal(t, operate.SourceAMQP, report.Queues[0].Ready.Source)
	findings := rig.Verify(t, o, plan)
	require.Len(t, findings, 1)
	require.Equal(t, operate.Unchecked, findings[0].Problem)
	require.NotContains(t, report.String()+findings[0].String(), "hush")

	for _, bad := range []string{
		"", "amqp://guest:hush@host", "http://host", "http://guest:hush@", "http://guest:hu/sh@host",
		"http://guest:hu?sh@host", "http://guest:hu%zzhush@host",
	} {
		_, err := operate.Open(t.Context(), url, operate.WithManagement(bad))
		require.ErrorContains(t, err, "WithManagement", bad)
		require.NotContains(t, err.Error(), "hush")
		require.NotContains(t, err.Error(), "hu/sh")
	}
}

func TestQuestionsAboutMissingQueues(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	o, plan := opened(t, url, queue, topology.PerQueue{}, backoff.List{time.Second})
	_, err := o.Inspect(t.Context(), topology.Plan{})
	require.ErrorContains(t, err, "use topology.PlanFor")
	_, err = o.Verify(t.Context(), topology.Plan{})
	require.ErrorContains(t, err, "use topology.PlanFor")
	_, err = o.Peek(t.Context(), queue, 0)
	require.ErrorContains(t, err, "at least 1")
	_, err = o.Peek(t.Context(), queue, 1)
	var refused *amqp.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, amqp.NotFound, refused.Code)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = o.Inspect(ctx, plan)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, o.Close())
	_, err = o.Inspect(t.Context(), plan)
	require.ErrorIs(t, err, topology.ErrClosed)
	_, err = o.Purge(t.Context(), queue, queue)
	require.ErrorIs(t, err, topology.ErrClosed)
}
