package e2e_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// Given a plan whose queues and exchanges are deleted while they are empty, then each is
// declared again and used: wait queues and the dead-letter queue (T6).
func TestVanishedQueuesAreDeclaredAgain(t *testing.T) {
	t.Parallel()
	rig.OnEachStrategy(t, func(t *testing.T, strategy topology.Strategy) {
		url, queue := testbroker.URL(t), testbroker.Queue(t)
		ch := testbroker.Channel(t, url)
		policy := backoff.List{time.Second, time.Second}
		plan, err := strategy.Plan(queue, policy)
		require.NoError(t, err)
		var mu sync.Mutex
		var ended time.Time
		var waited []time.Duration
		r := rig.Start(t, rig.Config{
			URL: url, Queue: queue, Strategy: strategy, Policy: policy,
			Handle: func(*message.Message) error {
				mu.Lock()
				defer mu.Unlock()
				if !ended.IsZero() {
					waited = append(waited, time.Since(ended))
				}
				for _, e := range plan.Exchanges {
					if err := ch.ExchangeDelete(e.Name, false, false); err != nil {
						t.Error(err)
					}
				}
				for _, q := range plan.Queues {
					if _, err := ch.QueueDelete(q.Name, false, false, false); err != nil {
						t.Error(err)
					}
				}
				ended = time.Now()
				return rig.ErrFailed
			},
		})
		r.Send("here")
		dead := rig.Take(t, url, plan.Dead.RoutingKey)
		require.Equal(t, "here", string(dead.Body), dead.Headers)
		// The waits count from the end of the handler, because its deletions take a busy
		// broker seconds.
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, waited, 2)
		for _, d := range waited {
			require.GreaterOrEqual(t, d, time.Second-rig.Grace)
			require.LessOrEqual(t, d, time.Second+rig.Ceiling)
		}
		t.Logf("waited %v", waited)
		// The wait queue or its exchange twice, and the dead-letter queue.
		lines := r.Logs.Saying("A part of the plan had vanished and was declared again")
		require.Len(t, lines, 3)
		require.Regexp(t, "^error ", lines[0])
		require.Contains(t, lines[2], fmt.Sprintf("vanished:queue %q", plan.Dead.RoutingKey))
	})
}

// Not promised: a deleted wait queue takes its messages along (F10).
func TestDeletedWaitQueueLosesWhatIsInside(t *testing.T) {
	t.Parallel()
	for _, kind := range []topology.QueueType{topology.Quorum, topology.Classic} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			const delay = 2 * time.Second
			var calls rig.Timeline
			r := rig.Start(t, rig.Config{
				Strategy: topology.PerQueue{Type: kind}, Policy: backoff.List{delay}, Handle: calls.Fail,
			})
			r.Send("gone")
			waits := r.Plan.Queues[0].Name
			rig.AwaitDepth(t, r.URL, waits, 1)
			lost, err := testbroker.Channel(t, r.URL).QueueDelete(waits, false, false, false)
			require.NoError(t, err)
			require.Equal(t, 1, lost)
			<-time.After(2 * delay)
			require.Equal(t, 1, calls.Count())
			r.RequireNothingLeft(0)
		})
	}
}

// Given messages in shared wait queues, when their main queue is deleted, then they end in the
// stranded queue with all their headers. Messages of another queue behind them are on time (T8).
func TestVanishedDestinationStrandsOnlyItsOwn(t *testing.T) {
	t.Parallel()
	const gone, healthy = 200, 100 // more than the 32 that stop a wait queue (F5)
	for name, strategy := range rig.Strategies {
		if !rig.Sharing[name] {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var waits, back rig.Timeline
			c := rig.Config{
				URL: testbroker.URL(t), Strategy: strategy(t), Configure: rig.Prefetch(100),
				// Longer than it takes until all wait on a broker that ten tests share. A
				// message that returned earlier would be dead-lettered.
				Policy: backoff.List{30 * time.Second},
			}
			vanishing, other := c, c
			vanishing.Handle = rig.Fail
			vanishing.Outer = []message.HandlerMiddleware{func(h message.HandlerFunc) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) {
					produced, err := h(msg)
					if err == nil {
						waits.Add()
					}
					return produced, err
				}
			}}
			first := rig.Start(t, vanishing)
			rig.Fill(t, c.URL, first.Queue, gone)
			rig.WaitFor(t, "all to wait", func() bool { return waits.Count() == gone })
			first.Stop()
			rig.DeleteQueue(t, c.URL, first.Queue)

			other.Handle = func(msg *message.Message) error {
				err := rig.FailFirst(msg)
				if err == nil {
					back.Add()
				}
				return err
			}
			second := rig.Start(t, other)
			rig.Fill(t, c.URL, second.Queue, healthy)
			rig.WaitFor(t, "the healthy messages to return", func() bool { return back.Count() == healthy })
			var stranded string
			for _, q := range rig.QueueNames(first.Plan) {
				if strings.HasSuffix(q, ".stranded") {
					stranded = q
				}
			}
			rig.AwaitDepth(t, c.URL, stranded, gone)
			one := rig.Take(t, c.URL, stranded)
			words := strings.Split(one.RoutingKey, ".")
			require.Equal(t, first.Queue, words[len(words)-1])
			require.Equal(t, first.Queue, one.Headers[header.Queue])
			require.Equal(t, "1", one.Headers[header.Failures])
			require.Zero(t, rig.Waiting(t, c.URL, first.Plan))
		})
	}
}
