package operate_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

func TestVerifyNamesWhatIsMissingAndCreatesNothing(t *testing.T) {
	t.Parallel()
	rig.OnEachStrategy(t, func(t *testing.T, strategy topology.Strategy) {
		url, queue := testbroker.URL(t), testbroker.Queue(t)
		policy := backoff.List{time.Second}
		rig.RemovePlan(t, url, strategy, queue, policy)
		o, plan := opened(t, url, queue, strategy, policy)
		var want []string
		for _, e := range plan.Exchanges {
			want = append(want, "critical missing exchange "+e.Name)
		}
		want = append(want, "critical missing queue "+queue)
		for _, q := range plan.Queues {
			want = append(want, "critical missing queue "+q.Name)
		}
		require.Equal(t, want, rig.BlindFindings(t, o, plan))
		require.Equal(t, want, rig.BlindFindings(t, o, plan), "nothing was created")

		rig.Provision(t, url, strategy, queue, policy)
		want = nil
		if strings.HasSuffix(t.Name(), "classic") {
			want = []string{"critical dropping queue " + queue} // which is a quorum queue
		}
		require.ElementsMatch(t, want, rig.BlindFindings(t, o, plan))
		rig.DeleteQueue(t, url, plan.Queues[0].Name)
		require.Equal(t, append(want, "critical missing queue "+plan.Queues[0].Name),
			rig.BlindFindings(t, o, plan))
	})
}

func TestVerifyNamesTheFirstDifference(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	ch := testbroker.Channel(t, url)
	policy, strategy := backoff.List{5 * time.Second}, rig.Shared(t, topology.Quorum)
	rig.RemovePlan(t, url, strategy, queue, policy)
	o, plan := opened(t, url, queue, strategy, policy)
	declare := func(name string, args amqp.Table) {
		rig.DeclareQueue(t, url, name, args)
	}
	// The return exchange has no alternate exchange, the wait queue waits too long and is consumed,
	// and the dead-letter queue is of an older plan.
	declare(queue, nil)
	declare(strategy.Prefix+".wait.5s",
		amqp.Table{"x-queue-type": "quorum", "x-message-ttl": int64(120_000)})
	declare(queue+".dlq", amqp.Table{"x-queue-type": "quorum", "x-max-length": int64(5)})
	declare(strategy.Prefix+".stranded", plan.Queues[1].Arguments)
	require.NoError(t,
		ch.ExchangeDeclare(strategy.Prefix+".stranded", "direct", true, false, false, false, nil))
	require.NoError(t,
		ch.ExchangeDeclare(strategy.Prefix+".return", "direct", true, false, false, false, nil))
	require.NoError(
		t,
		ch.ExchangeDeclare(strategy.Prefix+".wait.5s", "fanout", true, false, false, false,
			amqp.Table{"alternate-exchange": strategy.Prefix + ".wait.5s"}),
	)
	_, err := ch.Consume(strategy.Prefix+".wait.5s", "", false, false, false, false, nil)
	require.NoError(t, err)
	require.Equal(t, []string{
		"critical conflicting exchange " + strategy.Prefix + ".stranded",
		"critical conflicting exchange " + strategy.Prefix + ".return",
		"critical consumed queue " + strategy.Prefix + ".wait.5s",
		"critical conflicting queue " + strategy.Prefix + ".wait.5s",
		"warning conflicting queue " + queue + ".dlq",
	}, rig.BlindFindings(t, o, plan))
}

func TestVerifyNamesAMissingDeadLetterTarget(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	policy := backoff.List{time.Second}
	to := func(exchange string) topology.PerQueue {
		return topology.PerQueue{Dead: topology.DeadLetters{Target: func(string) topology.Route {
			return topology.Route{Exchange: exchange, RoutingKey: "dead"}
		}}}
	}
	o, plan := opened(t, url, queue, to(queue+".nowhere"), policy)
	rig.Provision(t, url, to(queue+".nowhere"), queue, policy)
	want := []string{"critical missing exchange " + queue + ".nowhere"}
	require.Equal(t, want, rig.BlindFindings(t, o, plan))
	plan = rig.PlanFor(t, queue, to("amq.topic"), policy)
	require.Empty(t, rig.BlindFindings(t, o, plan))
}

// Levels has bindings between exchanges, and Verify looks for every one.
func verifyNamesABindingBetweenExchanges(t *testing.T, url, api string) {
	t.Helper()
	policy, strategy := backoff.List{time.Minute}, topology.Levels{Prefix: "steps", Max: time.Minute}
	rig.RemovePlan(t, url, strategy, "steps", policy)
	o, plan := opened(t, url, "steps", strategy, policy, operate.WithManagement(api))
	rig.Provision(t, url, strategy, "steps", policy)
	require.Empty(t, rig.Findings(t, o, plan))
	ch := testbroker.Channel(t, url)
	require.NoError(t, ch.ExchangeUnbind("steps.level.1", "*.*.0.#", "steps.level.2", false, nil))
	require.NoError(t, ch.QueueUnbind("steps", "#.steps", "steps.level.return", nil))
	require.Equal(t, []string{
		"critical missing binding steps.level.2 → steps.level.1",
		"critical missing binding steps.level.return → steps",
	}, rig.Findings(t, o, plan))
}

// A way back through an exchange has bindings that go by a header.
func verifyNamesABindingOfTheWayBack(t *testing.T, url, api string) {
	t.Helper()
	policy, strategy := backoff.List{time.Minute}, topology.PerQueue{
		Via: []string{"amq.topic"}, Prefix: "back",
	}
	o, plan := opened(t, url, "parcels", strategy, policy, operate.WithManagement(api))
	rig.Provision(t, url, strategy, "parcels", policy)
	require.Empty(t, bindingsMissing(t, o, plan))
	ch := testbroker.Channel(t, url)
	require.NoError(
		t,
		ch.QueueUnbind("parcels", "parcels", "back.via",
			amqp.Table{"x-match": "all", "millpond-queue": "parcels"}),
	)
	require.Equal(t, []string{"critical missing binding back.via → parcels"},
		bindingsMissing(t, o, plan))
}

// A queue that a person binds to an exchange of the plan hides that a queue of the plan has
// vanished. Another service with the same exchanges hides nothing, also if it has more levels.
func verifyNamesABindingOfAStranger(t *testing.T, url, api string) {
	t.Helper()
	policy, via := backoff.List{time.Second}, []string{"amq.topic"}
	levels := func(longest time.Duration) topology.Levels {
		return topology.Levels{Prefix: "l", Max: longest}
	}
	retry := topology.PerAttempt{ExchangeName: func(string) string { return "retry" }}
	for _, c := range []struct {
		mine, theirs topology.Strategy
		by           map[string]string // exchanges, each with a routing key
	}{
		{topology.PerQueue{Via: via}, topology.PerQueue{Via: via}, map[string]string{
			"mine.wait.1s.via": "", "millpond.via": "",
		}},
		{topology.Shared{}, topology.Shared{}, map[string]string{
			"millpond.wait.1s": "", "millpond.return": "mine",
		}},
		{levels(time.Minute), levels(time.Hour), map[string]string{
			"l.level.enter": "#", "l.level.3": "#", "l.level.return": "#",
		}},
		{retry, retry, map[string]string{"retry": "mine.retry.1.1s"}},
	} {
		o, plan := opened(t, url, "mine", c.mine, policy, operate.WithManagement(api))
		rig.Provision(t, url, c.mine, "mine", policy)
		rig.Provision(t, url, c.theirs, "theirs", policy)
		require.Empty(t, bindingsMissing(t, o, plan))
		for exchange, key := range c.by {
			rig.BindQueue(t, url, "by-hand", exchange, key)
			require.Equal(t, []string{"critical exposed binding " + exchange + " → by-hand"},
				bindingsMissing(t, o, plan))
			rig.DeleteQueue(t, url, "by-hand")
		}
	}
}

// bindingsMissing returns the findings about bindings.
func bindingsMissing(t testing.TB, o *operate.Operator, plan topology.Plan) []string {
	t.Helper()
	return slices.DeleteFunc(rig.Findings(t, o, plan), func(name string) bool {
		return !strings.Contains(name, " binding ")
	})
}

// The management API alone tells these, a real one.
func TestVerifyAsksTheManagementAPI(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "")
	node.Grant(t,
		testbroker.Grant{VHost: "/", User: "reader", Configure: "^$", Write: "^$", Read: ".*"})
	url, policy := node.URL(), backoff.List{5 * time.Second}
	ch := testbroker.Channel(t, url)
	limited := strings.HasPrefix(node.Version(), "4.") // by default
	o, plan := opened(t, url, "orders", topology.Shared{}, policy, operate.WithManagement(api))
	rig.Provision(t, url, topology.Shared{}, "orders", policy)
	require.Empty(t, rig.Findings(t, o, plan))

	verifyNamesABindingBetweenExchanges(t, url, api)
	verifyNamesABindingOfTheWayBack(t, url, api)
	verifyNamesABindingOfAStranger(t, url, api)

	// A binding is gone; policies shorten the wait and bound every queue.
	require.NoError(t, ch.QueueUnbind("orders", "orders", "millpond.return", nil))
	node.Ctl(t, "set_policy", "--apply-to", "queues", "short", `^millpond\.wait`,
		`{"message-ttl": 2000, "expires": 60000}`)
	node.Ctl(t, "set_operator_policy", "--apply-to", "queues", "ops", ".*",
		`{"max-length": 1000, "delivery-limit": 5}`)
	require.Equal(t, []string{
		"critical dropping queue orders",
		"critical overruled queue orders",
		"critical overruled queue millpond.wait.5s",
		"critical overruled queue millpond.wait.5s",
		"critical overruled queue millpond.stranded",
		"critical overruled queue millpond.stranded",
		"critical overruled queue orders.dlq",
		"critical overruled queue orders.dlq",
		"critical missing binding millpond.return → orders",
		"warning overruled queue millpond.wait.5s",
		"warning overruled queue millpond.wait.5s",
	}, rig.Findings(t, o, plan))
	node.Ctl(t, "clear_policy", "short")
	node.Ctl(t, "clear_operator_policy", "ops")

	// A policy with a TTL that is longer than the wait does no harm.
	o, plan = opened(t, url, "plain", topology.PerQueue{}, policy, operate.WithManagement(api))
	rig.Provision(t, url, topology.PerQueue{}, "plain", policy)
	node.Ctl(t, "set_policy", "--apply-to", "queues", "long", `^plain\.wait`,
		`{"message-ttl": 120000}`)
	require.Empty(t, rig.Findings(t, o, plan))

	// Nothing is declared: the API compares the arguments.
	rig.DeleteQueue(t, url, "plain.wait.5s")
	rig.DeclareQueue(t, url, "plain.wait.5s",
		amqp.Table{"x-queue-type": "quorum", "x-message-ttl": int64(60_000)})
	o, plan = opened(t, url, "plain", topology.PerQueue{}, policy, operate.WithManagement(api),
		operate.WithPreProvisioned())
	require.Equal(t, []string{"critical conflicting queue plain.wait.5s"}, rig.Findings(t, o, plan))

	// A user who may not declare is told so, and that the queue may have the default
	// limit, or is served by the API.
	reader := node.URLOf("reader")
	o, plan = opened(t, reader, "plain", topology.PerQueue{}, policy)
	want := []string{"warning unchecked queue plain"}
	if limited {
		want = append(want, "warning dropping queue plain")
	}
	require.Equal(t,
		append(want, "warning unchecked queue plain.wait.5s", "warning unchecked queue plain.dlq"),
		rig.BlindFindings(t, o, plan))
	o, plan = opened(t, reader, "plain", topology.PerQueue{}, policy, operate.WithManagement(api))
	require.Equal(t, []string{"critical conflicting queue plain.wait.5s"}, rig.Findings(t, o, plan))

	// An exchange for dead letters that no queue is bound to.
	o, plan = opened(t, url, "orders", topology.PerQueue{Dead: topology.DeadLetters{
		Target: func(string) topology.Route {
			return topology.Route{Exchange: "amq.topic", RoutingKey: "dead"}
		},
	}}, backoff.List{time.Second}, operate.WithManagement(api))
	require.Contains(t, rig.Findings(t, o, plan), "critical missing binding amq.topic")
}

// At-least-once falls back, silently, where stream_queue is off; from 4.0 on it
// cannot be.
func TestVerifyNamesADisabledFeatureFlag(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(
		t,
		`{forced_feature_flags_on_init, [quorum_queue, implicit_default_bindings, virtual_host_metadata,
		maintenance_mode_status, user_limits]}`,
	)
	if !strings.HasPrefix(node.Version(), "3.") {
		t.Skip("needs RabbitMQ 3: make test")
	}
	policy := backoff.List{time.Second}
	o, plan := opened(t, node.URL(), "orders", topology.PerQueue{}, policy,
		operate.WithManagement(api))
	rig.Provision(t, node.URL(), topology.PerQueue{}, "orders", policy)
	require.Equal(t, []string{"critical disabled broker stream_queue"}, rig.Findings(t, o, plan))
	o, plan = opened(t, node.URL(), "orders", topology.PerQueue{Type: topology.Classic}, policy,
		operate.WithManagement(api))
	for _, name := range rig.Findings(t, o, plan) {
		require.NotContains(t, name, "stream_queue", "classic queues need none")
	}
}

// asking runs questions on new channels of a connection, and calls before with the number of each.
func asking(t *testing.T, url string, before func(question int)) audit.Runner {
	t.Helper()
	conn, question := testbroker.Dial(t, url), 0
	return func(_ context.Context, f func(*amqp.Channel) error) error {
		question++
		before(question)
		ch, err := conn.Channel()
		require.NoError(t, err)
		defer func() { _ = ch.Close() }()
		return f(ch)
	}
}

// Given a queue that vanishes before or between the questions for its type and its arguments, when
// they are asked, then none of them creates it.
func TestAskingWhatAQueueIsCreatesNone(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	for _, kind := range []string{audit.Classic, audit.Quorum} {
		for vanishes := range 3 {
			t.Run(fmt.Sprintf("%s, before question %d", kind, vanishes+1), func(t *testing.T) {
				t.Parallel()
				queue := testbroker.Queue(t)
				args := amqp.Table{"x-queue-type": kind, "x-message-ttl": int64(5000)}
				rig.DeclareQueue(t, url, queue, args)
				run := asking(t, url, func(question int) {
					if question == vanishes+1 {
						rig.DeleteQueue(t, url, queue)
					}
				})
				likely := amqp.Table{"x-message-ttl": int64(1000)}
				f, err := audit.Learn(t.Context(), run, queue, likely, audit.Version{Major: 4}, nil)
				if vanishes == 0 {
					require.True(t, audit.IsCode(err, amqp.NotFound), "%v", err)
				} else {
					require.NoError(t, err)
					require.False(t, f.Known)
				}
				require.Equal(t, -1, testbroker.Depth(t, url, queue))
			})
		}
	}
}

// The arguments of a queue are found out one by one, whichever the configuration names.
func TestArgumentsOfAQueueAreFoundOut(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	args := amqp.Table{
		"x-queue-type": "quorum", "x-delivery-limit": int64(8), "x-overflow": "drop-head",
		"x-dead-letter-exchange": "amq.topic", "x-dead-letter-routing-key": "it's 'x'",
		"x-single-active-consumer": true, "x-message-ttl": int64(100000),
		"x-quorum-initial-group-size": int64(1),
	}
	rig.DeclareQueue(t, url, queue, args)
	for name, configured := range map[string]amqp.Table{
		"nothing is known": nil,
		"another is meant": {
			"x-delivery-limit": int32(20), "x-max-length": int64(5), "x-overflow": "reject-publish",
			"x-message-ttl": "1",
		},
		"the same": args,
	} {
		run := asking(t, url, func(int) {})
		f, err := audit.Learn(t.Context(), run, queue, configured, audit.Version{Major: 4}, nil)
		require.NoError(t, err, name)
		require.Equal(t, audit.Quorum, f.Kind, name)
		require.True(t, f.Known, name)
		require.True(t, f.DeadLetters, name)
		limit, _ := f.DeliveryLimit()
		require.Equal(t, 8, limit, name)
		require.Equal(t, "it's 'x'", f.Arguments["x-dead-letter-routing-key"], name)
		found, want := maps.Clone(f.Arguments), maps.Clone(args)
		delete(found, "x-message-ttl") // a text where a text was meant
		delete(want, "x-message-ttl")
		require.Equal(t, len(want), len(found), "%s: %v", name, found)
	}
}
