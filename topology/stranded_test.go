package topology_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// The main queue is deleted while messages wait in shared queues: they end in
// the stranded queue with all their headers, and those of another queue, behind
// them, are on time (T8).
func TestVanishedDestinationStrandsOnlyItsOwn(t *testing.T) {
	t.Parallel()
	const gone, healthy = 200, 100 // more than the 32 that stop a wait queue (F5)
	for name, strategy := range strategies {
		if !sharing[name] {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testbroker.URL(t)
			strategy := strategy(t)
			// Longer than it takes until all wait, on a broker that ten tests share: who returns earlier is dead-lettered.
			policy := backoff.List{30 * time.Second}
			var wait timeline
			count := func(h message.HandlerFunc) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) {
					produced, err := h(msg)
					if err == nil {
						wait.add()
					}
					return produced, err
				}
			}
			fail := func(*message.Message) ([]*message.Message, error) { return nil, errFailed }
			first := newRig(t, rigConfig{
				url: url, strategy: strategy, policy: policy, handler: fail, config: prefetch(100), outer: []message.HandlerMiddleware{count},
			})
			fill(t, url, first.queue, gone)
			testbroker.WaitFor(t, "all wait", patience, func() bool { return wait.count() == gone })
			first.stop()
			_, err := testbroker.Channel(t, url).QueueDelete(first.queue, false, false, false)
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
			testbroker.WaitFor(t, "the healthy ones are back", patience, func() bool { return back.count() == healthy })
			i := slices.IndexFunc(first.plan.Queues, func(q topology.Queue) bool { return strings.HasSuffix(q.Name, ".stranded") })
			stranded := first.plan.Queues[i].Name
			testbroker.WaitFor(t, "the others are stranded", patience, func() bool { return testbroker.Depth(t, url, stranded) == gone })
			one := take(t, url, stranded)
			words := strings.Split(one.RoutingKey, ".")
			require.Equal(t, first.queue, words[len(words)-1])
			require.Equal(t, first.queue, one.Headers[header.Queue])
			require.Equal(t, "1", one.Headers[header.Failures])
			require.Zero(t, waiting(t, url, first.plan))
		})
	}
}

// However many subscriptions a Client has, each growth of their stranded queue is one
// line. One that shrinks is none.
func TestStrandedMessagesAreSaidOnceForAClient(t *testing.T) {
	t.Parallel()
	url, strategy := testbroker.URL(t), shared(t, topology.Quorum)
	stranded, policy, logs := strategy.Prefix+".stranded", backoff.List{time.Second}, &capture{}
	client, sub := openSubscriber(t, url, strategy, policy, topology.WithLogger(logs), topology.WithStrandedPause(50*time.Millisecond))
	queues := []string{testbroker.Queue(t), testbroker.Queue(t)}
	for _, queue := range queues {
		removePlan(t, url, strategy, queue, policy)
		require.NoError(t, sub.SubscribeInitialize(queue))
	}
	fill(t, url, stranded, 2)
	subscribe := func() {
		for _, queue := range queues {
			_, err := sub.Subscribe(t.Context(), queue)
			require.NoError(t, err)
		}
	}
	said := func(want ...int) {
		t.Helper()
		testbroker.WaitFor(t, "the log to say it", patience, func() bool { return len(logs.saying("Messages are stranded")) >= len(want) })
		lines := logs.saying("Messages are stranded")
		require.Len(t, lines, len(want))
		for i, n := range want {
			require.Contains(t, lines[i], fmt.Sprintf("messages:%d queue:%s", n, stranded))
		}
	}
	testbroker.WaitFor(t, "two messages", patience, func() bool { return testbroker.Depth(t, url, stranded) == 2 })
	subscribe()
	said(2)
	fill(t, url, stranded, 1)
	said(2, 3)
	ch := testbroker.Channel(t, url)
	_, err := ch.QueuePurge(stranded, false)
	require.NoError(t, err)
	testbroker.WaitFor(t, "none", patience, func() bool { return testbroker.Depth(t, url, stranded) == 0 })
	require.NoError(t, client.Close())
	said(2, 3)
}

// fill publishes n messages, confirmed together.
func fill(t testing.TB, url, queue string, n int) {
	t.Helper()
	ch := testbroker.Channel(t, url)
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
