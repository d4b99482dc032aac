package e2e_test

import (
	"slices"
	"strings"
	"sync"
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

// Given a policy with jitter, when two hundred messages fail, then they spread over all wait
// steps that the plan shows. None comes back before its delay, and the broker has the queues of
// the plan only (P5).
func TestJitterSpreadsOverPlannedWaitSteps(t *testing.T) {
	t.Parallel()
	const messages = 200
	node := testbroker.Private(t)
	policy := backoff.FullJitter{Policy: backoff.List{2 * time.Second}}
	const half = 500 * time.Millisecond
	steps := []time.Duration{half, 2 * half, 3 * half, 4 * half}
	for name, strategy := range rig.Strategies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			strategy := strategy(t)
			var mu sync.Mutex
			asked, on, failedAt := map[string]time.Duration{}, map[string]int{}, map[string]time.Time{}
			handled := 0
			r := rig.Start(t, rig.Config{
				URL: node.URL(), Strategy: strategy, Policy: policy, Configure: rig.QuorumQueue,
				Queue: strings.ReplaceAll(name, " ", "-"), SubscriberOptions: rig.InFlight(16),
				Handle: func(msg *message.Message) error {
					body := string(msg.Payload)
					mu.Lock()
					defer mu.Unlock()
					if middleware.Attempt(msg.Context()) == 1 {
						failedAt[body] = time.Now()
						return rig.ErrFailed
					}
					delay, err := time.ParseDuration(msg.Metadata.Get(header.Delay))
					if err != nil {
						t.Error(err)
					}
					if waited := time.Since(failedAt[body]); waited < delay-rig.Grace {
						t.Errorf("message %s waited %v, its delay is %v", body, waited, delay)
					}
					handled++
					asked[body] = delay
					raw, _ := topology.Received(msg.Context())
					queue, _ := raw.Headers["x-first-death-queue"].(string)
					on[queue]++
					return nil
				},
			})
			planned := make([]time.Duration, 0, len(steps))
			for _, step := range r.Plan.WaitSteps {
				planned = append(planned, step.Delay)
				require.Contains(t, r.Plan.String(), " "+step.Delay.String()+" ")
			}
			if r.Plan.Levels == nil {
				require.Equal(t, steps, planned)
			}
			first := strings.Replace(rig.QueueNames(r.Plan)[0], ".level.", ".wait.", 1)
			prefix, _, _ := strings.Cut(first, ".wait.")
			queues := func() []string {
				all := strings.Fields(node.Ctl(t, "list_queues", "--silent", "name"))
				all = slices.DeleteFunc(all, func(q string) bool {
					return !strings.HasPrefix(q+".", r.Queue+".") && !strings.HasPrefix(q, prefix+".")
				})
				slices.Sort(all)
				return all
			}
			want := slices.Sorted(slices.Values(append(rig.QueueNames(r.Plan), r.Queue)))
			require.Equal(t, want, queues())

			rig.Fill(t, r.URL, r.Queue, messages)
			rig.WaitFor(t, "all to return", func() bool {
				mu.Lock()
				defer mu.Unlock()
				return handled == messages
			})
			r.Stop()
			require.Equal(t, want, queues(), "no queue that was not planned")
			t.Logf("came back from %v", on)
			if r.Plan.Levels != nil { // The delays are exact, by any level.
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
			for i, step := range steps {
				n := 0
				for _, delay := range asked {
					if delay <= step && (i == 0 || delay > steps[i-1]) {
						n++
					}
				}
				require.Equal(t, n, on[r.Plan.Queues[i].Name], "rounded up to %v", step)
				require.Positive(t, n, "wait step %v", step)
			}
		})
	}
}
