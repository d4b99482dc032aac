package topology_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// Two hundred messages fail with jitter: the plan shows the wait steps, the messages
// spread over all of them, none comes back before the delay that was drawn for it,
// and the broker has the queues of the plan and no other (P5).
func TestJitterSpreadsOverPlannedRungs(t *testing.T) {
	t.Parallel()
	const messages = 200
	node := testbroker.Private(t)
	policy := backoff.FullJitter{Policy: backoff.List{2 * time.Second}}
	rungs := []time.Duration{500 * time.Millisecond, time.Second, 1500 * time.Millisecond, 2 * time.Second}
	for name, strategy := range rig.Strategies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			strategy := strategy(t)
			var mu sync.Mutex
			asked, on, failedAt := map[string]time.Duration{}, map[string]int{}, map[string]time.Time{}
			handled := 0
			r := rig.Start(t, rig.Config{
				URL: node.URL(), Strategy: strategy, Policy: policy, Configure: rig.QuorumQueue,
				Queue:             strings.ReplaceAll(name, " ", "-"),
				SubscriberOptions: []topology.SubscriberOption{topology.WithConcurrency(16)},
				Handler: func(msg *message.Message) ([]*message.Message, error) {
					body := string(msg.Payload)
					mu.Lock()
					defer mu.Unlock()
					if middleware.Attempt(msg.Context()) == 1 {
						failedAt[body] = time.Now()
						return nil, rig.ErrFailed
					}
					delay, err := time.ParseDuration(msg.Metadata.Get(header.Delay))
					if err != nil {
						t.Error(err)
					}
					if waited := time.Since(failedAt[body]); waited < delay-rig.Grace {
						t.Errorf("message %s waited %v, asked were %v", body, waited, delay)
					}
					handled++
					asked[body] = delay
					raw, _ := topology.Received(msg.Context())
					on[waitedIn(raw)]++
					return nil, nil
				},
			})
			planned := make([]time.Duration, 0, len(rungs))
			for _, rung := range r.Plan.WaitSteps {
				planned = append(planned, rung.Delay)
				require.Contains(t, r.Plan.String(), " "+rung.Delay.String()+" ")
			}
			if r.Plan.Levels == nil {
				require.Equal(t, rungs, planned)
			}
			prefix, _, _ := strings.Cut(strings.Replace(rig.QueueNames(r.Plan)[0], ".level.", ".wait.", 1), ".wait.")
			queues := func() []string {
				var found []string
				for line := range strings.Lines(node.Ctl(t, "list_queues", "--silent", "name")) {
					if q := strings.TrimSpace(line); q == r.Queue || strings.HasPrefix(q, r.Queue+".") || strings.HasPrefix(q, prefix+".") {
						found = append(found, q)
					}
				}
				slices.Sort(found)
				return found
			}
			want := slices.Sorted(slices.Values(append(rig.QueueNames(r.Plan), r.Queue)))
			require.Equal(t, want, queues())

			rig.Fill(t, r.URL, r.Queue, messages)
			rig.WaitFor(t, "all are back", func() bool { mu.Lock(); defer mu.Unlock(); return handled == messages })
			r.Stop()
			require.Equal(t, want, queues(), "no queue more than were planned")
			t.Logf("came back from %v", on)
			if r.Plan.Levels != nil { // exact, by any level
				entered := map[string]int{}
				for _, delay := range asked {
					route, err := r.Plan.Route(topology.Retry{Delay: delay})
					require.NoError(t, err)
					require.LessOrEqual(t, route.Delay, delay+100*time.Millisecond)
					waits, _ := rig.Walk(t, r.Plan, route)
					entered[waits[0].Name]++
				}
				require.Equal(t, entered, on)
				return
			}
			for i, rung := range r.Plan.WaitSteps {
				n := 0
				for _, delay := range asked {
					if delay <= rung.Delay && (i == 0 || delay > rungs[i-1]) {
						n++
					}
				}
				require.Equal(t, n, on[r.Plan.Queues[i].Name], "rounded up to %v", rung.Delay)
				require.Positive(t, n, "rung %v", rung.Delay)
			}
		})
	}
}

// waitedIn returns the queue that the broker says the message came from.
func waitedIn(raw amqp.Delivery) string {
	queue, _ := raw.Headers["x-first-death-queue"].(string)
	return queue
}
