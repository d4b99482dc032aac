package docs_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

var _ = leaving

func leaving(
	client *topology.Client, cfg amqp.Config, policy backoff.Policy,
) (*middleware.DelayedRetry, *topology.Subscriber, error) {
	retry, err := middleware.NewDelayedRetry(client, backoff.None{})
	if err != nil {
		return nil, nil, err
	}
	sub, err := client.NewSubscriber(cfg, topology.ForPolicy(policy)) // the policy until now
	return retry, sub, err
}

// Given a queue with wait queues, when its service gets the policy None, then the option of its
// subscriber decides which queues it declares: docs/adopting.md has a table.
func TestQueuesThatLeavingDeclares(t *testing.T) {
	t.Parallel()
	names := func(policies ...backoff.Policy) (found []string) {
		plan, err := topology.PlanFor(topology.PerQueue{}, "orders", policies...)
		require.NoError(t, err)
		for _, q := range plan.Queues {
			found = append(found, q.Name)
		}
		return found
	}
	require.Equal(t, []string{"orders.wait.2s", "orders.wait.5s", "orders.dlq"},
		names(backoff.List{2 * time.Second, 5 * time.Second}))
	require.Equal(t, []string{"orders.wait.1s", "orders.dlq"}, names(backoff.None{}))
	require.Equal(t, []string{
		"orders.wait.1s", "orders.wait.5s", "orders.wait.30s", "orders.wait.2m", "orders.wait.10m",
		"orders.wait.1h", "orders.dlq",
	}, names())
}
