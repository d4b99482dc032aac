package topology_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// declarePlan declares a plan of another queue, and that queue.
func declarePlan(t testing.TB, url string, strategy topology.Strategy, queue string) topology.Plan {
	t.Helper()
	client, plan := rig.Operator(t, url, queue, strategy, rig.Unlisted)
	rig.Provision(t, url, client, queue, rig.Unlisted)
	return plan
}

// send publishes n messages of a plan to wait, mandatory, one after the other.
func send(t testing.TB, url string, plan topology.Plan, delay time.Duration, n int) {
	t.Helper()
	route, err := plan.Route(topology.Retry{Delay: delay})
	require.NoError(t, err)
	ch := testbroker.Channel(t, url)
	returns := ch.NotifyReturn(make(chan amqp.Return, n))
	require.NoError(t, ch.Confirm(false))
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	for i := range n {
		confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, route.Exchange, route.RoutingKey, true, false,
			amqp.Publishing{DeliveryMode: amqp.Persistent, AppId: plan.Queue, Body: []byte(fmt.Sprint(i))})
		require.NoError(t, err)
		ok, err := confirm.WaitContext(ctx)
		require.NoError(t, err)
		require.True(t, ok)
	}
	require.Empty(t, returns)
}

// Queues whose names are wildcards, or end like another, or are very long: each
// gets its own messages and no other, on one set of queues; one that vanishes
// strands its own and nobody else's.
func requireOwnMessages(t *testing.T, node *testbroker.Node) {
	const each = 20
	url, strategy := node.URL(), topology.Levels{}
	names := []string{"orders", "eu.orders", "orders.#", "*", "#", "1.orders", "%2A", strings.Repeat("x", 200), strings.Repeat("x", 199) + "y", "bestellungen-straße-注文"}
	plans := map[string]topology.Plan{}
	for _, name := range names {
		plans[name] = declarePlan(t, url, strategy, name)
	}
	require.Equal(t, 32+1, countQueues(t, node, "millpond."), "a destination needs no wait queue")
	for _, name := range names {
		send(t, url, plans[name], 700*time.Millisecond, each)
	}
	for _, name := range names {
		requireOwn(t, url, name, each)
	}

	vanished := "eu.orders"
	_, err := testbroker.Channel(t, url).QueueDelete(vanished, false, false, false)
	require.NoError(t, err)
	for _, name := range names {
		send(t, url, plans[name], 300*time.Millisecond, 2*each) // more than stop an at-least-once queue (F5)
	}
	for _, name := range names {
		if name != vanished {
			requireOwn(t, url, name, 2*each)
		}
	}
	rig.WaitFor(t, "its messages to strand", func() bool { return testbroker.Depth(t, url, "millpond.stranded") == 2*each })
	stranded := rig.Take(t, url, "millpond.stranded")
	require.Equal(t, vanished, stranded.AppId)
	require.Equal(t, "1.1.eu%2Eorders", stranded.RoutingKey)
}

// requireOwn takes n messages of a queue, and asserts that they are its own and
// all there are.
func requireOwn(t testing.TB, url, queue string, n int) {
	t.Helper()
	rig.WaitFor(t, fmt.Sprintf("%d messages in %q", n, queue), func() bool { return testbroker.Depth(t, url, queue) >= n })
	ch := testbroker.Channel(t, url)
	for range n {
		d, ok, err := ch.Get(queue, true)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, queue, d.AppId, "a message of another queue")
	}
	require.Zero(t, testbroker.Depth(t, url, queue))
}

// A level is deleted while messages wait above it: those that would come by it
// are stranded, visibly, and hold up none that go another way. Whoever enters at
// it is told, by the return.
func TestVanishedLevelBlocksNobody(t *testing.T) {
	t.Parallel()
	const each = 50 // more than stop an at-least-once queue (F5)
	for _, kind := range []topology.QueueType{topology.Quorum, topology.Classic} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			url, queue, strategy := testbroker.URL(t), testbroker.Queue(t), rig.Levels(t, kind)
			rig.RemovePlan(t, url, strategy, queue, nil)
			plan := declarePlan(t, url, strategy, queue)
			_, err := testbroker.Channel(t, url).QueueDelete(plan.Queues[3].Name, false, false, false)
			require.NoError(t, err)
			send(t, url, plan, 2400*time.Millisecond, each) // 1600 and the one of 800 ms
			send(t, url, plan, 2*time.Second, each)         // 1600 and 400 ms
			rig.WaitFor(t, "those that go another way", func() bool { return testbroker.Depth(t, url, queue) == each })
			rig.WaitFor(t, "the others to strand", func() bool { return testbroker.Depth(t, url, strategy.Prefix+".stranded") == each })

			ch := testbroker.Channel(t, url)
			returns := ch.NotifyReturn(make(chan amqp.Return, 1))
			require.NoError(t, ch.Confirm(false))
			route := plan.WaitSteps[3]
			confirm, err := ch.PublishWithDeferredConfirm(route.Exchange, route.RoutingKey, true, false, amqp.Publishing{})
			require.NoError(t, err)
			confirm.Wait()
			require.Equal(t, uint16(amqp.NoRoute), (<-returns).ReplyCode)
		})
	}
}
