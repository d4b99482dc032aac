package topology_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// countQueues returns how many queues of the prefix the broker has.
func countQueues(t testing.TB, node *testbroker.Node, prefix string) int {
	t.Helper()
	n := 0
	for _, name := range strings.Split(node.Ctl(t, "-q", "list_queues", "--no-table-headers", "name"), "\n") {
		if strings.HasPrefix(name, prefix) {
			n++
		}
	}
	return n
}

// Any delay of any queue, on a broker where every queue is counted.
func TestAnyDelayOnAFixedNumberOfQueues(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	for _, kind := range []topology.QueueType{topology.Quorum, topology.Classic} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			requireAnyDelay(t, node, kind)
		})
	}
	t.Run("destinations", func(t *testing.T) {
		t.Parallel()
		requireOwnMessages(t, node)
	})
}

// 500 random delays of a policy that cannot list them, on as many queues as
// before: each at least as long as asked, at most 2 s longer, none lost. On a
// machine that has more to do, each hop may also take as long as the slowest of
// the messages that wait 100 ms in a queue of their own meanwhile, and one message
// in a hundred longer still.
func requireAnyDelay(t *testing.T, node *testbroker.Node, kind topology.QueueType) {
	const messages, shortest, longest, rate = 500, 100 * time.Millisecond, 10 * time.Second, 100
	const late = 2 * time.Second
	random := rand.New(rand.NewPCG(5, uint64(len(kind))))
	asked := make([]time.Duration, messages)
	for i := range asked {
		asked[i] = shortest + time.Duration(random.Int64N(int64(longest-shortest)))
	}
	asked[0], asked[1] = shortest, longest

	var mu sync.Mutex
	failed, back := map[int]time.Time{}, map[int]time.Duration{}
	done := make(chan struct{})
	prefix := "delays-" + string(kind)
	r := rig.Start(t, rig.Config{
		URL: node.URL(), Queue: prefix, Strategy: topology.Levels{Type: kind, Prefix: prefix}, Policy: rig.Unlisted,
		SubscriberOptions: []topology.SubscriberOption{topology.WithConcurrency(16)},
		Configure: func(cfg *wamqp.Config) {
			rig.Prefetch(100)(cfg)
			cfg.Queue.Arguments = amqp.Table{"x-queue-type": string(kind)}
		},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			mu.Lock()
			defer mu.Unlock()
			i, err := strconv.Atoi(string(msg.Payload))
			if err != nil {
				t.Error(err)
			}
			now := time.Now()
			if at, again := failed[i]; again {
				back[i] = now.Sub(at)
				if len(back) == messages {
					close(done)
				}
				return nil, nil
			}
			failed[i] = now
			return nil, middleware.RetryAfter(rig.ErrFailed, asked[i])
		},
	})
	before := countQueues(t, node, prefix)
	require.Equal(t, 1+32+2, before, "the queue, its levels, stranded and dead letters")
	slowest := probe(t, node.URL(), kind)
	publishAtRate(t, node.URL(), r.Queue, messages, rate)
	select {
	case <-done:
	case <-time.After(rig.Patience):
		t.Fatal("not all are back")
	}
	busy := slowest()
	require.Equal(t, before, countQueues(t, node, prefix), "a delay needs no queue")
	for _, q := range []string{prefix + ".stranded", prefix + ".dlq"} {
		require.Zero(t, testbroker.Depth(t, node.URL(), q), q)
	}

	behind, tooLate := 0, 0
	byHops := map[int][]time.Duration{}
	for i, took := range back {
		route, err := r.Plan.Route(topology.Retry{Delay: asked[i]})
		require.NoError(t, err)
		require.GreaterOrEqual(t, took, asked[i]-rig.Grace)
		if took > asked[i]+late {
			behind++
		}
		if took > asked[i]+late+time.Duration(route.Hops)*busy {
			tooLate++
		}
		byHops[route.Hops] = append(byHops[route.Hops], took-route.Delay)
	}
	require.LessOrEqual(t, tooLate, messages/100, "more than %v late, and %v for each hop", late, busy)
	t.Logf("%d of %d came more than %v late; one wait of %v took up to %v more", behind, messages, late, probed, busy)
	for _, hops := range slices.Sorted(maps.Keys(byHops)) {
		lateness := byHops[hops]
		slices.Sort(lateness)
		t.Logf("%d hops: %3d messages, late by p50 %v, p99 %v", hops, len(lateness),
			lateness[len(lateness)/2].Round(time.Millisecond/10), lateness[len(lateness)*99/100].Round(time.Millisecond/10))
	}
}
