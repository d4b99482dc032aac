package topology_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// declareQueue declares a durable queue that someone else could have declared.
func declareQueue(t testing.TB, url, queue string, args amqp.Table) {
	t.Helper()
	_, err := testbroker.Channel(t, url).QueueDeclare(queue, true, false, false, false, args)
	require.NoError(t, err)
}

// subscribeError subscribes as cfg says and returns the error of the first call that
// fails; nil where the queue is consumed.
func subscribeError(t testing.TB, client *topology.Client, cfg wamqp.Config, queue string, policy backoff.Policy) error {
	t.Helper()
	sub, err := client.NewSubscriber(cfg, topology.ForPolicy(policy))
	if err == nil {
		_, err = sub.Subscribe(t.Context(), queue)
		require.NoError(t, sub.Close())
	}
	return err
}

// logging opens a client whose log is kept.
func logging(t testing.TB, url string, strategy topology.Strategy, options ...topology.Option) (*topology.Client, *capture) {
	t.Helper()
	logs := &capture{}
	client, err := topology.Open(t.Context(), connection(url), strategy, append(options, topology.WithLogger(logs))...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client, logs
}

// declaresNothing is a TopologyBuilder that finds its queue declared.
type declaresNothing struct{ wamqp.DefaultTopologyBuilder }

func (declaresNothing) BuildTopology(*amqp.Channel, string, string, wamqp.Config, watermill.LoggerAdapter) error {
	return nil
}

// A stream skips what was published before its consumer, and delivers nothing
// again: refused as it is configured, and as it is found.
func TestStreamIsRefusedAsSourceQueue(t *testing.T) {
	t.Parallel()
	url, queue, policy := testbroker.URL(t), testbroker.Queue(t), backoff.List{time.Second}
	client, plan := operator(t, url, queue, topology.PerQueue{}, policy)
	configured := queueConfig(url)
	configured.Queue.Arguments = amqp.Table{"x-queue-type": "stream"}
	err := subscribeError(t, client, configured, queue, policy)
	require.ErrorContains(t, err, "x-queue-type is stream")
	require.ErrorContains(t, err, "a stream skips what was published before its consumer")
	t.Log(err)
	require.Equal(t, -1, testbroker.Depth(t, url, queue), "nothing was declared")

	declareQueue(t, url, queue, amqp.Table{"x-queue-type": "stream"})
	found := queueConfig(url)
	found.TopologyBuilder = declaresNothing{}
	err = subscribeError(t, client, found, queue, policy)
	require.ErrorContains(t, err, "x-queue-type is stream")
	for _, q := range plan.Queues {
		require.Equal(t, -1, testbroker.Depth(t, url, q.Name), "no queue is declared for a stream")
	}
	findings, err := client.Verify(t.Context(), plan)
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(findings, func(f topology.Finding) bool {
		return f.Severity == topology.Critical && f.Name == queue && strings.Contains(f.Text, "x-queue-type is stream")
	}), "%v", findings)

	require.NoError(t, client.Declare(t.Context(), plan))
	provisioned, _ := operator(t, url, queue, topology.PerQueue{}, policy, topology.WithPreProvisioned())
	require.ErrorContains(t, subscribeError(t, provisioned, queueConfig(url), queue, policy), "x-queue-type is stream")

	long := queue + "-" + strings.Repeat("q", 220-len(queue)) // leaves no room for the type in the broker's answer
	testbroker.Delete(t, long)
	declareQueue(t, url, long, amqp.Table{"x-queue-type": "stream"})
	require.ErrorContains(t, subscribeError(t, client, found, long, policy), "x-queue-type is stream")
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
			removePlan(t, url, topology.PerQueue{}, queue, policy)
			client, plan := operator(t, url, queue, topology.PerQueue{}, policy)
			provisioned, logs := logging(t, url, topology.PerQueue{}, topology.WithPreProvisioned())
			declareQueue(t, url, queue, c.args)
			require.NoError(t, client.Declare(t.Context(), plan))
			_, nowhere := c.args["x-dead-letter-exchange"]
			nowhere = nowhere && c.args["x-dead-letter-exchange"] != "amq.fanout"

			configured := queueConfig(url)
			configured.Queue.Arguments = c.args
			for where, err := range map[string]error{
				"configured": subscribeError(t, client, configured, queue, policy),
				"found":      subscribeError(t, provisioned, queueConfig(url), queue, policy),
			} {
				if c.refused || nowhere {
					require.ErrorContains(t, err, c.says, where)
				} else {
					require.NoError(t, err, where)
				}
			}
			if c.says != "" && !c.refused {
				require.Equal(t, 1, logs.said("Warning: an argument of the queue takes messages out of it"), logs.text())
				require.Contains(t, logs.text(), "consequence:"+strings.SplitN(c.says, " ", 2)[1])
			}
			findings, err := client.Verify(t.Context(), plan)
			require.NoError(t, err)
			severity := topology.Warning
			if c.refused || nowhere {
				severity = topology.Critical
			}
			about := slices.DeleteFunc(findings, func(f topology.Finding) bool { return f.Name != queue || !strings.HasPrefix(f.Text, "x-") })
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
	client, plan := operator(t, url, queue, topology.PerQueue{}, policy)
	_, err := testbroker.Channel(t, url).QueueDeclare(queue, true, true, false, false, nil)
	require.NoError(t, err)
	require.NoError(t, client.Declare(t.Context(), plan))
	provisioned, _ := operator(t, url, queue, topology.PerQueue{}, policy, topology.WithPreProvisioned())
	require.ErrorContains(t, subscribeError(t, provisioned, queueConfig(url), queue, policy), "auto-delete is true")
}

// The warnings go by what the queue is: in a vhost whose default type is quorum,
// for a broker that overlooks the type, and for a user who may declare nothing.
func TestWarningsGoByTheRealQueueType(t *testing.T) {
	t.Parallel()
	const loses = "Warning: messages that wait in a classic queue are lost if their wait ends while the broker restarts, because their quorum queue is not up yet"
	const classic = "Warning: the queue is a classic one"
	policy := backoff.List{time.Second}
	strategy := topology.PerQueue{Type: topology.Classic}
	check := func(t *testing.T, url, queue string, said, unsaid string, cfg wamqp.Config, options ...topology.Option) *topology.Client {
		t.Helper()
		client, logs := logging(t, url, strategy, options...)
		require.NoError(t, subscribeError(t, client, cfg, queue, policy))
		require.Equal(t, 1, logs.said(said), logs.text())
		require.Zero(t, logs.said(unsaid), logs.text())
		return client
	}
	critical := func(t *testing.T, client *topology.Client, queue string) {
		t.Helper()
		plan, err := topology.PlanFor(strategy, queue, policy)
		require.NoError(t, err)
		require.Contains(t, found(t, client, plan), "critical dropping queue "+queue)
	}
	node := testbroker.Private(t)
	overlooks := strings.HasPrefix(node.Version(), "4.")
	node.Ctl(t, "add_vhost", "typed", "--default-queue-type", "quorum")
	node.Grant(t, testbroker.Everything("typed", "guest"), testbroker.Grant{VHost: "typed", User: "reader", Configure: "^$", Write: ".*", Read: ".*"})

	t.Run("default of the vhost", func(t *testing.T) {
		url := node.URL() + "typed"
		client := check(t, url, "orders", loses, classic, queueConfig(url))
		critical(t, client, "orders")
		check(t, url, "orders", loses, classic, queueConfig(url), topology.WithPreProvisioned())
	})
	t.Run("nothing may be declared", func(t *testing.T) {
		url := node.URLOf("reader") + "typed"
		check(t, url, "orders", loses, classic, queueConfig(url), topology.WithPreProvisioned())
	})
	t.Run("classic", func(t *testing.T) {
		url := node.URL()
		check(t, url, "plain", classic, loses, queueConfig(url))
		check(t, url, "plain", classic, loses, queueConfig(url), topology.WithPreProvisioned())
	})
	t.Run("the name leaves no room for the type", func(t *testing.T) {
		queue := strings.Repeat("q", 220)
		cfg := queueConfig(node.URL())
		quorumQueue(&cfg)
		client := check(t, node.URL(), queue, "Warning: the type of the queue is not known", classic, cfg)
		plan, err := topology.PlanFor(strategy, queue, policy)
		require.NoError(t, err)
		require.Contains(t, found(t, client, plan), "warning unchecked queue "+queue)
	})
	t.Run("the broker overlooks the type", func(t *testing.T) {
		if !overlooks {
			t.Skipf("RabbitMQ %s compares the type of a queue always", node.Version())
		}
		node.Ctl(t, "eval", "application:set_env(rabbit, quorum_relaxed_checks_on_redeclaration, true).")
		declareQueue(t, node.URL(), "orders", amqp.Table{"x-queue-type": "quorum"})
		check(t, node.URL(), "orders", loses, classic, queueConfig(node.URL()))
	})
}

// Asking what the queue is changes nothing, and creates nothing where the queue has
// vanished: a broker that deletes it between the questions answers like this one.
func TestAskingForTheTypeTakesNoMessage(t *testing.T) {
	t.Parallel()
	url, queue, policy := testbroker.URL(t), testbroker.Queue(t), backoff.List{time.Second}
	declareQueue(t, url, queue, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1 << 30)})
	publish(t, url, "", queue, amqp.Publishing{Body: []byte("order"), DeliveryMode: 2})
	client, plan := operator(t, url, queue, topology.PerQueue{}, policy)
	require.NoError(t, client.Declare(t.Context(), plan))
	for range 3 {
		require.Empty(t, found(t, client, plan))
	}
	got := take(t, url, queue)
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
			cfg, logs := inVhost(node.URL(), "it's one"), &capture{}
			client, err := topology.Open(t.Context(), cfg.Connection, topology.PerQueue{}, topology.WithManagement(api), topology.WithLogger(logs))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, client.Close()) })
			quorumQueue(&cfg)
			if c.limit != nil {
				cfg.Queue.Arguments["x-delivery-limit"] = c.limit
			}
			require.NoError(t, subscribeError(t, client, cfg, c.queue, policy))
			plan, err := topology.PlanFor(topology.PerQueue{}, c.queue, policy)
			require.NoError(t, err)
			if !c.finite {
				require.Zero(t, logs.said(drops), logs.text())
				require.NotContains(t, found(t, client, plan), "critical dropping queue "+c.queue)
				return
			}
			require.Equal(t, 1, logs.said(drops), logs.text())
			testbroker.WaitFor(t, "the API to show the queue's policies", patience, func() bool {
				findings, err := client.Verify(t.Context(), plan)
				require.NoError(t, err)
				return slices.ContainsFunc(findings, func(f topology.Finding) bool {
					return f.Severity == topology.Critical && f.Problem == topology.Dropping && f.Name == c.queue
				})
			})
			command := commandOf(t, logs, drops)
			t.Log(command)
			node.Ctl(t, shellWords(t, command)[1:]...)
			testbroker.WaitFor(t, "Verify to find nothing", patience, func() bool {
				findings, err := client.Verify(t.Context(), plan)
				require.NoError(t, err)
				return len(findings) == 0
			})
			publish(t, url, "", c.queue, amqp.Publishing{Body: []byte("order"), DeliveryMode: 2})
			ch := testbroker.Channel(t, url)
			for range 40 {
				got, ok, err := ch.Get(c.queue, false)
				require.NoError(t, err)
				if ok {
					require.NoError(t, got.Reject(true))
				}
			}
			if c.dropped == "" {
				require.Equal(t, "order", string(take(t, url, c.queue).Body))
			} else {
				require.Equal(t, "order", string(take(t, url, c.dropped).Body))
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
	cfg := queueConfig(url)
	cfg.Queue.Arguments = amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(15)}
	require.NoError(t, subscribeError(t, client, cfg, queue, policy))
	require.Equal(t, 1, logs.said("Warning: the broker drops a message of the queue silently"), logs.text())
	require.Contains(t, logs.text(), "limit:15")
	require.Contains(t, logs.text(), "unless:a policy")
	plan, err := topology.PlanFor(topology.PerQueue{}, queue, policy)
	require.NoError(t, err)
	require.Equal(t, []string{"warning dropping queue " + queue}, found(t, client, plan))

	cfg.Queue.Arguments = amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(15), "x-dead-letter-exchange": "amq.fanout"}
	_, err = testbroker.Channel(t, url).QueueDelete(queue, false, false, false)
	require.NoError(t, err)
	client, logs = logging(t, url, topology.PerQueue{})
	require.NoError(t, subscribeError(t, client, cfg, queue, policy))
	require.Zero(t, logs.said("Warning: the broker drops"), logs.text())
	require.Empty(t, found(t, client, plan))
}

// commandOf returns the command of the log line.
func commandOf(t testing.TB, logs *capture, line string) string {
	t.Helper()
	logs.mu.Lock()
	defer logs.mu.Unlock()
	for _, e := range logs.entries {
		if strings.HasPrefix(e.msg, line) {
			command, _ := e.fields["command"].(string)
			return command
		}
	}
	t.Fatalf("no line %q", line)
	return ""
}

// shellWords splits a command as a shell does.
func shellWords(t testing.TB, command string) []string {
	t.Helper()
	out, err := exec.Command("sh", "-c", "printf '%s\\n' "+command).Output()
	require.NoError(t, err)
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}
