package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// policyKeys has each key of a policy that RabbitMQ 3.10, 4.0 and 4.3 know, with a
// value under which no message leaves a queue that is left alone. A key that is new in
// a broker fails the test: find out what becomes of a message that is looked at.
var policyKeys = map[string]any{
	"alternate-exchange":      "amq.fanout",
	"dead-letter-exchange":    "",
	"dead-letter-routing-key": "elsewhere",
	"dead-letter-strategy":    "at-least-once",
	"expires":                 86_400_000,
	"max-length":              1_000_000,
	"max-length-bytes":        1 << 30,
	"message-ttl":             86_400_000,
	"overflow":                "reject-publish",
	"queue-version":           2,

	"delivery-limit": 1, // bites who looks

	// Given back, a message of a quorum queue is ready again after 50 ms.
	"delayed-retry-type": "all", "delayed-retry-min": 50, "delayed-retry-max": 50,

	"consumer-timeout": 60_000, "consumer-disconnected-timeout": 60_000,

	// Where queues live and how they are stored.
	"ha-mode": "exactly", "ha-params": 1, "ha-promote-on-failure": "always",
	"ha-promote-on-shutdown": "always",
	"ha-sync-mode":           "automatic", "ha-sync-batch-size": 10,
	"initial-cluster-size": 1, "target-group-size": 1,
	"max-in-memory-bytes": 1 << 30, "max-in-memory-length": 1_000_000,
	"queue-leader-locator": "client-local", "queue-master-locator": "client-local",
	"queue-mode": "lazy",

	// Of streams.
	"max-age": "1D", "stream-filter-size-bytes": 32, "stream-max-segment-size-bytes": 1_000_000,
}

// keysOf are the keys that the broker knows, of policies and of operator policies.
func keysOf(t *testing.T, node *testbroker.Node) map[string][]string {
	t.Helper()
	user, operator, ok := strings.Cut(node.Ctl(t, "eval", `[io:format("~s~n",
		[lists:join(" ", [atom_to_list(K) || {K, _} <- rabbit_registry:lookup_all(V)])])
		|| V <- [policy_validator, operator_policy_validator]].`), "\n")
	require.True(t, ok)
	operator, _, _ = strings.Cut(operator, "\n")
	keys := map[string][]string{
		"policies": strings.Fields(user), "operator-policies": strings.Fields(operator),
	}
	require.Contains(t, keys["policies"], "delivery-limit")
	require.Contains(t, keys["operator-policies"], "delivery-limit")
	if strings.HasPrefix(node.Version(), "4.3") { // knows the key, and refuses a policy with it
		for kind, list := range keys {
			keys[kind] = slices.DeleteFunc(list,
				func(key string) bool { return key == "queue-master-locator" })
		}
	}
	return keys
}

// definitionOf is a policy of those keys that choose chooses.
func definitionOf(t *testing.T, keys []string, choose func(key string) bool) map[string]any {
	t.Helper()
	definition := map[string]any{}
	for _, key := range keys {
		value, known := policyKeys[key]
		require.True(t, known, "the policy key %q is new: see policyKeys", key)
		if choose(key) {
			definition[key] = value
		}
	}
	return definition
}

// Each policy that the broker knows is set on all queues, as a user's and as an operator's. A
// message that is looked at, twice, or five times with MILLPOND_LONG, stays; or the look is
// refused. Under a delivery limit lists deleted the dead letters that they showed.
func TestLookingUnderAPolicyDeletesNothing(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "")
	keys := keysOf(t, node)
	limit := func(key string) bool { return key == "delivery-limit" }
	// of quorum queues alone
	late := func(key string) bool { return strings.HasPrefix(key, "delayed-retry-") }
	rest := func(key string) bool { return !limit(key) && !late(key) }
	for _, c := range []struct {
		vhost    string
		policies []string
		choose   func(key string) bool
		queues   []string
	}{
		{"user", []string{"policies"}, limit, []string{"quorum", "classic"}},
		{"operator", []string{"operator-policies"}, limit, []string{"quorum"}},
		{"late", []string{"policies", "operator-policies"}, late, []string{"quorum"}},
		{"rest", []string{"policies", "operator-policies"}, rest, []string{"quorum", "classic"}},
	} {
		definitions := map[string]map[string]any{}
		for _, kind := range c.policies {
			if d := definitionOf(t, keys[kind], c.choose); len(d) > 0 {
				definitions[kind] = d
			}
		}
		t.Logf("%s, vhost %s: %v", node.Version(), c.vhost, definitions)
		if len(definitions) == 0 {
			continue // keys of a later version
		}
		node.Grant(t, testbroker.Everything(c.vhost, "guest"))
		t.Run(c.vhost, func(t *testing.T) {
			for _, kind := range c.queues {
				l := newLooks(t, node.URL()+c.vhost, api, kind)
				for of, definition := range definitions {
					testbroker.SetPolicy(t, api, of, c.vhost, "all", ".*", definition)
				}
				unsafe := kind == "quorum" && definitions[c.policies[0]]["delivery-limit"] != nil
				l.everywhere([]string{"--management", api}, unsafe, "refused-"+c.vhost+"-policy")
				if kind == "quorum" {
					l.everywhere([]string{"--no-management"}, true, "refused-unseen")
				}
				for queue, n := range l.counts {
					rig.AwaitDepth(t, l.url, queue, n)
				}
			}
		})
	}
}

// looks are looks at one service on a node with the management API.
type looks struct {
	*service
	counts map[string]int // by queue, of messages
}

func newLooks(t *testing.T, address, api, kind string) *looks {
	t.Helper()
	l := &looks{service: &service{t: t, url: address, queue: "orders-" + kind, kind: kind}}
	rig.DeclareQueue(t, address, l.queue, amqp.Table{"x-queue-type": kind})
	o := l.look([]string{"--management", api}, "declare", l.queue)
	require.Zero(t, o.code, o.err)
	l.die()
	wait := l.queue + ".wait.1h"
	if kind == "classic" {
		wait += ".classic"
	}
	l.publish(wait, amqp.Publishing{MessageId: "a"}, amqp.Publishing{MessageId: "b"})
	l.counts = map[string]int{l.queue + ".dlq": 3, wait: 2}
	return l
}

func (l *looks) look(flags []string, args ...string) outcome {
	l.t.Helper()
	all := append([]string{"--url", l.url, "--type", l.kind, "--policy", "1h"}, flags...)
	o := tool(l.t, l.url, "", append(all, args...)...)
	o.err = assumed.ReplaceAllString(o.err, "")
	return o
}

// everywhere looks with each command several times: under a limit of 1 the second time deletes. All
// commands that take messages are refused, as the golden file says, or all are done. In the end the
// connection of lists that hold messages is cut, which counts on 4.3 too.
func (l *looks) everywhere(flags []string, refused bool, text string) {
	t := l.t
	t.Helper()
	times := 2
	if os.Getenv("MILLPOND_LONG") != "" {
		times = 5
	}
	for range times {
		for command, want := range map[string]int{
			"dead list Q": exitDone, "dead groups Q": exitDone, "dead export Q --all": exitDone,
			"dead discard Q --dry-run": exitDone, "waiting list Q": exitDone,
			"dead replay Q --dry-run":       exitFound, // the queue has no consumer
			"waiting release Q --id nobody": exitFound,
			"dead show Q order-1":           exitDone,
		} {
			o := l.look(flags, strings.Fields(strings.ReplaceAll(command, "Q", l.queue))...)
			switch {
			case refused:
				want = exitRefused
			case strings.Contains(command, " show ") && o.code == exitFound:
				want = exitFound // under delayed-retry-type a letter may be hidden for a moment
			}
			require.Equal(t, want, o.code, "%v: %s%s", command, o.out, o.err)
		}
		for _, command := range []string{"status", "verify"} {
			require.LessOrEqual(t, l.look(flags, command, l.queue).code, exitFound, command)
		}
	}
	if refused {
		o := l.look(flags, "dead", "list", l.queue)
		golden(t, text, o.out+strings.ReplaceAll(o.err, l.queue, "orders"))
	}
	proxy := testbroker.NewProxy(t, l.url)
	var options []operate.Option
	if flags[0] == "--management" {
		options = append(options, operate.WithManagement(flags[1]))
	}
	o := rig.OpenOperator(t, proxy.URL(), options...)
	plan := topology.Plan{Queue: l.queue, Dead: topology.Route{RoutingKey: l.queue + ".dlq"}}
	for range 4 {
		for range o.Dead(t.Context(), plan, operate.Filter{}, 0) {
			proxy.Cut()
			break
		}
	}
}
