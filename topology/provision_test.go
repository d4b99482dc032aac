package topology_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// The exported definitions import into an empty vhost, and a user with exactly
// the exported permissions retries and dead-letters there without declaring
// anything; another one, with the patterns for declaring, declares (T4, T6). Every
// way that a message can take is taken.
func TestDefinitionsAndPermissionsSuffice(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	policy := backoff.List{200 * time.Millisecond}
	kinds := map[string]topology.Strategy{
		"perqueue": topology.PerQueue{Dead: topology.DeadLetters{Arguments: amqp.Table{"x-max-length": int64(1000)}}},
		"classic":  topology.PerQueue{Type: topology.Classic},
		"attempt":  topology.PerAttempt{},
		"shared":   topology.Shared{},
		"levels":   topology.Levels{},
		// The only one without the right to the default exchange, which leads to every queue.
		"target": topology.Shared{Dead: topology.DeadLetters{Target: func(string) topology.Route {
			return topology.Route{Exchange: "graves", RoutingKey: "orders"}
		}}},
		"return": topology.Shared{Via: "amq.topic"},
	}
	var grants []testbroker.Grant
	definitions := map[string][]byte{}
	for name, strategy := range kinds {
		plan, err := strategy.Plan("orders", policy)
		require.NoError(t, err)
		definitions[name], err = plan.Definitions("provisioned-"+name, topology.Queue{Name: "orders", Arguments: amqp.Table{"x-queue-type": "classic"}})
		require.NoError(t, err)
		require.True(t, json.Valid(definitions[name]))
		for vhost, p := range map[string]topology.Permissions{"provisioned-" + name: plan.Permissions(false), "declaring-" + name: plan.Permissions(true)} {
			grants = append(grants, testbroker.Everything(vhost, "guest"), testbroker.Grant{
				VHost: vhost, User: "user-" + vhost, Configure: p.Configure, Write: p.Write, Read: p.Read,
			})
		}
	}
	// Empty vhosts, the definitions, and users who may only use them. A node that imports may answer no handshake (F28): the
	// rest comes after it.
	node.Grant(t, grants...)
	for _, data := range definitions {
		node.Import(t, data)
	}
	for name, strategy := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			serve := func(vhost string, options ...topology.Option) {
				admin := node.URL() + vhost
				if name == "target" {
					digGraves(t, admin)
				}
				rc, handled := rig.EveryWay(rig.Config{
					URL: node.URLOf("user-"+vhost) + vhost, AdminURL: admin,
					Queue: "orders", Strategy: strategy, Policy: policy, ClientOptions: options,
				})
				r := rig.Start(t, rc)
				rig.RequireEveryWay(t, r, handled, admin, len(options) == 0)
				r.Stop()
				requireRefused(t, r.URL, admin, name)
			}
			serve("provisioned-"+name, topology.WithPreProvisioned())
			serve("declaring-" + name)
		})
	}
}

// digGraves declares an exchange for dead letters, and what it leads to.
func digGraves(t testing.TB, url string) {
	t.Helper()
	ch := testbroker.Channel(t, url)
	require.NoError(t, ch.ExchangeDeclare("graves", "direct", true, false, false, false, nil))
	_, err := ch.QueueDeclare("orders.dlq", true, false, false, false, nil)
	require.NoError(t, err)
	require.NoError(t, ch.QueueBind("orders.dlq", "orders", "graves", false, nil))
}

// requireRefused asserts that a user with no more than the exported permissions
// is refused what is not the plan's.
func requireRefused(t testing.TB, url, admin, name string) {
	t.Helper()
	_, err := testbroker.Channel(t, admin).QueueDeclare("orders.payroll", true, false, false, false, nil)
	require.NoError(t, err)
	publishTo := func(exchange, key string) func(ch *amqp.Channel) error {
		return func(ch *amqp.Channel) error {
			closed := ch.NotifyClose(make(chan *amqp.Error, 1))
			if err := ch.Confirm(false); err != nil {
				return err
			}
			confirm, err := ch.PublishWithDeferredConfirm(exchange, key, false, false, amqp.Publishing{})
			if err != nil {
				return err
			}
			if confirm.Wait() {
				return nil
			}
			return <-closed
		}
	}
	cases := map[string]func(ch *amqp.Channel) error{
		"publish to amq.topic":  publishTo("amq.topic", "orders"),
		"publish to amq.fanout": publishTo("amq.fanout", ""),
		"read another queue":    func(ch *amqp.Channel) error { _, _, err := ch.Get("orders.payroll", true); return err },
		"read the dead letters": func(ch *amqp.Channel) error { _, _, err := ch.Get("orders.dlq", true); return err },
		"declare another queue": func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare("orders.x", true, false, false, false, nil)
			return err
		},
		"delete another queue": func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete("orders.payroll", false, false, false)
			return err
		},
		"declare another exchange":  func(ch *amqp.Channel) error { return ch.ExchangeDeclare("x", "fanout", true, false, false, false, nil) },
		"bind a queue to amq.topic": func(ch *amqp.Channel) error { return ch.QueueBind("orders", "#", "amq.topic", false, nil) },
	}
	if name == "return" { // what leads to an exchange takes the right to write to it
		delete(cases, "publish to amq.topic")
	}
	if name == "target" {
		cases["publish to the default exchange"] = publishTo("", "orders.payroll")
	}
	for what, try := range cases {
		var refused *amqp.Error
		require.ErrorAs(t, try(testbroker.Channel(t, url)), &refused, "%s: %s", name, what)
		require.Equal(t, amqp.AccessRefused, refused.Code, "%s: %s: %v", name, what, refused)
	}
}

// Where something is to be provisioned and is not, Subscribe names it; where it
// vanishes later, the message is held, and goes on when it is back.
func TestPreProvisionedDeclaresNothing(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	policy := backoff.List{time.Second}
	client, err := topology.Open(t.Context(), rig.ConnectionConfig(url), topology.PerQueue{}, topology.WithPreProvisioned())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	sub, err := client.NewSubscriber(rig.QueueConfig(url), topology.ForPolicy(policy))
	require.NoError(t, err)
	_, err = sub.Subscribe(t.Context(), queue)
	require.ErrorContains(t, err, "to be provisioned, for WithPreProvisioned declares nothing")
	for _, name := range []string{queue, queue + ".wait.1s", queue + ".dlq"} {
		require.ErrorContains(t, err, `queue "`+name+`"`)
		require.Equal(t, -1, testbroker.Depth(t, url, name))
	}

	// Somebody provisions it.
	plan, err := topology.PerQueue{}.Plan(queue, policy)
	require.NoError(t, err)
	ch := testbroker.Channel(t, url)
	declare := func(q topology.Queue) {
		_, err := ch.QueueDeclare(q.Name, true, false, false, false, q.Arguments)
		require.NoError(t, err)
	}
	declare(topology.Queue{Name: queue})
	for _, q := range plan.Queues {
		declare(q)
	}
	attempts := make(chan int, 10)
	r := rig.Start(t, rig.Config{
		URL: url, Queue: queue, Policy: policy, ClientOptions: []topology.Option{topology.WithPreProvisioned()},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			attempt := middleware.Attempt(msg.Context())
			if attempt == 1 {
				if _, err := ch.QueueDelete(plan.Queues[0].Name, false, false, false); err != nil {
					t.Error(err)
				}
			}
			attempts <- attempt
			if attempt == 1 {
				return nil, rig.ErrFailed
			}
			return nil, nil
		},
	})
	r.Publish(amqp.Publishing{Body: []byte("held")})
	require.Equal(t, 1, <-attempts)
	rig.WaitFor(t, "the trouble is logged", func() bool {
		return strings.Contains(r.Logs.Text(), "what was provisioned for retries is missing")
	})
	require.Equal(t, -1, testbroker.Depth(t, url, plan.Queues[0].Name))
	declare(plan.Queues[0])
	require.Equal(t, 2, <-attempts)
}
