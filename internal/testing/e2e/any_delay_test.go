package e2e_test

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/passage"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// Given a policy that cannot list its delays, when messages ask Levels for random delays, then none
// comes early, and each has passed only levels of the plan, which keep it for its delay and at most
// a hundredth or a level longer.
func TestAnyDelayOnAFixedNumberOfQueues(t *testing.T) {
	t.Parallel()
	const messages, shortest, longest = 100, 100 * time.Millisecond, 4 * time.Second
	kinds := map[string]topology.QueueType{"quorum": topology.Quorum, "classic": topology.Classic}
	rig.Each(t, kinds, func(t *testing.T, kind topology.QueueType) {
		random := rand.New(rand.NewPCG(5, uint64(len(kind))))
		asked, failed := make([]time.Duration, messages), make([]time.Time, messages)
		for i := range asked {
			asked[i] = shortest + time.Duration(random.Int64N(int64(longest-shortest)))
		}
		asked[0], asked[1] = shortest, longest
		strategy, back := rig.Levels(t, kind), make(chan rig.Arrival, 2*messages)
		r := rig.Start(t, rig.Config{
			Policy: rig.Unlisted, SubscriberOptions: rig.InFlight(16), Strategy: strategy,
			Handler: func(msg *message.Message) ([]*message.Message, error) {
				if middleware.Attempt(msg.Context()) == 2 {
					return rig.Collect(back)(msg)
				}
				i, err := strconv.Atoi(string(msg.Payload))
				if err != nil {
					t.Error(err)
				}
				failed[i] = time.Now()
				return nil, middleware.RetryAfter(rig.ErrFailed, asked[i])
			},
		})
		rig.Fill(t, r.URL, r.Queue, messages)
		for range messages {
			came := rig.Await(t, back)
			i, err := strconv.Atoi(string(came.Raw.Body))
			require.NoError(t, err)
			require.GreaterOrEqual(t, came.At.Sub(failed[i]), asked[i]-rig.Grace)
			waited, err := passage.Waited(r.Plan, &came.Raw)
			require.NoError(t, err)
			require.GreaterOrEqual(t, waited, asked[i])
			require.LessOrEqual(t, waited, asked[i]+shortest+asked[i]/100)
		}
		r.RequireNothingLeft(0)
		require.Empty(t, back, "a message came twice")
		require.Zero(t, testbroker.Depth(t, r.URL, strategy.Prefix+".stranded"))
	})
}

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
