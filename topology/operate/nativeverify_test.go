package operate_test

import (
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/management"
	"github.com/millpond-go/millpond/topology/operate"
)

// Given a queue without arguments for its retries, when a policy lets it hold rejected messages,
// then a service with the management API consumes it, and its messages wait as the policy says.
// When the policy is gone, or is another one, then Verify finds that critical and the next
// Subscribe is refused.
func TestNativeUnderAPolicy(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "")
	strategy, _ := rig.Native(t, node.URL(), 300*time.Millisecond, 300*time.Millisecond)
	const queue = "orders"
	set := func(least int) {
		underPolicy(t, api, queue, map[string]any{
			"delayed-retry-type": "failed", "delayed-retry-min": least, "delayed-retry-max": 300,
			"delivery-limit": 1 << 30,
		})
	}
	policy := backoff.Constant{Interval: 300 * time.Millisecond, Retries: 2}
	set(300)
	var calls rig.Timeline
	r := native(t, rig.Config{
		URL: node.URL(), Queue: queue, Strategy: strategy, Policy: policy, Handle: calls.Fail,
	}, api, deadLettersOf(queue))
	r.Publish(rig.Named("fails"))
	rig.RequireDead(t, r.DeadLetter(), "exhausted", "3")
	plan, err := topology.PlanFor(strategy, queue, policy)
	require.NoError(t, err)
	calls.RequireGaps(t, plan, 300*time.Millisecond, 300*time.Millisecond)
	r.Stop()

	o := rig.OpenOperator(t, node.URL(), operate.WithManagement(api))
	verify := func() (critical []string) {
		for _, f := range rig.Verify(t, o, plan) {
			if f.Severity == operate.Critical {
				critical = append(critical, f.String())
			}
			require.NotContains(t, f.String(), "retries wait in their wait queues all the same")
		}
		return critical
	}
	require.Empty(t, verify())
	set(100)
	testbroker.WaitFor(t, "the shorter delay to be found", rig.Patience, func() bool {
		return strings.Contains(strings.Join(verify(), "\n"), "it holds them for 100ms to 300ms")
	})
	testbroker.Remove(t, api, "policies", "/", queue)
	testbroker.WaitFor(t, "the missing policy to be found", rig.Patience, func() bool {
		return strings.Contains(strings.Join(verify(), "\n"), "it holds none")
	})
	cfg := rig.QueueConfig(node.URL())
	cfg.Queue.Arguments = deadLettersOf(queue)
	client := rig.OpenClient(t, node.URL(), strategy, topology.WithManagement(management.At(api)))
	require.ErrorContains(t, rig.SubscribeError(t, client, cfg, queue, policy), "it holds none")
}

// underPolicy sets the policy of a queue, whose own arguments name its dead-letter queue alone.
func underPolicy(t *testing.T, api, queue string, definition map[string]any) {
	t.Helper()
	testbroker.SetPolicy(t, api, "policies", "/", queue, "^"+queue+"$", definition)
}

// native starts a service on a queue under a policy.
func native(t *testing.T, c rig.Config, api string, args amqp.Table) *rig.Service {
	t.Helper()
	c.Keep, c.Configure = true, rig.WithQueue(args)
	c.ClientOptions = []topology.Option{topology.WithManagement(management.At(api))}
	return rig.Start(t, c)
}

// deadLettersOf are the arguments of a quorum queue whose drops go to its dead-letter queue.
func deadLettersOf(queue string) amqp.Table {
	return amqp.Table{
		"x-queue-type": "quorum", "x-dead-letter-exchange": "",
		"x-dead-letter-routing-key": queue + ".dlq",
	}
}

// Given a message that fails, when the policy that lets its queue hold it is removed, then the
// service that rejected it says so when the message comes back at once, and later attempts wait in
// a wait queue. Of two services each may reject it once before that: neither rejects it again and
// again.
func TestNativeNoticesThatItsPolicyIsGone(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "")
	strategy, _ := rig.Native(t, node.URL(), time.Second, time.Second)
	for name, services := range map[string]int{"one service": 1, "two services": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queue := testbroker.Queue(t)
			underPolicy(t, api, queue, map[string]any{
				"delayed-retry-type": "failed", "delayed-retry-min": 1000, "delayed-retry-max": 1000,
			})
			var calls rig.Timeline
			var running []*rig.Service
			for range services {
				running = append(running, native(t, rig.Config{
					URL: node.URL(), Queue: queue, Strategy: strategy,
					Policy: backoff.Constant{Interval: time.Second, Retries: 7},
					Handle: func(*message.Message) error {
						if calls.Add() == 2 {
							testbroker.Remove(t, api, "policies", "/", queue)
						}
						return rig.ErrFailed
					},
				}, api, deadLettersOf(queue)))
			}
			running[0].Publish(rig.Named("fails"))
			rig.RequireDead(t, running[0].DeadLetter(), "exhausted", "8")
			all, short := calls.All(), 0
			for i := range all[1:] {
				if short++; all[i+1]-all[i] >= time.Second-rig.Grace {
					short = 0
				}
				require.LessOrEqual(t, short, services, "at once, one after the other: %v", all)
			}
			said := 0
			for _, s := range running {
				said += s.Logs.Said("The queue does not hold rejected messages any more")
			}
			require.Positive(t, said)
		})
	}
}

// Given a queue that a policy lets hold rejected messages, when the management API is silent after
// a lost connection, so that no policy can be seen, then the service consumes all the same. It says
// so once, and failed messages wait in a wait queue. Without a first look at the policy it does not
// begin.
func TestNativeConsumesWhileItsPolicyCannotBeSeen(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "")
	strategy, _ := rig.Native(t, node.URL(), 300*time.Millisecond, 300*time.Millisecond)
	const queue = "orders"
	underPolicy(t, api, queue, map[string]any{
		"delayed-retry-type": "failed", "delayed-retry-min": 300, "delayed-retry-max": 300,
	})
	broker, seen := testbroker.NewProxy(t, node.URL()), testbroker.NewProxy(t, api)
	management := topology.WithManagement(management.At(seen.URL()))
	policy := backoff.Constant{Interval: 300 * time.Millisecond, Retries: 1}
	var mu sync.Mutex
	var waited []bool // in a wait queue, before the second attempts
	r := rig.Start(t, rig.Config{
		URL: broker.URL(), PublisherURL: node.URL(), AdminURL: node.URL(), Queue: queue, Keep: true,
		Strategy: strategy, Policy: policy, ClientOptions: []topology.Option{management},
		Configure: func(cfg *wamqp.Config) {
			rig.QuickReconnect(cfg)
			rig.WithQueue(deadLettersOf(queue))(cfg)
		},
		Handle: func(msg *message.Message) error {
			if raw, _ := topology.Received(msg.Context()); middleware.Attempt(msg.Context()) > 1 {
				mu.Lock()
				defer mu.Unlock()
				_, passed := raw.Headers["x-death"]
				waited = append(waited, passed)
			}
			return rig.ErrFailed
		},
	})
	r.URL = node.URL()
	r.Publish(rig.Named("before"))
	rig.RequireDead(t, r.DeadLetter(), "exhausted", "2")
	seen.Refuse(true)
	seen.Cut()
	for range 2 {
		before := r.Logs.Said("Consuming")
		broker.Cut()
		rig.WaitFor(t, "the next consumer", func() bool { return r.Logs.Said("Consuming") > before })
	}
	r.Publish(rig.Named("meanwhile"))
	rig.RequireDead(t, r.DeadLetter(), "exhausted", "2")
	r.Stop()
	require.Equal(t, []bool{false, true}, waited)
	require.Equal(t, 1, r.Logs.Said("The management API does not show the policies of the queue"))

	cfg := rig.QueueConfig(node.URL())
	cfg.Queue.Arguments = deadLettersOf(queue)
	client := rig.OpenClient(t, node.URL(), strategy, management)
	require.ErrorContains(t, rig.SubscribeError(t, client, cfg, queue, policy), "it holds none")
}

// Given a message that fails, when a policy lowers the delivery limit of its queue, or a policy
// that has raised it is removed, then the message is not gone.
func TestNativeUnderAnotherDeliveryLimit(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "")
	strategy, args := rig.Native(t, node.URL(), 100*time.Millisecond, 100*time.Millisecond)
	for name, c := range map[string]struct {
		before, after, failures int
		reason                  any
	}{
		// Messages are not rejected more often than the default limit allows.
		"raised": {before: 1 << 20, after: 20, failures: 61, reason: "exhausted"},
		// The broker has dead-lettered it, so that it has no reason.
		"lowered": {before: 1 << 20, after: 3, failures: 0, reason: nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queue := testbroker.Queue(t)
			limit := func(n int) { underPolicy(t, api, queue, map[string]any{"delivery-limit": n}) }
			limit(c.before)
			var calls rig.Timeline
			own := maps.Clone(args)
			maps.Copy(own, deadLettersOf(queue))
			r := native(t, rig.Config{
				URL: node.URL(), Queue: queue, Strategy: strategy,
				Policy: backoff.Constant{Interval: 100 * time.Millisecond, Retries: 60},
				Handle: func(*message.Message) error {
					if calls.Add() == 8 {
						limit(c.after)
					}
					return rig.ErrFailed
				},
			}, api, own)
			r.Publish(rig.Named("fails"))
			dead := r.DeadLetter()
			require.Equal(t, "fails", string(dead.Body))
			require.Equal(t, c.reason, dead.Headers[header.DeadReason])
			if c.failures > 0 {
				require.Equal(t, c.failures, calls.Count())
			}
			r.RequireNothingLeft(0)
		})
	}
}
