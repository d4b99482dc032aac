package topology_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testbench"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// The same dead letters listed fifty times: all still there, in their order.
func TestDeadLettersOutliveFiftyLooks(t *testing.T) {
	t.Parallel()
	const dead, looks = 5, 50
	for name, strategy := range strategies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, rigConfig{
				strategy: strategy(t), policy: backoff.List{100 * time.Millisecond},
				handler: func(*message.Message) ([]*message.Message, error) { return nil, errFailed },
			})
			fill(t, r.url, r.queue, dead)
			queue := r.plan.Dead.RoutingKey
			testbench.WaitFor(t, "the dead letters", patience, func() bool { return testbench.Depth(t, r.url, queue) == dead })
			var first string
			for look := range looks {
				found, err := r.client.Peek(t.Context(), queue, dead+5)
				require.NoError(t, err)
				var bodies []string
				for _, d := range found {
					bodies = append(bodies, string(d.Body))
					require.Equal(t, "2", d.Headers[middleware.DeadFailuresKey])
					require.Error(t, d.Ack(false), "a copy cannot be acked")
				}
				require.Len(t, bodies, dead, "look %d", look+1)
				if look == 0 {
					first = strings.Join(bodies, " ")
				}
				require.Equal(t, first, strings.Join(bodies, " "), "look %d", look+1)
			}
			found, err := r.client.Peek(t.Context(), queue, 2)
			require.NoError(t, err)
			require.Len(t, found, 2)
			for range dead {
				d := take(t, r.url, queue)
				require.Contains(t, first, string(d.Body))
			}
			depth(t, r.url, queue, 0)
		})
	}
}

// On 3.10 a quorum queue mixed up more than 32 messages that were given back
// together.
func TestPeekAtManyKeepsTheirOrder(t *testing.T) {
	t.Parallel()
	url, queue := testbench.URL(t), testbench.Queue(t)
	policy := backoff.List{time.Second}
	client, plan := operator(t, url, queue, topology.PerQueue{}, policy)
	provision(t, url, client, queue, policy)
	fill(t, url, plan.Dead.RoutingKey, 100)
	bodies := func() string {
		found, err := client.Peek(t.Context(), plan.Dead.RoutingKey, 100)
		require.NoError(t, err)
		require.Len(t, found, 100)
		var all []string
		for _, d := range found {
			all = append(all, string(d.Body))
		}
		return strings.Join(all, " ")
	}
	require.Equal(t, bodies(), bodies())
}

// A dead-letter queue with arguments of the user's beside ours may be looked at
// just as often.
func TestPeekKnowsTheArgumentsOfTheStrategy(t *testing.T) {
	t.Parallel()
	url, queue := testbench.URL(t), testbench.Queue(t)
	policy := backoff.List{time.Second}
	client, plan := operator(t, url, queue, topology.PerQueue{Dead: topology.DeadLetters{Arguments: amqp.Table{"x-max-length": int64(10)}}}, policy)
	provision(t, url, client, queue, policy)
	fill(t, url, plan.Dead.RoutingKey, 1)
	for range 30 {
		found, err := client.Peek(t.Context(), plan.Dead.RoutingKey, 1)
		require.NoError(t, err)
		require.Len(t, found, 1)
	}
}

// On an adopted dead-letter queue with the limit of 4.0, Peek refuses to bring
// the messages nearer to it; where that limit cannot matter, it looks.
func TestPeekRefusesToDelete(t *testing.T) {
	t.Parallel()
	node, api := testbench.Managed(t, "")
	url := node.URL()
	ch := testbench.Channel(t, url)
	declare := func(name string, args amqp.Table) {
		_, err := ch.QueueDeclare(name, true, false, false, false, args)
		require.NoError(t, err)
		fill(t, url, name, 2)
	}
	declare("adopted", amqp.Table{"x-queue-type": "quorum", "x-max-length": int64(100)})
	declare("limited", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(5)})
	declare("raised", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1 << 30), "x-max-length": int64(100)})
	declare("plain", amqp.Table{"x-queue-type": "classic"})
	declare("old", nil)
	counts, defaults := !strings.HasPrefix(node.Version(), "4.3"), strings.HasPrefix(node.Version(), "4.")

	policy := backoff.List{time.Second}
	blind, _ := operator(t, url, "orders", topology.PerQueue{}, policy)
	seeing, _ := operator(t, url, "orders", topology.PerQueue{}, policy, topology.WithManagement(api))
	provisioned, _ := operator(t, url, "orders", topology.PerQueue{}, policy, topology.WithPreProvisioned())
	for _, c := range []struct {
		who    string
		client *topology.Client
		queue  string
		unsafe bool
	}{
		{"blind", blind, "adopted", counts}, {"seeing", seeing, "adopted", counts && defaults}, {"provisioned", provisioned, "adopted", counts},
		{"blind", blind, "limited", counts}, {"seeing", seeing, "limited", counts},
		{"blind", blind, "raised", counts}, {"seeing", seeing, "raised", false},
		{"blind", blind, "plain", false}, {"seeing", seeing, "plain", false}, {"provisioned", provisioned, "plain", counts},
		{"seeing", seeing, "old", false},
	} {
		for look := range 8 {
			found, err := c.client.Peek(t.Context(), c.queue, 10)
			what := fmt.Sprintf("%s at %s, look %d", c.who, c.queue, look+1)
			if c.unsafe {
				require.ErrorIs(t, err, topology.ErrUnsafePeek, what)
				continue
			}
			require.NoError(t, err, what)
			require.Len(t, found, 2, what)
		}
		depth(t, url, c.queue, 2)
	}
	_, err := blind.Peek(t.Context(), "old", 1)
	t.Logf("%s: a classic queue without arguments, no management API: %v", node.Version(), err)
}

func TestPurgeOnlyWhenAskedTwice(t *testing.T) {
	t.Parallel()
	url, queue := testbench.URL(t), testbench.Queue(t)
	policy := backoff.List{time.Hour}
	client, plan := operator(t, url, queue, topology.PerQueue{}, policy)
	removePlan(t, url, topology.PerQueue{}, queue, policy)
	provision(t, url, client, queue, policy)
	fill(t, url, plan.Dead.RoutingKey, 7)
	waits := queue + ".wait.1h"
	fill(t, url, waits, 3)
	for _, confirm := range []string{"", "yes", queue} {
		_, err := client.Purge(t.Context(), plan.Dead.RoutingKey, confirm)
		require.ErrorIs(t, err, topology.ErrNotConfirmed)
	}
	_, err := client.Purge(t.Context(), "", "")
	require.ErrorIs(t, err, topology.ErrNotConfirmed)
	_, err = client.Purge(t.Context(), queue+".nobody", queue+".nobody")
	require.ErrorContains(t, err, "NOT_FOUND")
	n, err := client.Purge(t.Context(), plan.Dead.RoutingKey, plan.Dead.RoutingKey)
	require.NoError(t, err)
	require.Equal(t, 7, n)
	depth(t, url, plan.Dead.RoutingKey, 0)
	depth(t, url, waits, 3) // untouched
}

// depth waits until a queue counts n messages: a quorum queue counts late.
func depth(t testing.TB, url, queue string, n int) {
	t.Helper()
	testbench.WaitFor(t, fmt.Sprintf("%d messages in %s", n, queue), patience, func() bool { return testbench.Depth(t, url, queue) == n })
}
