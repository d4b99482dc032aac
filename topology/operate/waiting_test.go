package operate_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// wait publishes n messages that failed to a wait queue of the plan. Their priority
// is 9, lowered while they wait.
func (b *box) wait(q topology.Queue, n int) {
	b.t.Helper()
	b.failed(q.Name, n, header.RetryState.Headers, func(
		i int, notes *header.RetryState, m *amqp.Publishing,
	) {
		*notes = header.RetryState{
			Failures: 1, Delay: q.Delay, Error: "connection refused", Class: header.ClassRetryable,
			OriginRoutingKey: b.queue, NotBefore: time.Now().Add(24 * time.Hour),
			History: []header.AttemptError{
				{Attempt: 1, At: time.Now(), Error: "connection refused"},
			},
		}
		m.MessageId, m.Body, m.Priority = fmt.Sprint(q.Delay, "-", i), fmt.Append(nil, i), 4
		m.Headers = amqp.Table{"tenant": int32(7), keys.Priority: "9"}
	})
}

// waitMinuteAndHour lets messages wait for a minute, and others for an hour.
func (b *box) waitMinuteAndHour(minute, hour int) {
	b.t.Helper()
	b.delayBy(time.Minute, time.Hour)
	b.wait(b.waits(time.Minute), minute)
	b.wait(b.waits(time.Hour), hour)
}

// waits returns the wait queue of a delay.
func (b *box) waits(delay time.Duration) topology.Queue {
	b.t.Helper()
	i := slices.IndexFunc(b.plan.Queues, func(q topology.Queue) bool { return q.Delay == delay })
	require.GreaterOrEqual(b.t, i, 0, "a wait queue of %v", delay)
	return b.plan.Queues[i]
}

// Messages that are looked at again and again return when they are due, in their
// order: none early, none lost.
func TestLookingDoesNotChangeTheWait(t *testing.T) {
	forTypes(t, func(t *testing.T, b *box) {
		const n, delay = 100, 6 * time.Second
		b.delayBy(delay)
		began := time.Now()
		b.wait(b.waits(delay), n)
		looks := 0
		for time.Since(began) < delay+time.Second {
			found, err := b.Waiting(t.Context(), b.plan, operate.Filter{})
			require.NoError(t, err)
			if looks++; looks == 1 && time.Since(began) < delay {
				require.Len(t, found, n)
			}
		}
		require.Len(t, b.drain(b.queue, n), n, "each once")
		took := time.Since(began)
		require.Less(t, took, delay+20*time.Second)
		t.Logf("%d looks; all %d are back after %v", looks, n, took.Round(time.Millisecond))
	})
}

// A list says all that is known of messages that wait. Chosen ones are released with their retry
// state, or become dead letters. The others wait on.
func TestReleaseAndCancel(t *testing.T) {
	forTypes(t, func(t *testing.T, b *box) {
		b.waitMinuteAndHour(3, 50)
		hour := b.waits(time.Hour)
		found, err := b.Waiting(t.Context(), b.plan, operate.Filter{})
		require.NoError(t, err)
		require.Len(t, found, 53)
		w := found[3]
		require.WithinDuration(t, time.Now().Add(24*time.Hour), w.Due, rig.Patience)
		w.Due = time.Time{}
		require.Equal(t, operate.Waiter{
			ID: "1h0m0s-0", WaitQueue: hour.Name, Delay: time.Hour, Queue: b.queue,
			Failures: 1, Error: "connection refused", Class: header.ClassRetryable, Size: 1,
		}, w)
		foreign := amqp.Table{header.Queue: "another queue"}
		b.publish(hour.Name, amqp.Publishing{MessageId: "other", Headers: foreign})

		one := operate.MoveOptions{Filter: operate.Filter{IDs: []string{"1h0m0s-7", "other"}}}
		want := operate.Progress{Total: 53, Seen: 53, Chosen: 1, Foreign: 1} // of its own queue
		for _, one.DryRun = range []bool{true, false} {
			if !one.DryRun {
				want.Done = 1
			}
			require.Equal(t, want, b.ok(b.Release(t.Context(), b.plan, one)))
		}
		d := b.drain(b.queue, 1)[0]
		require.Equal(t, "7", string(d.Body))
		require.NotContains(t, d.Headers, keys.NotBefore, "or it would wait again")
		require.Equal(t, "1", d.Headers[keys.Failures], "its attempts go on")
		require.Equal(t, int32(7), d.Headers["tenant"])
		require.Equal(t, uint8(9), d.Priority)

		ours := operate.MoveOptions{Filter: operate.Filter{
			Delay: time.Hour, Match: func(l operate.Letter) bool { return l.Queue == b.queue },
		}}
		for _, ours.Limit = range []int{9, 0} {
			b.ok(b.Cancel(t.Context(), b.plan, ours))
			b.depth(b.dead, 49-40*min(ours.Limit, 1))
		}
		for _, no := range []operate.MoveOptions{{To: b.dead}, {Named: true}, {Edit: repair}} {
			_, err := b.Release(t.Context(), b.plan, no)
			require.ErrorIs(t, err, operate.ErrInvalidOptions)
		}
		l := b.letters(operate.Filter{})[0]
		require.Equal(t, header.ReasonCancelled, l.Reason)
		require.Equal(t, "connection refused", l.Error)
		require.Equal(t, 1, l.Attempts)
		require.Len(t, l.History, 1)
		require.NotContains(t, l.Delivery.Headers, header.Queue)
		require.NotContains(t, l.Delivery.Headers, keys.Priority)
		require.Equal(t, uint8(9), l.Delivery.Priority)
		require.Len(t, b.bodies(hour.Name, 1), 1)
		require.Len(t, b.bodies(b.waits(time.Minute).Name, 3), 3)
	})
}

// More than can be taken at once is left alone.
func TestLongWaitQueueIsRefused(t *testing.T) {
	forTypes(t, func(t *testing.T, b *box) {
		b.waitMinuteAndHour(1, 5001)
		found, err := b.Waiting(t.Context(), b.plan, operate.Filter{})
		require.ErrorIs(t, err, operate.ErrUnsafe)
		require.Len(t, found, 1, "of the other queue")
		p, err := b.Release(t.Context(), b.plan, operate.MoveOptions{
			Filter: operate.Filter{IDs: []string{"1h0m0s-1"}},
		})
		require.ErrorIs(t, err, operate.ErrUnsafe)
		require.Zero(t, p.Done)
		b.depth(b.waits(time.Hour).Name, 5001)
	})
}

// A wait queue is deleted only if it is proven empty. A queue stays that is consumed, or that holds
// messages: ready, unacked or waiting for their queue.
func TestPruneDeletesNothingWithAMessage(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "")
	b := newBoxAt(t, node.URL(), "orders", topology.PerQueue{}, operate.WithManagement(api))
	names := []string{b.plan.Queues[0].Name, "missing"}
	for _, kind := range []string{"quorum", "classic"} {
		for _, what := range []string{"empty", "ready", "unacked", "consumed"} {
			name := kind + "." + what
			names = append(names, name)
			args := amqp.Table{"x-queue-type": kind}
			if kind == "quorum" {
				// as wait queues have it: prune takes a message to see that there is none
				args["x-delivery-limit"] = int64(1 << 30)
			}
			rig.DeclareQueue(t, b.url, name, args)
			if what == "ready" || what == "unacked" {
				b.publish(name, amqp.Publishing{Body: []byte("x")})
			}
			other := testbroker.Channel(t, node.URL())
			switch what {
			case "unacked":
				_, ok, err := other.Get(name, false)
				require.NoError(t, err)
				require.True(t, ok)
			case "consumed":
				_, err := other.Consume(name, "", false, false, false, false, nil)
				require.NoError(t, err)
			}
		}
	}
	plans := []topology.Plan{b.plan}
	blind := newBoxAt(t, node.URL(), "orders", topology.PerQueue{})
	for _, refused := range []struct {
		operator *box
		options  operate.PruneOptions
		why      string
	}{
		{b, operate.PruneOptions{}, "it is not stated that no service publishes"},
		{blind, operate.PruneOptions{NobodyPublishes: true}, "name the management API"},
	} {
		refused.options.Queues = []string{"quorum.empty", "classic.empty"}
		results, err := refused.operator.Prune(t.Context(), plans, refused.options)
		require.ErrorIs(t, err, operate.ErrUnsafe)
		for _, r := range results {
			require.False(t, r.Deleted)
			require.Contains(t, r.Why, refused.why)
		}
	}

	results, err := b.Prune(t.Context(), plans,
		operate.PruneOptions{Queues: names, NobodyPublishes: true, Wait: 15 * time.Second})
	require.ErrorIs(t, err, operate.ErrUnsafe)
	why := map[string]string{}
	for _, r := range results {
		require.Equal(t, r.Queue == "quorum.empty" || r.Queue == "classic.empty", r.Deleted, r)
		why[r.Queue] = r.Why
	}
	require.Contains(t, why[names[0]], `the plan of queue "orders" uses it`)
	require.Equal(t, "it does not exist", why["missing"])
	for _, kind := range []string{"quorum", "classic"} {
		require.Equal(t, "1 messages wait in it", why[kind+".ready"])
		// a quorum queue counts a get as a consumer
		require.Regexp(t, "1 messages are in it, unacked or held|it is consumed, by 1",
			why[kind+".unacked"])
		require.Contains(t, why[kind+".consumed"], "it is consumed")
		require.Equal(t, -1, testbroker.Depth(t, node.URL(), kind+".empty"))
		require.Equal(t, 1, testbroker.Depth(t, node.URL(), kind+".ready"))
		require.Equal(t, 0, testbroker.Depth(t, node.URL(), kind+".unacked"))
	}
}
