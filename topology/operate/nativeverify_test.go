package operate_test

import (
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

// Given a queue without arguments, when a policy lets it hold rejected messages, then a service
// with the management API consumes it, and its messages wait as the policy says. When the policy is
// gone, or is another one, then Verify finds that critical and the next Subscribe is refused.
func TestNativeUnderAPolicy(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "")
	strategy, _ := rig.Native(t, node.URL(), 300*time.Millisecond, 300*time.Millisecond)
	const queue = "orders"
	set := func(least int) {
		testbroker.SetPolicy(t, api, "policies", "/", "retry", "^orders$", map[string]any{
			"delayed-retry-type": "failed", "delayed-retry-min": least, "delayed-retry-max": 300,
			"delivery-limit": 1 << 30,
		})
	}
	policy := backoff.Constant{Interval: 300 * time.Millisecond, Retries: 2}
	set(300)
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		URL: node.URL(), Queue: queue, Keep: true, Strategy: strategy, Policy: policy,
		Configure:     rig.QuorumQueue,
		ClientOptions: []topology.Option{topology.WithManagement(api)},
		Handle:        calls.Fail,
	})
	r.Send("fails")
	rig.RequireDead(t, r.DeadLetter(), "exhausted", "3")
	calls.RequireGaps(t, 300*time.Millisecond, 300*time.Millisecond)
	r.Stop()

	plan, err := topology.PlanFor(strategy, queue, policy)
	require.NoError(t, err)
	o := rig.OpenOperator(t, node.URL(), operate.WithManagement(api))
	verify := func() (critical []string) {
		findings, err := o.Verify(t.Context(), plan)
		require.NoError(t, err)
		for _, f := range findings {
			if f.Severity == operate.Critical {
				critical = append(critical, f.String())
			}
			require.NotContains(t, f.String(), "retries wait in their wait queues all the same")
		}
		return critical
	}
	require.Empty(t, verify())
	set(100)
	testbroker.WaitFor(t, "the shorter delay to be found", rig.Patience, func() bool {
		return strings.Contains(strings.Join(verify(), "\n"), "it holds them for 100ms to 300ms")
	})
	testbroker.Remove(t, api, "policies", "/", "retry")
	testbroker.WaitFor(t, "the missing policy to be found", rig.Patience, func() bool {
		return strings.Contains(strings.Join(verify(), "\n"), "it holds none")
	})
	cfg := rig.QueueConfig(node.URL())
	cfg.Queue.Arguments = amqp.Table{"x-queue-type": "quorum"}
	client := rig.OpenClient(t, node.URL(), strategy, topology.WithManagement(api))
	require.ErrorContains(t, rig.SubscribeError(t, client, cfg, queue, policy), "it holds none")
}
