package delayedx_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// Given messages that wait for a quorum and for a classic queue, when their waits end while the
// node is stopped, then all come to the classic queue and the others are lost (F49). Those whose
// wait ends later come to both.
func TestADelayedMessageIsLostBeforeAQuorumQueue(t *testing.T) {
	t.Parallel()
	const messages = 20
	node := testbroker.Private(t, testbroker.DelayedPlugin(t))
	ch := testbroker.Channel(t, node.URL())
	require.NoError(t, ch.Confirm(false))
	run := func(_ context.Context, f func(*amqp.Channel) error) error { return f(ch) }
	routes := map[string]topology.Plan{}
	for _, kind := range []string{"classic", "quorum"} {
		_, err := ch.QueueDeclare(kind, true, false, false, false, amqp.Table{"x-queue-type": kind})
		require.NoError(t, err)
		routes[kind] = rig.PlanOf(t, topology.DelayedExchange{}, kind)
		require.NoError(t, routes[kind].Declare(t.Context(), run, watermill.NopLogger{}))
	}
	send := func(kind string, delay time.Duration) {
		route, err := routes[kind].Route(topology.Retry{Delay: delay})
		require.NoError(t, err)
		for range messages {
			confirm, err := ch.PublishWithDeferredConfirm(route.Exchange, route.RoutingKey, false, false,
				amqp.Publishing{DeliveryMode: amqp.Persistent, Headers: route.Headers})
			require.NoError(t, err)
			require.True(t, confirm.Wait())
		}
	}
	due := time.Now().Add(2 * time.Second)
	for kind := range routes {
		send(kind, time.Until(due))
		send(kind, time.Minute) // the node is back by then, also on a slow machine
	}
	node.Stop(t)
	time.Sleep(time.Until(due) + time.Second)
	node.Start(t)
	ready := func(kind string) func() bool {
		return func() bool { return testbroker.Depth(t, node.URL(), kind) == 2*messages }
	}
	rig.WaitFor(t, "the classic queue to have all", ready("classic"))
	rig.WaitFor(t, "the quorum queue to have the later messages", func() bool {
		return testbroker.Depth(t, node.URL(), "quorum") >= messages
	})
	got := testbroker.Depth(t, node.URL(), "quorum")
	t.Logf("RabbitMQ %s: the quorum queue has %d of %d", node.Version(), got, 2*messages)
	require.Equal(t, messages, got, "F49 says that these are lost")
	require.Equal(t, 0, testbroker.Depth(t, node.URL(), "millpond.stranded"))
}
