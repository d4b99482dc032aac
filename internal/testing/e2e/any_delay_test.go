package e2e_test

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// When a level is deleted while messages wait above it, then the messages that need it are
// stranded, visibly, and hold up none that go another way. A publish that enters at the level is
// returned.
func TestVanishedLevelBlocksNoOtherDelay(t *testing.T) {
	t.Parallel()
	const each = 50 // more than stop an at-least-once queue (F5)
	url, queue, strategy := testbroker.URL(t), testbroker.Queue(t), rig.Levels(t, topology.Quorum)
	rig.RemovePlan(t, url, strategy, queue, nil)
	plan := rig.Provision(t, url, strategy, queue, rig.Unlisted)
	ch := testbroker.Channel(t, url)
	require.NoError(t, ch.Confirm(false))
	returns := ch.NotifyReturn(make(chan amqp.Return, 2*each+1))
	send := func(delay time.Duration) {
		route, err := plan.Route(topology.Retry{Delay: delay})
		require.NoError(t, err)
		confirm, err := ch.PublishWithDeferredConfirm(
			route.Exchange, route.RoutingKey, true, false, rig.Message("waits"))
		require.NoError(t, err)
		require.True(t, confirm.Wait())
	}
	rig.DeleteQueue(t, url, plan.Queues[3].Name)
	for range each {
		send(2400 * time.Millisecond) // 1600 ms and the deleted 800 ms
		send(2 * time.Second)         // 1600 ms and 400 ms
	}
	for _, name := range []string{queue, strategy.Prefix + ".stranded"} {
		rig.AwaitDepth(t, url, name, each)
	}
	require.Empty(t, returns)
	send(800 * time.Millisecond)
	require.Equal(t, uint16(amqp.NoRoute), (<-returns).ReplyCode)
}
