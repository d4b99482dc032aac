package topology_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// found returns the findings as "severity problem kind name", logs them, and checks that a
// second look finds the same in the same order. Without the management API the last one
// must be that no policy was looked at, which is left out.
func found(t testing.TB, client *topology.Client, plan topology.Plan) []string {
	t.Helper()
	findings, err := client.Verify(t.Context(), plan)
	require.NoError(t, err)
	again, err := client.Verify(t.Context(), plan)
	require.NoError(t, err)
	require.Equal(t, findings, again)
	names := []string{}
	for _, f := range findings {
		t.Log(f)
		names = append(names, string(f.Severity)+" "+string(f.Problem)+" "+f.Kind+" "+f.Name)
	}
	if !client.HasManagement() {
		require.NotEmpty(t, findings)
		last := len(findings) - 1
		require.Equal(t, topology.Unchecked, findings[last].Problem)
		require.Contains(t, findings[last].Text, "policies, bindings, feature flags, alarms and replicas were not looked at")
		names = names[:last]
	}
	return names
}

func TestVerifyNamesWhatIsMissingAndCreatesNothing(t *testing.T) {
	t.Parallel()
	for name, strategy := range rig.Strategies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, queue := testbroker.URL(t), testbroker.Queue(t)
			policy, strategy := backoff.List{time.Second}, strategy(t)
			rig.RemovePlan(t, url, strategy, queue, policy)
			client, plan := rig.Operator(t, url, queue, strategy, policy)
			var want []string
			for _, e := range plan.Exchanges {
				want = append(want, "critical missing exchange "+e.Name)
			}
			want = append(want, "critical missing queue "+queue)
			for _, q := range plan.Queues {
				want = append(want, "critical missing queue "+q.Name)
			}
			require.Equal(t, want, found(t, client, plan))
			require.Equal(t, want, found(t, client, plan), "nothing was created")

			rig.Provision(t, url, client, queue, policy)
			want = nil
			if strings.HasSuffix(name, "classic") {
				want = []string{"critical dropping queue " + queue} // which is a quorum queue
			}
			require.ElementsMatch(t, want, found(t, client, plan))
			_, err := testbroker.Channel(t, url).QueueDelete(plan.Queues[0].Name, false, false, false)
			require.NoError(t, err)
			require.Equal(t, append(want, "critical missing queue "+plan.Queues[0].Name), found(t, client, plan))
		})
	}
}

func TestVerifyNamesTheFirstDifference(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	ch := testbroker.Channel(t, url)
	policy, strategy := backoff.List{5 * time.Second}, rig.Shared(t, topology.Quorum)
	rig.RemovePlan(t, url, strategy, queue, policy)
	client, plan := rig.Operator(t, url, queue, strategy, policy)
	declare := func(name string, args amqp.Table) {
		_, err := ch.QueueDeclare(name, true, false, false, false, args)
		require.NoError(t, err)
	}
	// The return exchange knows no alternate one, the wait queue waits too long,
	// somebody consumes it, and the dead-letter queue is an older one.
	declare(queue, nil)
	declare(strategy.Prefix+".wait.5s", amqp.Table{"x-queue-type": "quorum", "x-message-ttl": int64(120_000)})
	declare(queue+".dlq", amqp.Table{"x-queue-type": "quorum", "x-max-length": int64(5)})
	declare(strategy.Prefix+".stranded", plan.Queues[1].Arguments)
	require.NoError(t, ch.ExchangeDeclare(strategy.Prefix+".stranded", "direct", true, false, false, false, nil))
	require.NoError(t, ch.ExchangeDeclare(strategy.Prefix+".return", "direct", true, false, false, false, nil))
	require.NoError(t, ch.ExchangeDeclare(strategy.Prefix+".wait.5s", "fanout", true, false, false, false, amqp.Table{"alternate-exchange": strategy.Prefix + ".wait.5s"}))
	_, err := ch.Consume(strategy.Prefix+".wait.5s", "", false, false, false, false, nil)
	require.NoError(t, err)
	require.Equal(t, []string{
		"critical conflicting exchange " + strategy.Prefix + ".stranded",
		"critical conflicting exchange " + strategy.Prefix + ".return",
		"critical consumed queue " + strategy.Prefix + ".wait.5s",
		"critical conflicting queue " + strategy.Prefix + ".wait.5s",
		"warning conflicting queue " + queue + ".dlq",
	}, found(t, client, plan))
}

func TestVerifyNamesAMissingDeadLetterTarget(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	policy := backoff.List{time.Second}
	to := func(route topology.Route) (*topology.Client, topology.Plan) {
		client, plan := rig.Operator(t, url, queue, topology.PerQueue{Dead: topology.DeadLetters{
			Target: func(string) topology.Route { return route },
		}}, policy)
		return client, plan
	}
	client, plan := to(topology.Route{Exchange: queue + ".nowhere", RoutingKey: "dead"})
	rig.Provision(t, url, client, queue, policy)
	require.Equal(t, []string{"critical missing exchange " + queue + ".nowhere"}, found(t, client, plan))
	client, plan = to(topology.Route{Exchange: "amq.topic", RoutingKey: "dead"})
	require.Empty(t, found(t, client, plan))
}

// Levels has bindings between exchanges, and every one is looked for.
func verifyNamesABindingBetweenExchanges(t *testing.T, url, api string) {
	t.Helper()
	policy, strategy := backoff.List{time.Minute}, topology.Levels{Prefix: "steps", Max: time.Minute}
	rig.RemovePlan(t, url, strategy, "steps", policy)
	client, plan := rig.Operator(t, url, "steps", strategy, policy, topology.WithManagement(api))
	cfg := rig.QueueConfig(url)
	sub, err := client.NewSubscriber(cfg, topology.ForPolicy(policy))
	require.NoError(t, err)
	require.NoError(t, sub.SubscribeInitialize("steps"))
	require.Empty(t, found(t, client, plan))
	ch := testbroker.Channel(t, url)
	require.NoError(t, ch.ExchangeUnbind("steps.level.1", "*.*.0.#", "steps.level.2", false, nil))
	require.NoError(t, ch.QueueUnbind("steps", "#.steps", "steps.level.return", nil))
	require.Equal(t, []string{
		"critical missing binding steps.level.2 → steps.level.1", "critical missing binding steps.level.return → steps",
	}, found(t, client, plan))
}

// A way back through an exchange has bindings that go by a header.
func verifyNamesABindingOfTheWayBack(t *testing.T, url, api string) {
	t.Helper()
	policy, strategy := backoff.List{time.Minute}, topology.PerQueue{Via: "amq.topic", Prefix: "back"}
	client, plan := rig.Operator(t, url, "parcels", strategy, policy, topology.WithManagement(api))
	rig.Provision(t, url, client, "parcels", policy)
	require.Empty(t, bindingsMissing(t, client, plan))
	ch := testbroker.Channel(t, url)
	require.NoError(t, ch.QueueUnbind("parcels", "parcels", "back.return.amq.topic", amqp.Table{"x-match": "all", "millpond-queue": "parcels"}))
	require.Equal(t, []string{"critical missing binding back.return.amq.topic → parcels"}, bindingsMissing(t, client, plan))
}

// bindingsMissing are the findings about bindings.
func bindingsMissing(t testing.TB, client *topology.Client, plan topology.Plan) []string {
	t.Helper()
	return slices.DeleteFunc(found(t, client, plan), func(name string) bool { return !strings.Contains(name, " binding ") })
}

// What only the management API can tell, from a real one.
func TestVerifyAsksTheManagementAPI(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "")
	node.Grant(t, testbroker.Grant{VHost: "/", User: "reader", Configure: "^$", Write: "^$", Read: ".*"})
	url, policy := node.URL(), backoff.List{5 * time.Second}
	ch := testbroker.Channel(t, url)
	limited := strings.HasPrefix(node.Version(), "4.") // by default
	client, plan := rig.Operator(t, url, "orders", topology.Shared{}, policy, topology.WithManagement(api))
	cfg := rig.QueueConfig(url)
	rig.QuorumQueue(&cfg)
	cfg.Queue.Arguments["x-delivery-limit"] = int64(1 << 30)
	sub, err := client.NewSubscriber(cfg, topology.ForPolicy(policy))
	require.NoError(t, err)
	require.NoError(t, sub.SubscribeInitialize("orders"))
	require.Empty(t, found(t, client, plan))

	verifyNamesABindingBetweenExchanges(t, url, api)
	verifyNamesABindingOfTheWayBack(t, url, api)

	// A binding is gone; policies shorten the wait and bound every queue.
	require.NoError(t, ch.QueueUnbind("orders", "orders", "millpond.return", nil))
	node.Ctl(t, "set_policy", "--apply-to", "queues", "short", `^millpond\.wait`, `{"message-ttl": 2000, "expires": 60000}`)
	node.Ctl(t, "set_operator_policy", "--apply-to", "queues", "ops", ".*", `{"max-length": 1000, "delivery-limit": 5}`)
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
	}, found(t, client, plan))
	node.Ctl(t, "clear_policy", "short")
	node.Ctl(t, "clear_operator_policy", "ops")

	// A policy with a TTL that is longer than the wait does no harm.
	client, plan = rig.Operator(t, url, "plain", topology.PerQueue{}, policy, topology.WithManagement(api))
	rig.Provision(t, url, client, "plain", policy)
	node.Ctl(t, "set_policy", "--apply-to", "queues", "long", `^plain\.wait`, `{"message-ttl": 120000}`)
	require.Empty(t, found(t, client, plan))

	// Nothing is declared: the API compares the arguments.
	_, err = ch.QueueDelete("plain.wait.5s", false, false, false)
	require.NoError(t, err)
	_, err = ch.QueueDeclare("plain.wait.5s", true, false, false, false, amqp.Table{"x-queue-type": "quorum", "x-message-ttl": int64(60_000)})
	require.NoError(t, err)
	client, plan = rig.Operator(t, url, "plain", topology.PerQueue{}, policy, topology.WithManagement(api), topology.WithPreProvisioned())
	require.Equal(t, []string{"critical conflicting queue plain.wait.5s"}, found(t, client, plan))

	// A user who may not declare is told so, and that the queue may have the default
	// limit, or is served by the API.
	reader := node.URLOf("reader")
	client, plan = rig.Operator(t, reader, "plain", topology.PerQueue{}, policy)
	want := []string{"warning unchecked queue plain"}
	if limited {
		want = append(want, "warning dropping queue plain")
	}
	require.Equal(t, append(want, "warning unchecked queue plain.wait.5s", "warning unchecked queue plain.dlq"), found(t, client, plan))
	client, plan = rig.Operator(t, reader, "plain", topology.PerQueue{}, policy, topology.WithManagement(api))
	require.Equal(t, []string{"critical conflicting queue plain.wait.5s"}, found(t, client, plan))

	// An exchange for dead letters that no queue is bound to.
	client, plan = rig.Operator(t, url, "orders", topology.PerQueue{Dead: topology.DeadLetters{
		Target: func(string) topology.Route { return topology.Route{Exchange: "amq.topic", RoutingKey: "dead"} },
	}}, backoff.List{time.Second}, topology.WithManagement(api))
	require.Contains(t, found(t, client, plan), "critical missing binding amq.topic")
}

// At-least-once falls back, silently, where stream_queue is off; from 4.0 on it
// cannot be.
func TestVerifyNamesADisabledFeatureFlag(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, `{forced_feature_flags_on_init, [quorum_queue, implicit_default_bindings, virtual_host_metadata, maintenance_mode_status, user_limits]}`)
	if !strings.HasPrefix(node.Version(), "3.") {
		t.Skipf("RabbitMQ %s cannot be without stream_queue", node.Version())
	}
	policy := backoff.List{time.Second}
	client, plan := rig.Operator(t, node.URL(), "orders", topology.PerQueue{}, policy, topology.WithManagement(api))
	rig.Provision(t, node.URL(), client, "orders", policy)
	require.Equal(t, []string{"critical disabled broker stream_queue"}, found(t, client, plan))
	client, plan = rig.Operator(t, node.URL(), "orders", topology.PerQueue{Type: topology.Classic}, policy, topology.WithManagement(api))
	for _, name := range found(t, client, plan) {
		require.NotContains(t, name, "stream_queue", "classic queues need none")
	}
}
