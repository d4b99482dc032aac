package topology_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testbench"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// The main queue is deleted while messages wait in a shared queue: they end in
// the stranded queue with all their headers, and those of another queue, behind
// them, are on time (T8).
func TestVanishedDestinationStrandsOnlyItsOwn(t *testing.T) {
	t.Parallel()
	const gone, healthy = 1000, 200
	for _, kind := range []topology.QueueType{topology.Quorum, topology.Classic} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			url := testbench.URL(t)
			strategy := shared(t, kind)
			policy := backoff.List{15 * time.Second}
			var failed timeline
			fail := func(*message.Message) ([]*message.Message, error) {
				failed.add()
				return nil, errFailed
			}
			first := newRig(t, rigConfig{url: url, strategy: strategy, policy: policy, handler: fail, config: prefetch(100)})
			waits := first.plan.Queues[0].Name
			fill(t, url, first.queue, gone)
			testbench.WaitFor(t, "all have failed", patience, func() bool { return failed.count() >= gone })
			first.stop()
			_, err := testbench.Channel(t, url).QueueDelete(first.queue, false, false, false)
			require.NoError(t, err)

			var back timeline
			second := newRig(t, rigConfig{url: url, strategy: strategy, policy: policy, config: prefetch(100), handler: func(msg *message.Message) ([]*message.Message, error) {
				if middleware.Attempt(msg.Context()) == 1 {
					return nil, errFailed
				}
				back.add()
				return nil, nil
			}})
			fill(t, url, second.queue, healthy)
			testbench.WaitFor(t, "the healthy ones are back", patience, func() bool { return back.count() == healthy })
			stranded := strategy.Prefix + ".stranded"
			testbench.WaitFor(t, "the others are stranded", patience, func() bool { return testbench.Depth(t, url, stranded) == gone })
			one := take(t, url, stranded)
			require.Equal(t, first.queue, one.RoutingKey)
			require.Equal(t, first.queue, one.Headers[middleware.QueueKey])
			require.Equal(t, "1", one.Headers[middleware.FailuresKey])
			require.Zero(t, testbench.Depth(t, url, waits))
		})
	}
}

// fill publishes n messages, confirmed together.
func fill(t testing.TB, url, queue string, n int) {
	t.Helper()
	ch := testbench.Channel(t, url)
	require.NoError(t, ch.Confirm(false))
	var last *amqp.DeferredConfirmation
	for i := range n {
		var err error
		last, err = ch.PublishWithDeferredConfirm("", queue, true, false,
			amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(fmt.Sprint(i))})
		require.NoError(t, err)
	}
	require.True(t, last.Wait())
}
