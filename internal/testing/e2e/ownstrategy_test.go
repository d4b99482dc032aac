package e2e_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// strategyFunc is a strategy of a user.
type strategyFunc func(queue string, delays []time.Duration) (topology.Plan, error)

func (f strategyFunc) Plan(queue string, delays []time.Duration) (topology.Plan, error) {
	return f(queue, delays)
}

// withoutAWayBack plans wait queues without a dead-letter exchange.
func withoutAWayBack(queue string, _ []time.Duration) (topology.Plan, error) {
	wait := amqp.Table{"x-queue-type": "quorum", "x-message-ttl": int64(1000)}
	return topology.Plan{
		Queue: queue,
		Queues: []topology.Queue{
			{Name: queue + ".later", Delay: time.Second, Arguments: wait},
			{Name: queue + ".dlq", Arguments: amqp.Table{"x-queue-type": "quorum"}},
		},
		WaitSteps: []topology.Route{{RoutingKey: queue + ".later", Delay: time.Second, Hops: 1}},
		Dead:      topology.Route{RoutingKey: queue + ".dlq"},
	}, nil
}

// Given a strategy that loses messages, then every call that takes its plan refuses it, and
// declares nothing. Retries were confirmed, and gone when their wait was over.
func TestStrategyWithoutAWayBackIsRefused(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	testbroker.Delete(t, queue, queue+".later", queue+".dlq")
	empty := func(string, []time.Duration) (topology.Plan, error) { return topology.Plan{}, nil }
	another := func(_ string, delays []time.Duration) (topology.Plan, error) {
		return topology.PerQueue{}.Plan(queue+"-other", delays)
	}
	for name, c := range map[string]struct {
		strategy strategyFunc
		valid    bool // for another queue
		want     []string
	}{
		"without a way back": {withoutAWayBack, false, []string{
			`wait queue "` + queue + `.later" has no x-dead-letter-exchange, ` +
				"so that the broker drops a message whose wait is over",
			"x-dead-letter-strategy is <nil>", "topology.WaitQueue sets the safe arguments",
			"names no x-delivery-limit",
		}},
		"an empty plan": {empty, false, []string{
			"a strategy sets Plan.Queue to the name that Plan is called with",
			"there is no wait step", "dead letters have no target",
		}},
		"the plan of another queue": {another, true, []string{
			`the plan is for queue "` + queue + `-other", and queue "` + queue + `" was asked for`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			client, sub := rig.OpenSubscriber(t, url, c.strategy, sourcePolicy)
			pub := rig.NewPublisher(t, client, url)
			_, subscribeErr := sub.Subscribe(t.Context(), queue)
			_, planErr := topology.PlanFor(c.strategy, queue, sourcePolicy)
			refused := map[string]error{
				"Subscribe": subscribeErr, "SubscribeInitialize": sub.SubscribeInitialize(queue),
				"PlanFor": planErr, "Publish": pub.Publish(queue, rig.DelayedBy(time.Second)),
			}
			if !c.valid {
				plan, err := c.strategy(queue, nil)
				require.NoError(t, err)
				_, refused["Verify"] = client.Verify(t.Context(), plan)
				refused["Declare"] = client.Declare(t.Context(), plan)
			}
			for call, err := range refused {
				for _, text := range c.want {
					require.ErrorContains(t, err, text, call)
				}
			}
			for _, q := range []string{queue, queue + ".later", queue + ".dlq"} {
				require.Equal(t, -1, testbroker.Depth(t, url, q), "queue %s was declared", q)
			}
			t.Log(subscribeErr)
		})
	}
}

// A strategy is asked about existing queues only. Open and the constructors asked it about a
// queue called "check".
func TestNoStrategyIsAskedAboutAnInventedQueue(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	var mu sync.Mutex
	asked := map[string]bool{}
	note := func(name string) string {
		mu.Lock()
		defer mu.Unlock()
		asked[name] = true
		return name
	}
	byName := topology.PerQueue{
		WaitName: func(q string, d time.Duration) string { return note(q) + ".wait." + d.String() },
		Dead:     topology.DeadLetters{Name: func(q string) string { return note(q) + ".dlq" }},
	}
	byFunc := strategyFunc(func(q string, delays []time.Duration) (topology.Plan, error) {
		return topology.PerQueue{}.Plan(note(q), delays)
	})
	for _, strategy := range []topology.Strategy{byName, &byName, byFunc} {
		client, sub := rig.OpenSubscriber(t, url, strategy, sourcePolicy)
		rig.NewPublisher(t, client, url, topology.WithDelays(time.Second))
		require.Empty(t, asked)
		rig.RemovePlan(t, url, strategy, queue, sourcePolicy)
		require.NoError(t, sub.SubscribeInitialize(queue))
		_, err := client.Peek(t.Context(), queue, 1)
		require.True(t, err == nil || errors.Is(err, topology.ErrUnsafePeek), err)
		require.Equal(t, map[string]bool{queue: true}, asked)
		clear(asked)
		require.NoError(t, client.Close())
	}
}

// A strategy made with WaitQueue retries and gives up like those of the package.
func TestStrategyOfAUsersOwn(t *testing.T) {
	t.Parallel()
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		Strategy: rig.PerQueueByHand{}, Policy: backoff.List{2 * time.Second}, Handle: calls.Fail,
	})
	r.Send("mine")
	dead := rig.Take(t, r.URL, r.Queue+".failed")
	require.Equal(t, "exhausted", dead.Headers[header.DeadReason])
	calls.RequireGaps(t, 2*time.Second)
}
