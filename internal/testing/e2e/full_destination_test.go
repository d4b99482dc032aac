package e2e_test

import (
	"context"
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

// Given a queue that refuses, when 31 of its messages have waited, then the messages of another
// queue that wait beside them come back. With 32 none does, and Verify of the other queue says
// so. Once the full queue has room, all come.
func TestAFullQueueStopsAllThatWaitBesideIts(t *testing.T) {
	t.Parallel()
	node := commonNode(t)
	strategy := topology.Shared{Prefix: "full"}
	const window, beside = 32, 20
	o := rig.OpenOperator(t, node.URL(), operate.WithManagement(api))
	full, other := testbroker.Queue(t), testbroker.Queue(t)
	rig.DeclareQueue(t, node.URL(), full, amqp.Table{
		"x-queue-type": "quorum", "x-max-length": int64(1), "x-overflow": "reject-publish",
	})
	rig.DeclareQueue(t, node.URL(), other, amqp.Table{
		"x-queue-type": "quorum", "x-delivery-limit": int64(1 << 30),
	})
	plans := map[string]topology.Plan{}
	for _, queue := range []string{full, other} {
		plans[queue] = rig.PlanFor(t, queue, strategy, backoff.List{time.Second})
		require.NoError(t, o.Declare(t.Context(), plans[queue]))
	}
	ch := testbroker.Channel(t, node.URL())
	require.NoError(t, ch.Confirm(false))
	stored := func(exchange, key string) bool {
		confirm, err := ch.PublishWithDeferredConfirm(exchange, key, true, false, rig.Message("m"))
		require.NoError(t, err)
		return confirm.Wait()
	}
	wait := func(queue string, n int) {
		route, err := plans[queue].Route(topology.Retry{Delay: time.Second, Attempt: 1})
		require.NoError(t, err)
		for range n {
			require.True(t, stored(route.Exchange, route.RoutingKey))
		}
	}
	held := func() (n int, name string) {
		report, err := o.Inspect(context.WithoutCancel(t.Context()), plans[other])
		require.NoError(t, err)
		for _, q := range report.Queues {
			if q.Held.N > 0 {
				n, name = n+q.Held.N, q.Name
			}
		}
		return n, name
	}
	more := 0 // beyond its length a quorum queue takes one or two
	for stored("", full) {
		more++
	}

	wait(full, window-1)
	wait(other, beside)
	rig.AwaitDepth(t, node.URL(), other, beside)

	wait(full, 1)
	rig.WaitFor(t, "a full window", func() bool { n, _ := held(); return n == window })
	wait(other, beside)
	var name string
	rig.WaitFor(t, "all to be held", func() bool {
		n, of := held()
		name = of
		return n == window+beside
	})
	require.Equal(t, beside, testbroker.Depth(t, node.URL(), other), "none came back")
	require.Equal(t, []string{"warning exposed queue " + name}, rig.Findings(t, o, plans[other]))

	taken, err := ch.Consume(full, "", true, false, false, false, nil)
	require.NoError(t, err)
	for range more + window {
		rig.Await(t, taken)
	}
	rig.AwaitDepth(t, node.URL(), other, 2*beside)
	rig.WaitFor(t, "nothing to be held", func() bool { n, _ := held(); return n <= 0 })
	require.Empty(t, rig.Findings(t, o, plans[other]))
}
