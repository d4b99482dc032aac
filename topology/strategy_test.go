package topology_test

import (
	"sync"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// strategyFunc is a strategy of a user's own.
type strategyFunc func(queue string, delays []time.Duration) (topology.Plan, error)

func (f strategyFunc) Plan(queue string, delays []time.Duration) (topology.Plan, error) {
	return f(queue, delays)
}

// withoutAWayBack forgets what happens when the wait is over.
func withoutAWayBack(queue string, _ []time.Duration) (topology.Plan, error) {
	return topology.Plan{
		Queue: queue,
		Queues: []topology.Queue{
			{Name: queue + ".later", Delay: time.Second, Arguments: amqp.Table{"x-queue-type": "quorum", "x-message-ttl": int64(1000)}},
			{Name: queue + ".dlq", Arguments: amqp.Table{"x-queue-type": "quorum"}},
		},
		WaitSteps: []topology.Route{{RoutingKey: queue + ".later", Delay: time.Second, Hops: 1}},
		Dead:      topology.Route{RoutingKey: queue + ".dlq"},
	}, nil
}

// Its retries were confirmed and then gone when their wait was over; Subscribe, Verify
// and Declare took the plan.
func TestStrategyWithoutAWayBackIsRefused(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	testbroker.Delete(t, queue, queue+".later", queue+".dlq")
	cases := map[string]struct {
		plan strategyFunc
		want []string
	}{
		"without a way back": {withoutAWayBack, []string{
			`wait queue "` + queue + `.later" has no x-dead-letter-exchange, so that the broker drops a message whose wait is over`,
			"x-dead-letter-strategy is <nil>", "topology.WaitQueue sets the safe arguments", "names no x-delivery-limit",
		}},
		"an empty plan": {func(string, []time.Duration) (topology.Plan, error) { return topology.Plan{}, nil }, []string{
			"a strategy sets Plan.Queue to the name that Plan is called with", "there is no wait step", "dead letters have no target",
		}},
		"the plan of another queue": {func(_ string, delays []time.Duration) (topology.Plan, error) {
			return topology.PerQueue{}.Plan(queue+"-other", delays)
		}, []string{`the plan is for queue "` + queue + `-other", and queue "` + queue + `" was asked for`}},
	}
	for name, c := range cases {
		client, sub := rig.OpenSubscriber(t, url, c.plan, backoff.List{time.Second})
		pub := rig.NewPublisher(t, client, url)
		plan, err := c.plan(queue, nil)
		require.NoError(t, err)
		_, subscribeErr := sub.Subscribe(t.Context(), queue)
		_, planErr := client.Plan(queue)
		refused := map[string]error{
			"Subscribe": subscribeErr, "SubscribeInitialize": sub.SubscribeInitialize(queue), "Plan": planErr,
			"Publish": pub.Publish(queue, rig.DelayedBy(time.Second)),
		}
		if name != "the plan of another queue" { // which is valid by itself
			o := rig.OpenOperator(t, url)
			_, refused["Verify"] = o.Verify(t.Context(), plan)
			refused["Declare"] = o.Declare(t.Context(), plan)
		}
		for call, err := range refused {
			for _, text := range c.want {
				require.ErrorContains(t, err, text, "%s: %s", name, call)
			}
		}
		for _, q := range []string{queue, queue + ".later", queue + ".dlq"} {
			require.Equal(t, -1, testbroker.Depth(t, url, q), "%s: queue %s was declared", name, q)
		}
		if name == "without a way back" {
			t.Log(subscribeErr)
		}
	}
}

// A strategy is asked about the queues that there are and no other: Open and the
// constructors asked it about one called "check".
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
	for _, strategy := range []topology.Strategy{byName, &byName, strategyFunc(func(q string, delays []time.Duration) (topology.Plan, error) {
		return topology.PerQueue{}.Plan(note(q), delays)
	})} {
		client, sub := rig.OpenSubscriber(t, url, strategy, backoff.List{time.Second})
		rig.NewPublisher(t, client, url, topology.WithDelays(time.Second))
		require.Empty(t, asked)
		rig.RemovePlan(t, url, strategy, queue, backoff.List{time.Second})
		require.NoError(t, sub.SubscribeInitialize(queue))
		require.Equal(t, map[string]bool{queue: true}, asked)
		clear(asked)
		require.NoError(t, client.Close())
	}
}

// What is wrong with a strategy of this package is said by Open all the same.
func TestOpenNamesWhatIsWrongWithAStrategy(t *testing.T) {
	t.Parallel()
	both := topology.DeadLetters{
		Name:   func(string) string { return "dead" },
		Target: func(string) topology.Route { return topology.Route{Exchange: "dead"} },
	}
	own := amqp.Table{"x-message-ttl": 1}
	for want, strategies := range map[string][]topology.Strategy{
		"is not positive": {
			topology.PerQueue{WaitSteps: []time.Duration{0}},
			&topology.Shared{WaitSteps: []time.Duration{0}},
			topology.PerAttempt{Delays: []time.Duration{0}},
			topology.PerAttempt{WaitSteps: []time.Duration{0}},
		},
		"is unknown":               {topology.PerQueue{Type: "x"}, topology.Shared{Type: "x"}, topology.PerAttempt{Type: "x"}, topology.Levels{Type: "x"}},
		"both a Target":            {topology.PerQueue{Dead: both}, topology.Shared{Dead: both}, topology.PerAttempt{Dead: both}, topology.Levels{Dead: both}},
		"x-message-ttl of the":     {topology.PerQueue{WaitArguments: own}, topology.Shared{WaitArguments: own}, topology.PerAttempt{WaitArguments: own}, topology.Levels{WaitArguments: own}},
		"is not in whole":          {topology.Levels{Resolution: 1}},
		"resolution 6s is over 5s": {topology.Levels{Resolution: 6 * time.Second}},
	} {
		for _, strategy := range strategies {
			_, err := topology.Open(t.Context(), wamqp.ConnectionConfig{AmqpURI: "amqp://127.0.0.1:1/"}, strategy)
			require.ErrorContains(t, err, "strategy: ", "%T", strategy)
			require.ErrorContains(t, err, want, "%T", strategy)
		}
	}
}

// A strategy made of WaitQueue retries and gives up like any other.
func TestStrategyOfAUsersOwn(t *testing.T) {
	t.Parallel()
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		Strategy: perQueueByHand{},
		Policy:   backoff.List{2 * time.Second},
		Handler: func(*message.Message) ([]*message.Message, error) {
			calls.Add()
			return nil, rig.ErrFailed
		},
	})
	r.Publish(amqp.Publishing{Body: []byte("mine")})
	dead := rig.Take(t, r.URL, r.Queue+".failed")
	require.Equal(t, "exhausted", dead.Headers[header.DeadReason])
	calls.RequireGaps(t, 2*time.Second)
}
