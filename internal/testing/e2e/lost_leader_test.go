package e2e_test

import (
	"fmt"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// Given a cluster of RabbitMQ 4.3 and messages that wait, in wait queues or in their own queue,
// when the node is killed that leads all their queues and has all connections, then every message
// is handled after each of its failures, and none is left. It costs Native no second copy, because
// there is no copy.
func TestNativeLosesNothingWithItsLeader(t *testing.T) {
	t.Parallel()
	strategy, args := rig.Native(t, testbroker.URL(t), 2*time.Second, 2*time.Second)
	c := testbroker.PrivateCluster(t, 3)
	const messages, failures = 300, 2
	start := func(
		queue string, strategy topology.Strategy, args amqp.Table,
	) (*rig.Service, *rig.Calls) {
		calls := rig.NewCalls()
		return rig.Start(t, rig.Config{
			URL: c.Node(0).URL(), Queue: queue, Keep: true, Strategy: strategy,
			Policy:        backoff.Constant{Interval: 2 * time.Second, Retries: 10},
			ClientOptions: []topology.Option{topology.WithBrokers(c.URLs()...)},
			Configure: func(cfg *wamqp.Config) {
				rig.QuickReconnect(cfg)
				// Otherwise the messages in the hands of the lost node's consumers come after a minute.
				args["x-consumer-disconnected-timeout"] = int64(1000)
				cfg.Queue.Arguments = args
			},
			SubscriberOptions: rig.InFlight(8),
			Handle: func(msg *message.Message) error {
				body := string(msg.Payload)
				defer calls.Enter(body)()
				if calls.Of(body) <= failures {
					return rig.ErrFailed
				}
				return nil
			},
		}), calls
	}
	// reached counts the messages that were handled n times or more.
	reached := func(calls *rig.Calls, n int) (reached int) {
		for i := range messages {
			if calls.Of(fmt.Sprint(i)) >= n {
				reached++
			}
		}
		return reached
	}
	native, inQueue := start("native", strategy, args)
	copies, inWaitQueue := start("copies", topology.PerQueue{}, amqp.Table{"x-queue-type": "quorum"})
	for _, queue := range []string{native.Queue, copies.Queue} {
		rig.Fill(t, c.Node(0).URL(), queue, messages)
	}
	both := map[string]*rig.Calls{"native": inQueue, "copies": inWaitQueue}
	for name, calls := range both {
		rig.WaitFor(t, "most messages to wait for their second retry: "+name,
			func() bool { return reached(calls, failures) > messages/2 })
	}
	require.NoError(t, c.Kill(0))
	for name, calls := range both {
		rig.WaitFor(t, "every message to be handled after its failures: "+name,
			func() bool { return reached(calls, failures+1) == messages })
	}
	require.NoError(t, c.Start(t.Context(), 0))
	native.Stop()
	copies.Stop()
	for _, queue := range []string{"native", "native.dlq", "copies", "copies.dlq", "copies.wait.2s"} {
		assert.Zero(t, testbroker.Depth(t, c.Node(1).URL(), queue), queue)
	}
	t.Logf("calls beyond %d for each message: native %d, copies %d", failures+1,
		inQueue.Total()-messages*(failures+1), inWaitQueue.Total()-messages*(failures+1))
}
