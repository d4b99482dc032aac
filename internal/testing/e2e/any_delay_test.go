package e2e_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
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

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// Levels give any delay of any queue, on a broker where every queue is counted.
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

// countQueues counts the queues of a node whose names have a prefix.
func countQueues(t testing.TB, node *testbroker.Node, prefix string) int {
	t.Helper()
	n := 0
	names := node.Ctl(t, "-q", "list_queues", "--no-table-headers", "name")
	for name := range strings.Lines(names) {
		if strings.HasPrefix(name, prefix) {
			n++
		}
	}
	return n
}

// Given a policy that cannot list its delays, when 500 messages ask for random delays, then no
// queue is added, and none is lost. Each comes at least after its delay, at most 2 s later. On a
// busy machine each hop may also take as long as the slowest of the messages that wait 100 ms
// elsewhere meanwhile, and one message in a hundred longer.
func requireAnyDelay(t *testing.T, node *testbroker.Node, kind topology.QueueType) {
	const messages, shortest, longest = 500, 100 * time.Millisecond, 10 * time.Second
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
		URL: node.URL(), Queue: prefix, Policy: rig.Unlisted, SubscriberOptions: rig.InFlight(16),
		Strategy: topology.Levels{Type: kind, Prefix: prefix},
		Configure: func(cfg *wamqp.Config) {
			rig.Prefetch(100)(cfg)
			cfg.Queue.Arguments = amqp.Table{"x-queue-type": string(kind)}
		},
		Handle: func(msg *message.Message) error {
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
				return nil
			}
			failed[i] = now
			return middleware.RetryAfter(rig.ErrFailed, asked[i])
		},
	})
	before := countQueues(t, node, prefix)
	require.Equal(t, 1+32+2, before, "the queue, its levels, stranded and dead letters")
	slowest := probe(t, node.URL(), kind)
	publishAll(t, node.URL(), "", r.Queue, messages, time.Second/100, "")
	rig.Await(t, done)
	busy := slowest()
	require.Equal(t, before, countQueues(t, node, prefix), "a delay needs no queue")
	require.Zero(t, r.Depth(".stranded"))
	require.Zero(t, r.Depth(".dlq"))

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
	require.LessOrEqual(t, tooLate, messages/100, "over %v late, and %v for each hop", late, busy)
	t.Logf("%d of %d came more than %v late; one wait of %v took up to %v more",
		behind, messages, late, probed, busy)
	for _, hops := range slices.Sorted(maps.Keys(byHops)) {
		lateness := byHops[hops]
		slices.Sort(lateness)
		at := func(percent int) time.Duration {
			return lateness[len(lateness)*percent/100].Round(time.Millisecond / 10)
		}
		t.Logf("%d hops: %3d messages, late by p50 %v, p99 %v", hops, len(lateness), at(50), at(99))
	}
}

// probed is how long each message of a probe waits.
const probed = 100 * time.Millisecond

// probe lets one message after the other wait in a queue of the probe. The function it returns
// ends the probe and tells how late the slowest message was.
func probe(t *testing.T, url string, kind topology.QueueType) (slowest func() time.Duration) {
	t.Helper()
	ch, queue := testbroker.Channel(t, url), "probe-"+string(kind)
	plan := rig.PlanOf(t, topology.PerQueue{Type: kind}, queue, probed)
	for _, q := range append(plan.Queues, topology.Queue{Name: queue}) {
		rig.DeclareQueue(t, url, q.Name, q.Arguments)
	}
	deliveries, err := ch.Consume(queue, "", true, false, false, false, nil)
	require.NoError(t, err)
	stop, worst := make(chan struct{}), make(chan time.Duration, 1)
	go func() {
		late := time.Duration(0)
		defer func() { worst <- late }()
		for {
			began := time.Now()
			if ch.Publish("", plan.WaitSteps[0].RoutingKey, true, false, rig.Message("")) != nil {
				return
			}
			<-deliveries
			late = max(late, time.Since(began)-probed)
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	return func() time.Duration {
		close(stop)
		return rig.Await(t, worst)
	}
}

// publishAll publishes n numbered messages of an app with a pause after each. It waits for all
// confirms and requires that none is returned.
func publishAll(t testing.TB, url, exchange, key string, n int, pause time.Duration, app string) {
	t.Helper()
	ch := testbroker.Channel(t, url)
	returns := ch.NotifyReturn(make(chan amqp.Return, n))
	require.NoError(t, ch.Confirm(false))
	tick := time.NewTicker(pause)
	defer tick.Stop()
	var confirms []*amqp.DeferredConfirmation
	for i := range n {
		<-tick.C
		msg := rig.Message(fmt.Sprint(i))
		msg.AppId = app
		confirm, err := ch.PublishWithDeferredConfirm(exchange, key, true, false, msg)
		require.NoError(t, err)
		confirms = append(confirms, confirm)
	}
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	for _, confirm := range confirms {
		ok, err := confirm.WaitContext(ctx)
		require.NoError(t, err)
		require.True(t, ok)
	}
	require.Empty(t, returns)
}

// sendToWait publishes n messages of a plan to wait. Their app is the main queue.
func sendToWait(t testing.TB, url string, plan topology.Plan, delay time.Duration, n int) {
	t.Helper()
	route, err := plan.Route(topology.Retry{Delay: delay})
	require.NoError(t, err)
	publishAll(t, url, route.Exchange, route.RoutingKey, n, time.Microsecond, plan.Queue)
}

// Given queues whose names are wildcards, end like another name, or are very long, then each
// gets its own messages only, on one set of wait queues. When one queue vanishes, its messages
// strand, and no others.
func requireOwnMessages(t *testing.T, node *testbroker.Node) {
	const each, vanished, stranded = 20, "eu.orders", "millpond.stranded"
	url, strategy := node.URL(), topology.Levels{}
	names := []string{
		"orders", vanished, "orders.#", "*", "#", "1.orders", "%2A", strings.Repeat("x", 200),
		strings.Repeat("x", 199) + "y", "bestellungen-straße-注文",
	}
	plans := map[string]topology.Plan{}
	for _, name := range names {
		plans[name] = rig.Provision(t, url, strategy, name, rig.Unlisted)
	}
	require.Equal(t, 32+1, countQueues(t, node, "millpond."), "a destination needs no wait queue")
	for _, name := range names {
		sendToWait(t, url, plans[name], 700*time.Millisecond, each)
	}
	for _, name := range names {
		requireOwn(t, url, name, each)
	}

	rig.DeleteQueue(t, url, vanished)
	const more = 2 * each // more than stop an at-least-once queue (F5)
	for _, name := range names {
		sendToWait(t, url, plans[name], 300*time.Millisecond, more)
	}
	for _, name := range names {
		if name != vanished {
			requireOwn(t, url, name, more)
		}
	}
	rig.AwaitDepth(t, url, stranded, more)
	one := rig.Take(t, url, stranded)
	require.Equal(t, vanished, one.AppId)
	require.Equal(t, "1.1.eu%2Eorders", one.RoutingKey)
}

// requireOwn takes n messages of a queue and requires that all are its own and no more come.
func requireOwn(t testing.TB, url, queue string, n int) {
	t.Helper()
	rig.WaitFor(t, fmt.Sprintf("%d messages in %q", n, queue), func() bool {
		return testbroker.Depth(t, url, queue) >= n
	})
	ch := testbroker.Channel(t, url)
	for range n {
		d, ok, err := ch.Get(queue, true)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, queue, d.AppId, "a message of another queue")
	}
	require.Zero(t, testbroker.Depth(t, url, queue))
}

// When a level is deleted while messages wait above it, then the messages that need it are
// stranded, visibly, and hold up none that go another way. A publish that enters at the level is
// returned.
func TestVanishedLevelBlocksNoOtherDelay(t *testing.T) {
	t.Parallel()
	const each = 50 // more than stop an at-least-once queue (F5)
	for _, kind := range []topology.QueueType{topology.Quorum, topology.Classic} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			url, queue, strategy := testbroker.URL(t), testbroker.Queue(t), rig.Levels(t, kind)
			rig.RemovePlan(t, url, strategy, queue, nil)
			plan := rig.Provision(t, url, strategy, queue, rig.Unlisted)
			ch := testbroker.Channel(t, url)
			rig.DeleteQueue(t, url, plan.Queues[3].Name)
			sendToWait(t, url, plan, 2400*time.Millisecond, each) // 1600 ms and the deleted 800 ms
			sendToWait(t, url, plan, 2*time.Second, each)         // 1600 ms and 400 ms
			for _, name := range []string{queue, strategy.Prefix + ".stranded"} {
				rig.AwaitDepth(t, url, name, each)
			}

			returns := ch.NotifyReturn(make(chan amqp.Return, 1))
			require.NoError(t, ch.Confirm(false))
			confirm, err := ch.PublishWithDeferredConfirm(plan.WaitSteps[3].Exchange,
				plan.WaitSteps[3].RoutingKey, true, false, amqp.Publishing{})
			require.NoError(t, err)
			confirm.Wait()
			require.Equal(t, uint16(amqp.NoRoute), (<-returns).ReplyCode)
		})
	}
}
