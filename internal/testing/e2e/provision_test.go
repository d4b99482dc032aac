package e2e_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// Given an empty vhost with the exported definitions, then a user with exactly the exported
// permissions retries and dead-letters there without declaring anything. Another user, with the
// patterns for declaring, declares (T4, T6). Messages end in every possible way.
func TestDefinitionsAndPermissionsSuffice(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	policy := backoff.List{200 * time.Millisecond}
	bounded := topology.DeadLetters{Arguments: amqp.Table{"x-max-length": int64(1000)}}
	strategies := map[string]topology.Strategy{
		"perqueue": topology.PerQueue{Dead: bounded},
		"classic":  topology.PerQueue{Type: topology.Classic},
		"attempt":  topology.PerAttempt{},
		"shared":   topology.Shared{},
		"levels":   topology.Levels{},
		// Only this one needs no right to the default exchange, which leads to every queue.
		"target": topology.Shared{Dead: topology.DeadLetters{Target: func(string) topology.Route {
			return topology.Route{Exchange: "graves", RoutingKey: "orders"}
		}}},
		"return": topology.Shared{Via: "amq.topic"},
	}
	var grants []testbroker.Grant
	definitions := map[string][]byte{}
	for name, strategy := range strategies {
		plan, err := strategy.Plan("orders", policy)
		require.NoError(t, err)
		main := topology.Queue{Name: "orders", Arguments: amqp.Table{"x-queue-type": "classic"}}
		definitions[name], err = plan.Definitions("provisioned-"+name, main)
		require.NoError(t, err)
		require.True(t, json.Valid(definitions[name]))
		for vhost, p := range map[string]topology.Permissions{
			"provisioned-" + name: plan.Permissions(false), "declaring-" + name: plan.Permissions(true),
		} {
			grants = append(grants, testbroker.Everything(vhost, "guest"), testbroker.Grant{
				VHost: vhost, User: "user-" + vhost, Configure: p.Configure, Write: p.Write, Read: p.Read,
			})
		}
	}
	// A node that imports may answer no handshake (F28): the services start after it.
	node.Grant(t, grants...)
	for _, data := range definitions {
		node.Import(t, data)
	}
	for name, strategy := range strategies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			serve := func(vhost string, options ...topology.Option) {
				admin := node.URL() + vhost
				if name == "target" {
					digGraves(t, admin)
				}
				c, handled := rig.EveryWay(rig.Config{
					URL: node.URLOf("user-"+vhost) + vhost, AdminURL: admin,
					Queue: "orders", Strategy: strategy, Policy: policy, ClientOptions: options,
				})
				r := rig.Start(t, c)
				rig.RequireEveryWay(t, r, handled, admin, len(options) == 0)
				r.Stop()
				requireRefused(t, r.URL, admin, name)
			}
			serve("provisioned-"+name, topology.WithPreProvisioned())
			serve("declaring-" + name)
		})
	}
}

// digGraves declares an exchange for dead letters and its queue.
func digGraves(t testing.TB, url string) {
	t.Helper()
	ch := testbroker.Channel(t, url)
	require.NoError(t, ch.ExchangeDeclare("graves", "direct", true, false, false, false, nil))
	rig.DeclareQueue(t, url, "orders.dlq", nil)
	require.NoError(t, ch.QueueBind("orders.dlq", "orders", "graves", false, nil))
}

// requireRefused asserts that a user with the exported permissions is refused all that is not in
// the plan.
func requireRefused(t testing.TB, url, admin, name string) {
	t.Helper()
	const payroll = "orders.payroll"
	rig.DeclareQueue(t, admin, payroll, nil)
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
	read := func(queue string) func(ch *amqp.Channel) error {
		return func(ch *amqp.Channel) error { _, _, err := ch.Get(queue, true); return err }
	}
	cases := map[string]func(ch *amqp.Channel) error{
		"publish to amq.topic":  publishTo("amq.topic", "orders"),
		"publish to amq.fanout": publishTo("amq.fanout", ""),
		"read another queue":    read(payroll),
		"read the dead letters": read("orders.dlq"),
		"declare another queue": func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare("orders.x", true, false, false, false, nil)
			return err
		},
		"delete another queue": func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(payroll, false, false, false)
			return err
		},
		"declare another exchange": func(ch *amqp.Channel) error {
			return ch.ExchangeDeclare("x", "fanout", true, false, false, false, nil)
		},
		"bind a queue to amq.topic": func(ch *amqp.Channel) error {
			return ch.QueueBind("orders", "#", "amq.topic", false, nil)
		},
	}
	if name == "return" { // A binding to an exchange needs the right to write to it.
		delete(cases, "publish to amq.topic")
	}
	if name == "target" {
		cases["publish to the default exchange"] = publishTo("", payroll)
	}
	for what, try := range cases {
		var refused *amqp.Error
		require.ErrorAs(t, try(testbroker.Channel(t, url)), &refused, "%s: %s", name, what)
		require.Equal(t, amqp.AccessRefused, refused.Code, "%s: %s: %v", name, what, refused)
	}
}

// Given WithPreProvisioned and a missing plan, then Subscribe names each missing queue. When a
// queue vanishes later, then the message is held until the queue is back.
func TestPreProvisionedDeclaresNothing(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	policy := sourcePolicy
	provisioned := topology.WithPreProvisioned()
	_, sub := rig.OpenSubscriber(t, url, topology.PerQueue{}, policy, provisioned)
	_, err := sub.Subscribe(t.Context(), queue)
	require.ErrorContains(t, err, "to be provisioned, for WithPreProvisioned declares nothing")
	for _, name := range []string{queue, queue + ".wait.1s", queue + ".dlq"} {
		require.ErrorContains(t, err, `queue "`+name+`"`)
		require.Equal(t, -1, testbroker.Depth(t, url, name))
	}

	plan := sourcePlan(t, topology.PerQueue{}, queue)
	for _, q := range append(plan.Queues, topology.Queue{Name: queue}) {
		rig.DeclareQueue(t, url, q.Name, q.Arguments)
	}
	wait := plan.Queues[0]
	attempts, ch := make(chan int, 10), testbroker.Channel(t, url)
	r := rig.Start(t, rig.Config{
		URL: url, Queue: queue, Policy: policy, ClientOptions: []topology.Option{provisioned},
		Handle: func(msg *message.Message) error {
			err := rig.FailFirst(msg)
			if err != nil {
				if _, err := ch.QueueDelete(wait.Name, false, false, false); err != nil {
					t.Error(err)
				}
			}
			attempts <- middleware.Attempt(msg.Context())
			return err
		},
	})
	r.Send("held")
	rig.AwaitAttempts(t, attempts, 1)
	rig.WaitFor(t, "the line in the log", func() bool {
		return r.Logs.Said("what was provisioned for retries is missing") > 0
	})
	require.Equal(t, -1, testbroker.Depth(t, url, wait.Name))
	rig.DeclareQueue(t, url, wait.Name, wait.Arguments)
	rig.AwaitAttempts(t, attempts, 2)
}
