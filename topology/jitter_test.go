package topology_test

import (
	"slices"
	"strings"
	"sync"
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

// Two hundred messages fail with jitter: the plan shows the wait steps, the messages
// spread over all of them, none comes back before the delay that was drawn for it,
// and the broker has the queues of the plan and no other (P5).
func TestJitterSpreadsOverPlannedRungs(t *testing.T) {
	t.Parallel()
	const messages = 200
	node := testbroker.Private(t)
	policy := backoff.FullJitter{Policy: backoff.List{2 * time.Second}}
	rungs := []time.Duration{500 * time.Millisecond, time.Second, 1500 * time.Millisecond, 2 * time.Second}
	for name, strategy := range strategies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			strategy := strategy(t)
			var mu sync.Mutex
			asked, on, failedAt := map[string]time.Duration{}, map[string]int{}, map[string]time.Time{}
			handled := 0
			r := newRig(t, rigConfig{
				url: node.URL(), strategy: strategy, policy: policy, config: quorumQueue,
				queue:      strings.ReplaceAll(name, " ", "-"),
				subOptions: []topology.SubscriberOption{topology.WithConcurrency(16)},
				handler: func(msg *message.Message) ([]*message.Message, error) {
					body := string(msg.Payload)
					mu.Lock()
					defer mu.Unlock()
					if middleware.Attempt(msg.Context()) == 1 {
						failedAt[body] = time.Now()
						return nil, errFailed
					}
					delay, err := time.ParseDuration(msg.Metadata.Get(header.Delay))
					if err != nil {
						t.Error(err)
					}
					if waited := time.Since(failedAt[body]); waited < delay-grace {
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
			for _, rung := range r.plan.WaitSteps {
				planned = append(planned, rung.Delay)
				require.Contains(t, r.plan.String(), " "+rung.Delay.String()+" ")
			}
			if r.plan.Levels == nil {
				require.Equal(t, rungs, planned)
			}
			prefix, _, _ := strings.Cut(strings.Replace(names(r.plan)[0], ".level.", ".wait.", 1), ".wait.")
			queues := func() []string {
				var found []string
				for line := range strings.Lines(node.Ctl(t, "list_queues", "--silent", "name")) {
					if q := strings.TrimSpace(line); q == r.queue || strings.HasPrefix(q, r.queue+".") || strings.HasPrefix(q, prefix+".") {
						found = append(found, q)
					}
				}
				slices.Sort(found)
				return found
			}
			want := slices.Sorted(slices.Values(append(names(r.plan), r.queue)))
			require.Equal(t, want, queues())

			fill(t, r.url, r.queue, messages)
			testbroker.WaitFor(t, "all are back", patience, func() bool { mu.Lock(); defer mu.Unlock(); return handled == messages })
			r.stop()
			require.Equal(t, want, queues(), "no queue more than were planned")
			t.Logf("came back from %v", on)
			if r.plan.Levels != nil { // exact, by any level
				entered := map[string]int{}
				for _, delay := range asked {
					route, err := r.plan.Route(topology.Retry{Delay: delay})
					require.NoError(t, err)
					require.LessOrEqual(t, route.Delay, delay+100*time.Millisecond)
					waits, _ := walk(t, r.plan, route)
					entered[waits[0].Name]++
				}
				require.Equal(t, entered, on)
				return
			}
			for i, rung := range r.plan.WaitSteps {
				n := 0
				for _, delay := range asked {
					if delay <= rung.Delay && (i == 0 || delay > rungs[i-1]) {
						n++
					}
				}
				require.Equal(t, n, on[r.plan.Queues[i].Name], "rounded up to %v", rung.Delay)
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
