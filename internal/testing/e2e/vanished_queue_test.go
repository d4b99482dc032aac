//go:build unix

package e2e_test

import (
	"fmt"
	"strings"
	"sync"
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

// fate is the fate of messages whose queue has vanished when their wait is over.
type fate string

const (
	held     fate = "held by their wait queue"
	stranded fate = "in the stranded queue"
	gone     fate = "lost" // the guarantee of classic queues ends here (F5)
)

// blocked are the strategies and their promises (T8).
var blocked = map[string]struct {
	strategy topology.Strategy
	fate     fate
}{
	"perqueue":         {topology.PerQueue{}, held},
	"perqueue classic": {topology.PerQueue{Type: topology.Classic}, gone},
	"shared":           {topology.Shared{Prefix: "shared"}, stranded},
	"levels": {topology.Levels{
		Prefix: "levels", Resolution: time.Second, Max: time.Minute,
	}, stranded},
	"shared classic": {topology.Shared{Prefix: "shared-classic", Type: topology.Classic}, stranded},
}

const (
	// blockedDelay leaves time to fail them all and to delete their queue.
	blockedDelay = 10 * time.Second
	vanished     = 100 // more than the 32 that stop an at-least-once wait queue (F5)
	healthy      = 50
	patience     = 90 * time.Second
)

// Given a queue that is deleted on the cluster while its messages wait, then the messages of other
// queues come back on time. Held messages survive the death of a node, and arrive when their queue
// is declared again (T8).
func TestVanishedQueueBlocksNobodyOnTheCluster(t *testing.T) {
	t.Parallel()
	c := testbroker.PrivateCluster(t, 3, testbroker.WithAdvancedConfig(
		"[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 2000}]}]."))
	var mu sync.Mutex
	heldFor := map[string]string{} // queue: its wait queue
	t.Run("strategies", func(t *testing.T) {
		for name, b := range blocked {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				prefix := strings.ReplaceAll(name, " ", "-")
				plan := vanish(t, c, b.strategy, prefix)
				waits := waitQueue(t, plan)
				switch b.fate {
				case held:
					testbroker.WaitFor(t, "the broker to count all as waiting", patience, func() bool {
						return messages(t, c.Node(0), waits) == vanished
					})
					mu.Lock()
					defer mu.Unlock()
					heldFor[plan.Queue] = waits
				case stranded:
					testbroker.WaitFor(t, "the stranded messages", patience, func() bool {
						return testbroker.Depth(t, c.Node(0).URL(), prefix+".stranded") == vanished
					})
				case gone:
					testbroker.WaitFor(t, "the messages to be gone", patience, func() bool {
						return testbroker.Depth(t, c.Node(0).URL(), waits) == 0
					})
				}
			})
		}
	})

	require.NotEmpty(t, heldFor)
	require.NoError(t, c.Kill(0))
	require.NoError(t, c.Start(t.Context(), 0))
	url := c.Node(1).URL()
	for queue, waits := range heldFor {
		rig.DeclareQueue(t, url, queue, amqp.Table{"x-queue-type": "quorum"})
		testbroker.WaitFor(t, "the held messages", patience,
			func() bool { return testbroker.Depth(t, url, queue) >= vanished })
		testbroker.WaitFor(t, "the wait queue to be empty", patience,
			func() bool { return messages(t, c.Node(1), waits) == 0 })
		assert.Equal(t, vanished, distinct(t, url, queue))
	}
}

// waitQueue returns the wait queue of blockedDelay. Levels has none.
func waitQueue(t *testing.T, plan topology.Plan) string {
	t.Helper()
	for _, q := range plan.Queues {
		if q.Delay == blockedDelay {
			return q.Name
		}
	}
	require.NotNil(t, plan.Levels, "a wait queue of %v", blockedDelay)
	return ""
}

// vanish lets messages of two queues wait, deletes one of the queues meanwhile, and returns when
// all messages of the other queue are back.
func vanish(t *testing.T, c *testbroker.Cluster, strategy topology.Strategy, prefix string,
) topology.Plan {
	t.Helper()
	urls := c.URLs()
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
	testbroker.WaitFor(t, "all to have failed", patience,
		func() bool { return failed.Count() >= vanished })
	service.Stop()
	rig.DeleteQueue(t, urls[1], lost)
	require.Less(t, time.Since(begun), blockedDelay,
		"the machine is too slow: some have come back before their queue was deleted")

	serve(well, back.FailFirst)
	rig.Fill(t, urls[2], well, healthy)
	testbroker.WaitFor(t, "the messages of the other queue to be back", patience,
		func() bool { return back.Count() >= healthy })
	return rig.PlanFor(t, lost, strategy, backoff.List{blockedDelay})
}

// messages returns the number of messages of a queue, held ones included.
func messages(t *testing.T, n *testbroker.Node, queue string) int {
	t.Helper()
	for line := range strings.Lines(n.Ctl(t, "list_queues", "--no-table-headers", "name",
		"messages")) {
		var name string
		var count int
		if _, err := fmt.Sscan(line, &name, &count); err == nil && name == queue {
			return count
		}
	}
	return -1
}

// distinct takes all messages of a queue and returns the number of different ones.
func distinct(t *testing.T, url, queue string) int {
	t.Helper()
	ch := testbroker.Channel(t, url)
	bodies := map[string]bool{}
	for {
		d, ok, err := ch.Get(queue, true)
		require.NoError(t, err)
		if !ok {
			return len(bodies)
		}
		bodies[string(d.Body)] = true
	}
}
