package topology_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/topology/operate"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// logging opens a client whose log is kept.
func logging(t testing.TB, url string, strategy topology.Strategy, options ...topology.Option) (*topology.Client, *rig.Logs) {
	t.Helper()
	logs := &rig.Logs{}
	client, err := topology.Open(t.Context(), rig.ConnectionConfig(url), strategy, append(options, topology.WithLogger(logs))...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client, logs
}

// declaresNothing is a TopologyBuilder that finds its queue declared.
type declaresNothing struct{ wamqp.DefaultTopologyBuilder }

func (declaresNothing) BuildTopology(*amqp.Channel, string, string, wamqp.Config, watermill.LoggerAdapter) error {
	return nil
}

// A stream skips messages that were published before its consumer, and delivers nothing
// again: refused as it is configured, and as it is found.
func TestStreamIsRefusedAsSourceQueue(t *testing.T) {
	t.Parallel()
	url, queue, policy := testbroker.URL(t), testbroker.Queue(t), backoff.List{time.Second}
	client, plan := rig.Operator(t, url, queue, topology.PerQueue{}, policy)
	o := rig.OpenOperator(t, url)
	configured := rig.QueueConfig(url)
	configured.Queue.Arguments = amqp.Table{"x-queue-type": "stream"}
	err := rig.SubscribeError(t, client, configured, queue, policy)
	require.ErrorContains(t, err, "x-queue-type is stream")
	require.ErrorContains(t, err, "a stream skips messages that were published before its consumer")
	t.Log(err)
	require.Equal(t, -1, testbroker.Depth(t, url, queue), "nothing was declared")

	rig.DeclareQueue(t, url, queue, amqp.Table{"x-queue-type": "stream"})
	found := rig.QueueConfig(url)
	found.TopologyBuilder = declaresNothing{}
	err = rig.SubscribeError(t, client, found, queue, policy)
	require.ErrorContains(t, err, "x-queue-type is stream")
	for _, q := range plan.Queues {
		require.Equal(t, -1, testbroker.Depth(t, url, q.Name), "no queue is declared for a stream")
	}
	findings, err := o.Verify(t.Context(), plan)
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(findings, func(f operate.Finding) bool {
		return f.Severity == operate.Critical && f.Name == queue && strings.Contains(f.Text, "x-queue-type is stream")
	}), "%v", findings)

	require.NoError(t, o.Declare(t.Context(), plan))
	provisioned, _ := rig.Operator(t, url, queue, topology.PerQueue{}, policy, topology.WithPreProvisioned())
	require.ErrorContains(t, rig.SubscribeError(t, provisioned, rig.QueueConfig(url), queue, policy), "x-queue-type is stream")

	long := queue + "-" + strings.Repeat("q", 220-len(queue)) // leaves no room for the type in the broker's answer
	testbroker.Delete(t, long)
	rig.DeclareQueue(t, url, long, amqp.Table{"x-queue-type": "stream"})
	require.ErrorContains(t, rig.SubscribeError(t, client, found, long, policy), "x-queue-type is stream")
}

// What the user's queue may lose is refused where it leaves no trace, and named where
// the messages go to a dead-letter exchange: in the constructor, of the queue that is
// found, and by Verify.
func TestQueueArgumentsThatLoseMessagesAreRefused(t *testing.T) {
	t.Parallel()
	dead := amqp.Table{"x-dead-letter-exchange": "amq.fanout"}
	cases := map[string]struct {
		args    amqp.Table
		says    string // "" where it is harmless
		refused bool
	}{
		"expires":                   {amqp.Table{"x-expires": int64(600_000)}, "x-expires is 600000: the queue is deleted with all its messages", true},
		"ttl":                       {amqp.Table{"x-message-ttl": int64(600_000)}, "x-message-ttl is 600000: messages that are not handled within so many milliseconds are dropped", true},
		"ttl, dead letters":         {amqp.Table{"x-message-ttl": int64(600_000), "x-dead-letter-exchange": "amq.fanout"}, "x-message-ttl is 600000: messages that are not handled within so many milliseconds go to", false},
		"ttl, dead letters nowhere": {amqp.Table{"x-message-ttl": int64(600_000), "x-dead-letter-exchange": "millpond-nowhere"}, "", false},
		"length":                    {amqp.Table{"x-max-length": int64(1000)}, "x-max-length is 1000: the oldest messages of a full queue are dropped", true},
		"length, dead letters":      {amqp.Table{"x-max-length": int64(1000), "x-dead-letter-exchange": "amq.fanout"}, "x-max-length is 1000: the oldest messages of a full queue go to", false},
		"bytes":                     {amqp.Table{"x-max-length-bytes": int64(1 << 20), "x-overflow": "drop-head"}, "x-max-length-bytes is 1048576: the oldest", true},
		"overflow":                  {amqp.Table{"x-max-length": int64(1000), "x-overflow": "reject-publish"}, `x-overflow "reject-publish" refuses messages that return`, true},
		"no delivery twice":         {amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(0)}, "x-delivery-limit is 0", true},
		"dead letters alone":        {dead, "", false},
		"single active consumer":    {amqp.Table{"x-single-active-consumer": true, "x-overflow": "drop-head"}, "", false},
		"large limit":               {amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1 << 30)}, "", false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, queue, policy := testbroker.URL(t), testbroker.Queue(t), backoff.List{time.Second}
			rig.RemovePlan(t, url, topology.PerQueue{}, queue, policy)
			client, plan := rig.Operator(t, url, queue, topology.PerQueue{}, policy)
			o := rig.OpenOperator(t, url)
			provisioned, logs := logging(t, url, topology.PerQueue{}, topology.WithPreProvisioned())
			rig.DeclareQueue(t, url, queue, c.args)
			require.NoError(t, o.Declare(t.Context(), plan))
			_, nowhere := c.args["x-dead-letter-exchange"]
			nowhere = nowhere && c.args["x-dead-letter-exchange"] != "amq.fanout"

			configured := rig.QueueConfig(url)
			configured.Queue.Arguments = c.args
			for where, err := range map[string]error{
				"configured": rig.SubscribeError(t, client, configured, queue, policy),
				"found":      rig.SubscribeError(t, provisioned, rig.QueueConfig(url), queue, policy),
			} {
				if c.refused || nowhere {
					require.ErrorContains(t, err, c.says, where)
				} else {
					require.NoError(t, err, where)
				}
			}
			if c.says != "" && !c.refused {
				require.Equal(t, 1, logs.Said("Warning: an argument of the queue takes messages out of it"), logs.Text())
				require.Contains(t, logs.Text(), "consequence:"+strings.SplitN(c.says, " ", 2)[1])
			}
			findings, err := o.Verify(t.Context(), plan)
			require.NoError(t, err)
			severity := operate.Warning
			if c.refused || nowhere {
				severity = operate.Critical
			}
			about := slices.DeleteFunc(findings, func(f operate.Finding) bool { return f.Name != queue || !strings.HasPrefix(f.Text, "x-") })
			if c.says == "" && !nowhere {
				require.Empty(t, about)
				return
			}
			require.Len(t, about, 1)
			require.Equal(t, severity, about[0].Severity)
			require.Contains(t, about[0].Text, c.says)
			t.Log(about[0])
		})
	}
}

// A queue that is not durable is found out, also where nothing is declared.
func TestTransientQueueIsRefusedWhereItIsFound(t *testing.T) {
	t.Parallel()
	url, queue, policy := testbroker.URL(t), testbroker.Queue(t), backoff.List{time.Second}
	plan := rig.PlanFor(t, queue, topology.PerQueue{}, policy)
	_, err := testbroker.Channel(t, url).QueueDeclare(queue, true, true, false, false, nil)
	require.NoError(t, err)
	require.NoError(t, rig.OpenOperator(t, url).Declare(t.Context(), plan))
	provisioned, _ := rig.Operator(t, url, queue, topology.PerQueue{}, policy, topology.WithPreProvisioned())
	require.ErrorContains(t, rig.SubscribeError(t, provisioned, rig.QueueConfig(url), queue, policy), "auto-delete is true")
}

// The warnings go by what the queue is: in a vhost whose default type is quorum,
// for a broker that overlooks the type, and for a user who may declare nothing.
func TestWarningsGoByTheRealQueueType(t *testing.T) {
	t.Parallel()
	const loses = "Warning: messages that wait in a classic queue are lost if their wait ends while the broker restarts, because their quorum queue is not there yet"
	const classic = "Warning: the queue is a classic one"
	policy := backoff.List{time.Second}
	strategy := topology.PerQueue{Type: topology.Classic}
	check := func(t *testing.T, url, queue, said, unsaid string, cfg wamqp.Config, options ...topology.Option) {
		t.Helper()
		client, logs := logging(t, url, strategy, options...)
		require.NoError(t, rig.SubscribeError(t, client, cfg, queue, policy))
		require.Equal(t, 1, logs.Said(said), logs.Text())
		require.Zero(t, logs.Said(unsaid), logs.Text())
	}
	verified := func(t *testing.T, url, queue string) []string {
		t.Helper()
		return rig.BlindFindings(t, rig.OpenOperator(t, url), rig.PlanFor(t, queue, strategy, policy))
	}
	node := testbroker.Private(t)
	overlooks := strings.HasPrefix(node.Version(), "4.")
	node.Ctl(t, "add_vhost", "typed", "--default-queue-type", "quorum")
	node.Grant(t, testbroker.Everything("typed", "guest"), testbroker.Grant{VHost: "typed", User: "reader", Configure: "^$", Write: ".*", Read: ".*"})

	t.Run("default of the vhost", func(t *testing.T) {
		url := node.URL() + "typed"
		check(t, url, "orders", loses, classic, rig.QueueConfig(url))
		require.Contains(t, verified(t, url, "orders"), "critical dropping queue orders")
		check(t, url, "orders", loses, classic, rig.QueueConfig(url), topology.WithPreProvisioned())
	})
	t.Run("nothing may be declared", func(t *testing.T) {
		url := node.URLOf("reader") + "typed"
		check(t, url, "orders", loses, classic, rig.QueueConfig(url), topology.WithPreProvisioned())
	})
	t.Run("classic", func(t *testing.T) {
		url := node.URL()
		check(t, url, "plain", classic, loses, rig.QueueConfig(url))
		check(t, url, "plain", classic, loses, rig.QueueConfig(url), topology.WithPreProvisioned())
	})
	t.Run("the name leaves no room for the type", func(t *testing.T) {
		queue := strings.Repeat("q", 220)
		cfg := rig.QueueConfig(node.URL())
		rig.QuorumQueue(&cfg)
		check(t, node.URL(), queue, "Warning: the type of the queue is not known", classic, cfg)
		require.Contains(t, verified(t, node.URL(), queue), "warning unchecked queue "+queue)
	})
	t.Run("the broker overlooks the type", func(t *testing.T) {
		if !overlooks {
			t.Skipf("RabbitMQ %s compares the type of a queue always", node.Version())
		}
		node.Ctl(t, "eval", "application:set_env(rabbit, quorum_relaxed_checks_on_redeclaration, true).")
		rig.DeclareQueue(t, node.URL(), "orders", amqp.Table{"x-queue-type": "quorum"})
		check(t, node.URL(), "orders", loses, classic, rig.QueueConfig(node.URL()))
	})
}

// Asking what the queue is changes nothing, and creates nothing where the queue has
// vanished: a broker that deletes it between the questions answers like this one.
func TestAskingForTheTypeTakesNoMessage(t *testing.T) {
	t.Parallel()
	url, queue, policy := testbroker.URL(t), testbroker.Queue(t), backoff.List{time.Second}
	rig.DeclareQueue(t, url, queue, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1 << 30)})
	rig.Publish(t, url, "", queue, amqp.Publishing{Body: []byte("order"), DeliveryMode: 2})
	o, plan := rig.OpenOperator(t, url), rig.PlanFor(t, queue, topology.PerQueue{}, policy)
	require.NoError(t, o.Declare(t.Context(), plan))
	for range 3 {
		require.Empty(t, rig.BlindFindings(t, o, plan))
	}
	got := rig.Take(t, url, queue)
	require.False(t, got.Redelivered)
	require.Contains(t, []any{nil, int64(0)}, got.Headers["x-delivery-count"])
}

// A finite delivery limit without a dead-letter target is named with the command that
// removes it; the command works, and then nothing is named.
func TestFiniteDeliveryLimitIsNamedWithItsRemedy(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "{collect_statistics_interval, 500}")
	limited := strings.HasPrefix(node.Version(), "4.") // by default
	node.Grant(t, testbroker.Everything("it's one", "guest"))
	url := node.URL() + "it%27s%20one"
	policy := backoff.List{time.Second}
	const drops = "Warning: the broker drops a message of the queue silently"
	cases := map[string]struct {
		queue   string
		limit   any // of the argument
		finite  bool
		dropped string // where the message is in the end
	}{
		"default":  {"o'range+1", nil, limited, ""},
		"argument": {"pears", int64(9), true, "pears.dlq"},
		"large":    {"plums", int64(1 << 30), false, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Everything asks about the vhost that is opened, not about that of the URL.
			cfg, logs := inVhost(node.URL(), "it's one"), &rig.Logs{}
			client, err := topology.Open(t.Context(), cfg.Connection, topology.PerQueue{}, topology.WithManagement(api), topology.WithLogger(logs))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, client.Close()) })
			o := rig.OpenOperator(t, node.URL(), operate.WithManagement(api),
				operate.WithAMQP(amqp.Config{Vhost: "it's one"}))
			rig.QuorumQueue(&cfg)
			if c.limit != nil {
				cfg.Queue.Arguments["x-delivery-limit"] = c.limit
			}
			require.NoError(t, rig.SubscribeError(t, client, cfg, c.queue, policy))
			plan, err := client.Plan(c.queue, topology.ForPolicy(policy))
			require.NoError(t, err)
			if !c.finite {
				require.Zero(t, logs.Said(drops), logs.Text())
				require.NotContains(t, rig.Findings(t, o, plan), "critical dropping queue "+c.queue)
				return
			}
			require.Equal(t, 1, logs.Said(drops), logs.Text())
			rig.WaitFor(t, "the API to show the queue's policies", func() bool {
				findings, err := o.Verify(t.Context(), plan)
				require.NoError(t, err)
				return slices.ContainsFunc(findings, func(f operate.Finding) bool {
					return f.Severity == operate.Critical && f.Problem == operate.Dropping && f.Name == c.queue
				})
			})
			command := commandOf(t, logs, drops)
			t.Log(command)
			node.Ctl(t, rig.ShellWords(t, command)[1:]...)
			rig.WaitFor(t, "Verify to find nothing", func() bool {
				findings, err := o.Verify(t.Context(), plan)
				require.NoError(t, err)
				return len(findings) == 0
			})
			rig.Publish(t, url, "", c.queue, amqp.Publishing{Body: []byte("order"), DeliveryMode: 2})
			ch := testbroker.Channel(t, url)
			for range 40 {
				got, ok, err := ch.Get(c.queue, false)
				require.NoError(t, err)
				if ok {
					require.NoError(t, got.Reject(true))
				}
			}
			if c.dropped == "" {
				require.Equal(t, "order", string(rig.Take(t, url, c.queue).Body))
			} else {
				require.Equal(t, "order", string(rig.Take(t, url, c.dropped).Body))
			}
		})
	}
}

// Without the management API the line says that a policy may say otherwise, and Verify
// warns.
func TestDeliveryLimitThatAPolicyMayRaiseIsNamed(t *testing.T) {
	t.Parallel()
	url, queue, policy := testbroker.URL(t), testbroker.Queue(t), backoff.List{time.Second}
	client, logs := logging(t, url, topology.PerQueue{})
	cfg := rig.QueueConfig(url)
	cfg.Queue.Arguments = amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(15)}
	require.NoError(t, rig.SubscribeError(t, client, cfg, queue, policy))
	require.Equal(t, 1, logs.Said("Warning: the broker drops a message of the queue silently"), logs.Text())
	require.Contains(t, logs.Text(), "limit:15")
	require.Contains(t, logs.Text(), "unless:a policy")
	o, plan := rig.OpenOperator(t, url), rig.PlanFor(t, queue, topology.PerQueue{}, policy)
	require.Equal(t, []string{"warning dropping queue " + queue}, rig.BlindFindings(t, o, plan))

	cfg.Queue.Arguments = amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(15), "x-dead-letter-exchange": "amq.fanout"}
	_, err := testbroker.Channel(t, url).QueueDelete(queue, false, false, false)
	require.NoError(t, err)
	client, logs = logging(t, url, topology.PerQueue{})
	require.NoError(t, rig.SubscribeError(t, client, cfg, queue, policy))
	require.Zero(t, logs.Said("Warning: the broker drops"), logs.Text())
	require.Empty(t, rig.BlindFindings(t, o, plan))
}

// commandOf returns the command of the log line.
func commandOf(t testing.TB, logs *rig.Logs, line string) string {
	t.Helper()
	for _, e := range logs.All() {
		if strings.HasPrefix(e.Msg, line) {
			command, _ := e.Fields["command"].(string)
			return command
		}
	}
	t.Fatalf("no line %q", line)
	return ""
}
