package e2e_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/management"
	"github.com/millpond-go/millpond/topology/operate"
)

var sourcePolicy = backoff.List{time.Second}

// sourceConfig returns the configuration of a main queue with these arguments.
func sourceConfig(url string, args amqp.Table) wamqp.Config {
	cfg := rig.QueueConfig(url)
	cfg.Queue.Arguments = maps.Clone(args)
	return cfg
}

// declaresNothing is a TopologyBuilder that finds its queue declared.
type declaresNothing struct{ wamqp.DefaultTopologyBuilder }

func (declaresNothing) BuildTopology(
	*amqp.Channel, string, string, wamqp.Config, watermill.LoggerAdapter,
) error {
	return nil
}

// A stream skips the messages before its consumer and delivers none again. It is refused in
// the configuration, and when it is found on the broker. Nothing is declared for it. See also
// TestQueueArgumentsThatLoseMessagesAreRefused.
func TestStreamIsRefusedAsSourceQueue(t *testing.T) {
	t.Parallel()
	stream := amqp.Table{"x-queue-type": "stream"}
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	client := rig.OpenClient(t, url, topology.PerQueue{})
	refused := func(cfg wamqp.Config, queue, text string) {
		t.Helper()
		require.ErrorContains(t, rig.SubscribeError(t, client, cfg, queue, sourcePolicy), text)
		plan := rig.PlanFor(t, queue, topology.PerQueue{}, sourcePolicy)
		for _, name := range rig.QueueNames(plan) {
			require.Equal(t, -1, testbroker.Depth(t, url, name), "no queue is declared for a stream")
		}
	}
	refused(sourceConfig(url, stream), queue,
		"a stream skips messages that were published before its consumer")
	require.Equal(t, -1, testbroker.Depth(t, url, queue), "nothing was declared")

	// A long name leaves no room for the type in the broker's answer.
	long := queue + "-" + strings.Repeat("q", 220-len(queue))
	testbroker.Delete(t, long)
	found := rig.QueueConfig(url)
	found.TopologyBuilder = declaresNothing{}
	for _, name := range []string{queue, long} {
		rig.DeclareQueue(t, url, name, stream)
		refused(found, name, "x-queue-type is stream")
	}
}

// Given arguments by which the user's queue loses messages without a trace, then they are
// refused: in the configuration, on the broker, and by Verify. Arguments that send the messages
// to a dead-letter exchange are named.
func TestQueueArgumentsThatLoseMessagesAreRefused(t *testing.T) {
	t.Parallel()
	const (
		ttl     = "x-message-ttl is 600000: messages that are not handled within so many milliseconds "
		length  = "x-max-length is 1000: the oldest messages of a full queue "
		nowhere = "" // The finding is about the exchange.
	)
	const fanout, dlx = "amq.fanout", "x-dead-letter-exchange"
	const tenMinutes, thousand = int64(600_000), int64(1000)
	type testCase struct {
		args     amqp.Table
		severity operate.Severity // "" if it is harmless
		says     string
	}
	rig.Each(t, map[string]testCase{
		"expires": {
			amqp.Table{"x-expires": tenMinutes},
			operate.Critical,
			"x-expires is 600000: the queue is deleted with all its messages",
		},
		"ttl": {amqp.Table{"x-message-ttl": tenMinutes}, operate.Critical, ttl + "are dropped"},
		"ttl, dead letters": {
			amqp.Table{"x-message-ttl": tenMinutes, dlx: fanout}, operate.Warning, ttl + "go to",
		},
		"ttl, dead letters nowhere": {
			amqp.Table{"x-message-ttl": tenMinutes, dlx: "millpond-nowhere"}, operate.Critical, nowhere,
		},
		"length": {amqp.Table{"x-max-length": thousand}, operate.Critical, length + "are dropped"},
		"length, dead letters": {
			amqp.Table{"x-max-length": thousand, dlx: fanout}, operate.Warning, length + "go to",
		},
		"bytes": {
			amqp.Table{"x-max-length-bytes": int64(1 << 20), "x-overflow": "drop-head"},
			operate.Critical,
			"x-max-length-bytes is 1048576: the oldest",
		},
		"stream": {
			amqp.Table{"x-queue-type": "stream"}, operate.Critical, "x-queue-type is stream",
		},
		"overflow": {
			amqp.Table{"x-max-length": thousand, "x-overflow": "reject-publish"},
			operate.Critical,
			`x-overflow "reject-publish" refuses messages that return`,
		},
		"no delivery twice": {
			amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(0)},
			operate.Critical,
			"x-delivery-limit is 0",
		},
		"dead letters alone": {args: amqp.Table{dlx: fanout}},
		"single active consumer": {
			args: amqp.Table{"x-single-active-consumer": true, "x-overflow": "drop-head"},
		},
		"large limit": {args: amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1 << 30)}},
	}, func(t *testing.T, c testCase) {
		url, queue := testbroker.URL(t), testbroker.Queue(t)
		plan := rig.RemovePlan(t, url, topology.PerQueue{}, queue, sourcePolicy)
		client, o := rig.OpenClient(t, url, topology.PerQueue{}), rig.OpenOperator(t, url)
		provisioned, logs := rig.OpenLogged(t, url, topology.PerQueue{}, topology.WithPreProvisioned())
		rig.DeclareQueue(t, url, queue, c.args)
		require.NoError(t, o.Declare(t.Context(), plan))
		for where, err := range map[string]error{
			"configured": rig.SubscribeError(t, client, sourceConfig(url, c.args), queue, sourcePolicy),
			"found":      rig.SubscribeError(t, provisioned, rig.QueueConfig(url), queue, sourcePolicy),
		} {
			if c.severity == operate.Critical {
				require.ErrorContains(t, err, c.says, where)
			} else {
				require.NoError(t, err, where)
			}
		}
		if c.severity == operate.Warning {
			const line = "Warning: an argument of the queue takes messages out of it"
			require.Equal(t, 1, logs.Said(line), logs.Text())
			require.Contains(t, logs.Text(), "consequence:"+strings.SplitN(c.says, " ", 2)[1])
		}
		about := slices.DeleteFunc(rig.Verify(t, o, plan), func(f operate.Finding) bool {
			return f.Name != queue || !strings.HasPrefix(f.Text, "x-")
		})
		if c.severity == "" {
			require.Empty(t, about)
			return
		}
		require.Len(t, about, 1)
		require.Equal(t, c.severity, about[0].Severity)
		require.Contains(t, about[0].Text, c.says)
		t.Log(about[0])
	})
}

// A queue that is not durable is found out, even by a client that declares nothing.
func TestTransientQueueIsRefusedWhereItIsFound(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	_, err := testbroker.Channel(t, url).QueueDeclare(queue, true, true, false, false, nil)
	require.NoError(t, err)
	plan := rig.PlanFor(t, queue, topology.PerQueue{}, sourcePolicy)
	require.NoError(t, rig.OpenOperator(t, url).Declare(t.Context(), plan))
	provisioned := rig.OpenClient(t, url, topology.PerQueue{}, topology.WithPreProvisioned())
	err = rig.SubscribeError(t, provisioned, rig.QueueConfig(url), queue, sourcePolicy)
	require.ErrorContains(t, err, "auto-delete is true")
}

// The warnings go by the real type of the queue: in a vhost whose default type is quorum, on a
// broker that overlooks the type, and for a user who may declare nothing.
func TestWarningsGoByTheRealQueueType(t *testing.T) {
	t.Parallel()
	const loses = "Warning: messages that wait in a classic queue are lost if their wait ends " +
		"while the broker restarts, because their quorum queue is not up yet"
	const classic = "Warning: the queue is a classic one"
	strategy := topology.PerQueue{Type: topology.Classic}
	node := commonNode(t)
	node.Ctl(t, "add_vhost", "typed", "--default-queue-type", "quorum")
	node.Grant(t, testbroker.Everything("typed", "guest"), testbroker.Everything("plain", "guest"),
		testbroker.Grant{VHost: "typed", User: "reader", Configure: "^$", Write: ".*", Read: ".*"})
	check := func(
		t *testing.T, cfg wamqp.Config, queue, said, unsaid string, options ...topology.Option,
	) {
		t.Helper()
		client, logs := rig.OpenLogged(t, cfg.Connection.AmqpURI, strategy, options...)
		require.NoError(t, rig.SubscribeError(t, client, cfg, queue, sourcePolicy))
		require.Equal(t, 1, logs.Said(said), logs.Text())
		require.Zero(t, logs.Said(unsaid), logs.Text())
	}
	requireFound := func(t *testing.T, cfg wamqp.Config, queue, finding string) {
		t.Helper()
		o := rig.OpenOperator(t, cfg.Connection.AmqpURI)
		plan := rig.PlanFor(t, queue, strategy, sourcePolicy)
		require.Contains(t, rig.BlindFindings(t, o, plan), finding)
	}
	typed, plain := rig.QueueConfig(node.URL()+"typed"), rig.QueueConfig(node.URL()+"plain")
	t.Run("default of the vhost", func(t *testing.T) {
		check(t, typed, "orders", loses, classic)
		requireFound(t, typed, "orders", "critical dropping queue orders")
		check(t, typed, "orders", loses, classic, topology.WithPreProvisioned())
	})
	t.Run("nothing may be declared", func(t *testing.T) {
		reader := rig.QueueConfig(node.URLOf("reader") + "typed")
		check(t, reader, "orders", loses, classic, topology.WithPreProvisioned())
	})
	t.Run("classic", func(t *testing.T) {
		check(t, plain, "plain", classic, loses)
		check(t, plain, "plain", classic, loses, topology.WithPreProvisioned())
	})
	t.Run("the name leaves no room for the type", func(t *testing.T) {
		queue, cfg := strings.Repeat("q", 220), rig.QueueConfig(node.URL()+"plain")
		rig.QuorumQueue(&cfg)
		check(t, cfg, queue, "Warning: the type of the queue is not known", classic)
		requireFound(t, cfg, queue, "warning unchecked queue "+queue)
	})
	t.Run("the broker overlooks the type", func(t *testing.T) {
		if !strings.HasPrefix(node.Version(), "4.") {
			t.Skip("needs RabbitMQ 4: make test BROKER=4.0")
		}
		node.Ctl(t, "eval", "application:set_env(rabbit, quorum_relaxed_checks_on_redeclaration, true).")
		rig.DeclareQueue(t, node.URL()+"plain", "orders", amqp.Table{"x-queue-type": "quorum"})
		check(t, plain, "orders", loses, classic)
	})
}

const dropsSilently = "Warning: the broker drops a message of the queue silently"

// Given a queue whose delivery limit only the management API shows for sure, when the service
// starts, then one line says so: no warning if the queue itself has none, and the error of an API
// that does not answer.
func TestALimitThatCannotBeSeenIsTakenForASmallOne(t *testing.T) {
	t.Parallel()
	away := topology.WithManagement(management.At("http://guest:secret@127.0.0.1:9"))
	rig.Each(t, map[string]struct {
		limit   int64
		options []topology.Option
		line    string
	}{
		"no limit":       {1 << 30, nil, "only the management API shows whether a policy sets one"},
		"a small limit":  {9, nil, "Warning: a delivery limit of the queue may be set"},
		"an API is away": {1 << 30, []topology.Option{away}, "Warning: the management API"},
	}, func(t *testing.T, c struct {
		limit   int64
		options []topology.Option
		line    string
	},
	) {
		r := rig.Start(t, rig.Config{
			Policy: backoff.List{time.Second}, Handle: rig.Succeed, ClientOptions: c.options,
			Configure: func(cfg *wamqp.Config) {
				cfg.Queue.Arguments = amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": c.limit}
			},
		})
		require.Equal(t, 1, r.Logs.Said("ended twice is snoozed for a second and tried alone"))
		require.Equal(t, 1, r.Logs.Said(c.line))
		require.Zero(t, r.Logs.Said("secret"))
	})
}

// Given a finite delivery limit without a dead-letter target, then it is named with the command
// that removes it. The command works, and then nothing is named.
func TestFiniteDeliveryLimitIsNamedWithItsRemedy(t *testing.T) {
	t.Parallel()
	node := commonNode(t)
	limited := strings.HasPrefix(node.Version(), "4.") // by default
	node.Grant(t, testbroker.Everything("it's one", "guest"))
	url := node.URL() + "it%27s%20one"
	type testCase struct {
		queue  string
		limit  any // of the argument
		finite bool
		end    string // the queue of the message in the end
	}
	rig.Each(t, map[string]testCase{
		"default":  {"o'range+1", nil, limited, "o'range+1"},
		"argument": {"pears", int64(9), true, "pears.dlq"},
		"large":    {"plums", int64(1 << 30), false, ""},
	}, func(t *testing.T, c testCase) {
		// Every question is about the vhost that is opened, not the vhost of the URL.
		cfg, logs := inVhost(node.URL(), "it's one"), &rig.Logs{}
		client := rig.OpenWith(t, cfg.Connection, topology.PerQueue{},
			topology.WithManagement(management.At(api)), topology.WithLogger(logs))
		o := rig.OpenOperator(t, node.URL(), operate.WithManagement(api),
			operate.WithAMQP(amqp.Config{Vhost: "it's one"}))
		rig.QuorumQueue(&cfg)
		if c.limit != nil {
			cfg.Queue.Arguments["x-delivery-limit"] = c.limit
		}
		require.NoError(t, rig.SubscribeError(t, client, cfg, c.queue, sourcePolicy))
		plan := rig.PlanFor(t, c.queue, topology.PerQueue{}, sourcePolicy)
		dropping := "critical dropping queue " + c.queue
		if !c.finite {
			require.Zero(t, logs.Said(dropsSilently), logs.Text())
			require.NotContains(t, rig.Findings(t, o, plan), dropping)
			return
		}
		require.Equal(t, 1, logs.Said(dropsSilently), logs.Text())
		rig.WaitFor(t, "the API to show the queue's policies", func() bool {
			return slices.ContainsFunc(rig.Verify(t, o, plan), func(f operate.Finding) bool {
				return f.Severity == operate.Critical && f.Problem == operate.Dropping && f.Name == c.queue
			})
		})
		i := slices.IndexFunc(logs.All(), func(e rig.LogEntry) bool {
			return strings.HasPrefix(e.Msg, dropsSilently)
		})
		command, _ := logs.All()[i].Fields["command"].(string)
		t.Log(command)
		node.Ctl(t, rig.ShellWords(t, command)[1:]...)
		rig.WaitFor(t, "Verify to find nothing", func() bool {
			return len(rig.Verify(t, o, plan)) == 0
		})
		rig.Publish(t, url, "", c.queue, rig.Message("order"))
		ch := testbroker.Channel(t, url)
		for range 40 {
			d, ok, err := ch.Get(c.queue, false)
			require.NoError(t, err)
			if ok {
				require.NoError(t, d.Reject(true))
			}
		}
		require.Equal(t, "order", string(rig.Take(t, url, c.end).Body))
	})
}

// Without the management API the log line says that a broker policy may raise the limit, and
// Verify warns. With a dead-letter exchange there is nothing to name.
func TestDeliveryLimitThatAPolicyMayRaiseIsNamed(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	o, plan := rig.OpenOperator(t, url), rig.PlanFor(t, queue, topology.PerQueue{}, sourcePolicy)
	args := amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(15)}
	subscribe := func() *rig.Logs {
		client, logs := rig.OpenLogged(t, url, topology.PerQueue{})
		require.NoError(t, rig.SubscribeError(t, client, sourceConfig(url, args), queue, sourcePolicy))
		return logs
	}
	logs := subscribe()
	require.Equal(t, 1, logs.Said(dropsSilently), logs.Text())
	require.Contains(t, logs.Text(), "limit:15")
	require.Contains(t, logs.Text(), "unless:a policy")
	require.Equal(t, []string{"warning dropping queue " + queue}, rig.BlindFindings(t, o, plan))

	args["x-dead-letter-exchange"] = "amq.fanout"
	rig.DeleteQueue(t, url, queue)
	logs = subscribe()
	require.Zero(t, logs.Said("Warning: the broker drops"), logs.Text())
	require.Empty(t, rig.BlindFindings(t, o, plan))
}
