package operate_test

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

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
			_, err := b.ch.QueueDeclare(name, true, false, false, false, args)
			require.NoError(t, err)
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
				_, err = other.Consume(name, "", false, false, false, false, nil)
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
