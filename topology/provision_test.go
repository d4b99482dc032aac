package topology_test

import (
	"encoding/json"
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

// The exported definitions import into an empty vhost, and a user with exactly
// the exported permissions retries and dead-letters there without declaring
// anything; another one, with the patterns for declaring, declares (T4, T6).
func TestDefinitionsAndPermissionsSuffice(t *testing.T) {
	t.Parallel()
	node := testbench.Private(t)
	policy := backoff.List{200 * time.Millisecond}
	kinds := map[string]topology.Strategy{
		"perqueue": topology.PerQueue{Dead: topology.DeadLetters{Arguments: amqp.Table{"x-max-length": int64(1000)}}},
		"classic":  topology.PerQueue{Type: topology.Classic},
		"shared":   topology.Shared{},
	}
	for name, strategy := range kinds {
		plan, err := strategy.Plan("orders", policy)
		require.NoError(t, err)

		// Provisioned: an empty vhost, the definitions, a user who may only use them.
		vhost := "provisioned-" + name
		node.Ctl(t, "add_vhost", vhost)
		data, err := plan.Definitions(vhost, topology.Queue{Name: "orders", Arguments: amqp.Table{"x-queue-type": "classic"}})
		require.NoError(t, err)
		require.True(t, json.Valid(data))
		importDefinitions(t, node, data)
		serve := func(vhost string, permissions topology.Permissions, options ...topology.Option) {
			admin, user := node.URL()+vhost, "user-"+vhost
			node.Ctl(t, "set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
			node.Ctl(t, "add_user", user, "secret")
			node.Ctl(t, "set_permissions", "-p", vhost, user, permissions.Configure, permissions.Write, permissions.Read)
			var attempts timeline
			r := newRig(t, rigConfig{
				url: strings.Replace(node.URL(), "guest:guest", user+":secret", 1) + vhost, adminURL: admin,
				queue: "orders", strategy: strategy, policy: policy, clientOptions: options,
				handler: func(msg *message.Message) ([]*message.Message, error) {
					attempts.add()
					return nil, errFailed
				},
			})
			publish(t, admin, "", "orders", amqp.Publishing{Body: []byte("provisioned"), DeliveryMode: amqp.Persistent})
			dead := take(t, admin, "orders.dlq")
			require.Equal(t, "2", dead.Headers[middleware.DeadFailuresKey])
			require.Equal(t, 2, attempts.count())
			r.stop()
		}
		serve(vhost, plan.Permissions(false), topology.WithPreProvisioned())

		vhost = "declaring-" + name
		node.Ctl(t, "add_vhost", vhost)
		serve(vhost, plan.Permissions(true))
	}
}

// importDefinitions hands a definitions file to the broker.
func importDefinitions(t testing.TB, node *testbench.Node, data []byte) {
	t.Helper()
	node.Ctl(t, "import_definitions", node.File(t, "definitions.json", data))
}

// Where something is to be provisioned and is not, Subscribe names it; where it
// vanishes later, the message is held, and goes on when it is back.
func TestPreProvisionedDeclaresNothing(t *testing.T) {
	t.Parallel()
	url, queue := testbench.URL(t), testbench.Queue(t)
	policy := backoff.List{time.Second}
	client, err := topology.Open(t.Context(), connection(url), topology.PerQueue{}, topology.WithPreProvisioned())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	sub, err := client.NewSubscriber(queueConfig(url), topology.ForPolicy(policy))
	require.NoError(t, err)
	_, err = sub.Subscribe(t.Context(), queue)
	for _, name := range []string{queue, queue + ".wait.1s", queue + ".dlq"} {
		require.ErrorContains(t, err, `queue "`+name+`"`)
		require.Equal(t, -1, testbench.Depth(t, url, name))
	}

	// Somebody provisions it.
	plan, err := topology.PerQueue{}.Plan(queue, policy)
	require.NoError(t, err)
	ch := testbench.Channel(t, url)
	declare := func(q topology.Queue) {
		_, err := ch.QueueDeclare(q.Name, true, false, false, false, q.Arguments)
		require.NoError(t, err)
	}
	declare(topology.Queue{Name: queue})
	for _, q := range plan.Queues {
		declare(q)
	}
	attempts := make(chan int, 10)
	r := newRig(t, rigConfig{
		url: url, queue: queue, policy: policy, clientOptions: []topology.Option{topology.WithPreProvisioned()},
		handler: func(msg *message.Message) ([]*message.Message, error) {
			attempt := middleware.Attempt(msg.Context())
			if attempt == 1 {
				if _, err := ch.QueueDelete(plan.Queues[0].Name, false, false, false); err != nil {
					t.Error(err)
				}
			}
			attempts <- attempt
			if attempt == 1 {
				return nil, errFailed
			}
			return nil, nil
		},
	})
	r.publish(amqp.Publishing{Body: []byte("held")})
	require.Equal(t, 1, <-attempts)
	testbench.WaitFor(t, "the trouble is logged", patience, func() bool {
		return strings.Contains(r.logs.text(), "what was provisioned for retries is missing")
	})
	require.Equal(t, -1, testbench.Depth(t, url, plan.Queues[0].Name))
	declare(plan.Queues[0])
	require.Equal(t, 2, <-attempts)
}
