package e2e_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// A wait queue deleted while it is empty is declared again and used; the DLQ
// likewise (T6).
func TestVanishedQueuesAreDeclaredAgain(t *testing.T) {
	t.Parallel()
	for name, strategy := range rig.Strategies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, queue := testbroker.URL(t), testbroker.Queue(t)
			ch := testbroker.Channel(t, url)
			strategy := strategy(t)
			plan, err := strategy.Plan(queue, []time.Duration{time.Second})
			require.NoError(t, err)
			var mu sync.Mutex
			var ended time.Time
			var waited []time.Duration
			r := rig.Start(t, rig.Config{
				URL: url, Queue: queue, Strategy: strategy,
				Policy: backoff.List{time.Second, time.Second},
				Handler: func(msg *message.Message) ([]*message.Message, error) {
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
					return nil, rig.ErrFailed
				},
			})
			r.Publish(amqp.Publishing{Body: []byte("here")})
			dead := rig.Take(t, url, plan.Dead.RoutingKey)
			require.Equal(t, "here", string(dead.Body), dead.Headers)
			// From the end of the handler, whose own deletions take a busy broker seconds.
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
			rig.WaitFor(t, "the message to wait", func() bool {
				return testbroker.Depth(t, r.URL, waits) == 1
			})
			lost, err := testbroker.Channel(t, r.URL).QueueDelete(waits, false, false, false)
			require.NoError(t, err)
			require.Equal(t, 1, lost)
			<-time.After(2 * delay)
			require.Equal(t, 1, calls.Count())
			r.RequireNothingLeft(0)
		})
	}
}
