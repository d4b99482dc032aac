package e2e_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
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
