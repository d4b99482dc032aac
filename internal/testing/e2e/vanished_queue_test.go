package e2e_test

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

const (
	// blockedDelay leaves time to fail them all and to delete their queue.
	blockedDelay = 10 * time.Second
	vanished     = 100 // more than the 32 that stop an at-least-once wait queue (F5)
	healthy      = 50
)

// Given a queue that is deleted on the cluster while its messages wait, then the messages of other
// queues come back on time. Quorum wait queues of its own hold the messages, also when a node dies,
// and they arrive when their queue is declared again. Shared ones let them be stranded (T8). The
// last scene disturbs the cluster.
func TestVanishedQueueBlocksNobodyOnTheCluster(t *testing.T) {
	t.Parallel()
	c := testbroker.PrivateCluster(t, 3, testbroker.WithAdvancedConfig(
		"[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 2000}]}]."))
	var both sync.WaitGroup // not parallel: they would wait for all other tests
	for name, strategy := range map[string]topology.Strategy{
		"perqueue": topology.PerQueue{}, "shared": topology.Shared{Prefix: "shared"},
	} {
		both.Go(func() { t.Run(name, func(t *testing.T) { vanish(t, c, strategy) }) })
	}
	both.Wait()
	rig.AwaitDepth(t, c.Node(0).URL(), "shared.stranded", vanished)
	const lost, waits = "perqueue-vanished", "perqueue-vanished.wait.10s"
	rig.WaitFor(t, "the broker to count all as waiting", func() bool {
		return messages(t, c.Node(0), waits) == vanished
	})
	require.NoError(t, c.Kill(0))
	require.NoError(t, c.Start(t.Context(), 0))
	url := c.Node(1).URL()
	rig.DeclareQueue(t, url, lost, amqp.Table{"x-queue-type": "quorum"})
	require.Equal(t, vanished, distinct(t, url, lost, vanished))
	rig.WaitFor(t, "the wait queue to be empty", func() bool {
		return messages(t, c.Node(1), waits) == 0
	})
	t.Run("a consumer is not told that it lost its queue", func(t *testing.T) {
		aConsumerIsNotToldThatItLostItsQueue(t, c)
	})
}

// vanish lets messages of two queues wait, deletes one of the queues meanwhile, and returns when
// all messages of the other queue are back.
func vanish(t *testing.T, c *testbroker.Cluster, strategy topology.Strategy) {
	t.Helper()
	urls, prefix := c.URLs(), path.Base(t.Name())
	serve := func(queue string, handler func(*message.Message) error) *rig.Service {
		return rig.Start(t, rig.Config{
			URL: urls[0], Queue: queue, Keep: true, Strategy: strategy, Handle: handler,
			Policy:            backoff.List{blockedDelay},
			Configure:         func(cfg *wamqp.Config) { rig.QuorumQueue(cfg); rig.Prefetch(vanished)(cfg) },
			ClientOptions:     []topology.Option{topology.WithBrokers(urls[1:]...)},
			SubscriberOptions: rig.InFlight(4),
		})
	}
	lost, well := prefix+"-vanished", prefix+"-healthy"
	var failed, back rig.Timeline
	service := serve(lost, failed.Fail)
	begun := time.Now()
	rig.Fill(t, urls[0], lost, vanished)
	rig.WaitFor(t, "all to have failed", func() bool { return failed.Count() >= vanished })
	service.Stop()
	rig.DeleteQueue(t, urls[1], lost)
	require.Less(t, time.Since(begun), blockedDelay,
		"the machine is too slow: some have come back before their queue was deleted")

	serve(well, back.FailFirst)
	rig.Fill(t, urls[2], well, healthy)
	rig.WaitFor(t, "the messages of the other queue", func() bool { return back.Count() >= healthy })
}

// messages returns the number of messages of a quorum queue, held ones included, as its leader has
// counted them.
func messages(t *testing.T, n *testbroker.Node, queue string) int {
	t.Helper()
	count := n.Ctl(t, "eval", fmt.Sprintf(`
		Counted = [queue_coarse_metrics, rabbit_misc:r(<<"/">>, queue, <<%q>>)],
		lists:max([-1 | [M || N <- [node() | nodes()],
			{_, _, _, M, _} <- rpc:call(N, ets, lookup, Counted)]]).`, queue))
	number, err := strconv.Atoi(strings.TrimSpace(count))
	require.NoError(t, err)
	return number
}

// distinct takes n messages of a queue, or more, and returns the number of different ones.
func distinct(t *testing.T, url, queue string, n int) int {
	t.Helper()
	bodies := rig.Bodies(rig.Drain(t, url, queue, n))
	slices.Sort(bodies)
	return len(slices.Compact(bodies))
}
