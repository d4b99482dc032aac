package topology_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill/message"
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
	for name, strategy := range rig.Strategies {
		if !rig.Sharing[name] {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testbroker.URL(t)
			strategy := strategy(t)
			// Longer than it takes until all wait, on a broker that ten tests share: who returns earlier is dead-lettered.
			policy := backoff.List{30 * time.Second}
			var wait rig.Timeline
			count := func(h message.HandlerFunc) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) {
					produced, err := h(msg)
					if err == nil {
						wait.Add()
					}
					return produced, err
				}
			}
			fail := func(*message.Message) ([]*message.Message, error) { return nil, rig.ErrFailed }
			first := rig.Start(t, rig.Config{
				URL: url, Strategy: strategy, Policy: policy, Handler: fail, Configure: rig.Prefetch(100), Outer: []message.HandlerMiddleware{count},
			})
			rig.Fill(t, url, first.Queue, gone)
			rig.WaitFor(t, "all wait", func() bool { return wait.Count() == gone })
			first.Stop()
			_, err := testbroker.Channel(t, url).QueueDelete(first.Queue, false, false, false)
			require.NoError(t, err)

			var back rig.Timeline
			second := rig.Start(t, rig.Config{URL: url, Strategy: strategy, Policy: policy, Configure: rig.Prefetch(100), Handler: func(msg *message.Message) ([]*message.Message, error) {
				if middleware.Attempt(msg.Context()) == 1 {
					return nil, rig.ErrFailed
				}
				back.Add()
				return nil, nil
			}})
			rig.Fill(t, url, second.Queue, healthy)
			rig.WaitFor(t, "the healthy ones are back", func() bool { return back.Count() == healthy })
			i := slices.IndexFunc(first.Plan.Queues, func(q topology.Queue) bool { return strings.HasSuffix(q.Name, ".stranded") })
			stranded := first.Plan.Queues[i].Name
			rig.WaitFor(t, "the others are stranded", func() bool { return testbroker.Depth(t, url, stranded) == gone })
			one := rig.Take(t, url, stranded)
			words := strings.Split(one.RoutingKey, ".")
			require.Equal(t, first.Queue, words[len(words)-1])
			require.Equal(t, first.Queue, one.Headers[header.Queue])
			require.Equal(t, "1", one.Headers[header.Failures])
			require.Zero(t, rig.Waiting(t, url, first.Plan))
		})
	}
}

// However many subscriptions a Client has, each growth of their stranded queue is one
// line. One that shrinks is none.
func TestStrandedMessagesAreSaidOnceForAClient(t *testing.T) {
	t.Parallel()
	url, strategy := testbroker.URL(t), rig.Shared(t, topology.Quorum)
	stranded, policy, logs := strategy.Prefix+".stranded", backoff.List{time.Second}, &rig.Logs{}
	client, sub := rig.OpenSubscriber(t, url, strategy, policy, topology.WithLogger(logs), topology.WithStrandedPause(50*time.Millisecond))
	queues := []string{testbroker.Queue(t), testbroker.Queue(t)}
	for _, queue := range queues {
		rig.RemovePlan(t, url, strategy, queue, policy)
		require.NoError(t, sub.SubscribeInitialize(queue))
	}
	rig.Fill(t, url, stranded, 2)
	subscribe := func() {
		for _, queue := range queues {
			_, err := sub.Subscribe(t.Context(), queue)
			require.NoError(t, err)
		}
	}
	said := func(want ...int) {
		t.Helper()
		rig.WaitFor(t, "the log to say it", func() bool { return len(logs.Saying("Messages are stranded")) >= len(want) })
		lines := logs.Saying("Messages are stranded")
		require.Len(t, lines, len(want))
		for i, n := range want {
			require.Contains(t, lines[i], fmt.Sprintf("messages:%d queue:%s", n, stranded))
		}
	}
	rig.WaitFor(t, "two messages", func() bool { return testbroker.Depth(t, url, stranded) == 2 })
	subscribe()
	said(2)
	rig.Fill(t, url, stranded, 1)
	said(2, 3)
	ch := testbroker.Channel(t, url)
	_, err := ch.QueuePurge(stranded, false)
	require.NoError(t, err)
	rig.WaitFor(t, "none", func() bool { return testbroker.Depth(t, url, stranded) == 0 })
	require.NoError(t, client.Close())
	said(2, 3)
}
