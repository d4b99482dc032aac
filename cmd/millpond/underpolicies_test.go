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
	node.Grant(t, testbroker.Everything("user", "guest"), testbroker.Everything("operator", "guest"),
		testbroker.Everything("late", "guest"), testbroker.Everything("rest", "guest"))
	limit := func(key string) bool { return key == "delivery-limit" }
	// of quorum queues alone
	late := func(key string) bool { return strings.HasPrefix(key, "delayed-retry-") }
	rest := func(key string) bool { return !limit(key) && !late(key) }
	for _, c := range []struct {
		vhost    string
		policies []string
		choose   func(key string) bool
		queues   []string
		unsafe   bool // to look at quorum queues
	}{
		{"user", []string{"policies"}, limit, []string{"quorum", "classic"}, true},
		{"operator", []string{"operator-policies"}, limit, []string{"quorum"}, true},
		{"late", []string{"policies", "operator-policies"}, late, []string{"quorum"}, false},
		{"rest", []string{"policies", "operator-policies"}, rest, []string{"quorum", "classic"}, false},
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
		t.Run(c.vhost, func(t *testing.T) {
			for _, kind := range c.queues {
				l := newLooks(t, node.URL()+c.vhost, api, kind)
				for of, definition := range definitions {
					testbroker.SetPolicy(t, api, of, c.vhost, "all", ".*", definition)
				}
				l.everywhere(true, c.unsafe && kind == "quorum")
				if kind == "quorum" {
					l.everywhere(false, true)
				}
				l.count()
				if c.unsafe && kind == "quorum" {
					l.told(true, "refused-"+c.vhost+"-policy")
					l.told(false, "refused-unseen")
				}
			}
		})
	}
}

// looks are looks at one service on a node with the management API.
type looks struct {
	*service
	api    string
	counts map[string]int // by queue, of messages
}

func newLooks(t *testing.T, address, api, kind string) *looks {
	t.Helper()
	s := &service{t: t, url: address, queue: "orders-" + kind, kind: kind}
	rig.DeclareQueue(t, address, s.queue, amqp.Table{"x-queue-type": kind})
	l := &looks{service: s, api: api}
	o := l.tool(true, "declare", s.queue)
	require.Zero(t, o.code, o.err)
	s.die()
	wait := s.queue + ".wait.1h"
	if kind == "classic" {
		wait += ".classic"
	}
	for _, id := range []string{"a", "b"} {
		s.publish(wait, amqp.Publishing{MessageId: id, DeliveryMode: amqp.Persistent})
	}
	l.counts = map[string]int{s.queue + ".dlq": 3, wait: 2}
	return l
}

// tool runs the program, with the management API or without it.
func (l *looks) tool(managed bool, args ...string) outcome {
	l.t.Helper()
	flags := []string{"--url", l.url, "--type", l.kind, "--policy", "1h"}
	if managed {
		flags = append(flags, "--management", l.api)
	} else {
		flags = append(flags, "--no-management")
	}
	o := tool(l.t, l.url, "", append(flags, args...)...)
	o.err = assumed.ReplaceAllString(o.err, "")
	return o
}

// looksEach is how often each command looks: under the limit of 1 the second time deletes.
func looksEach() int {
	if os.Getenv("MILLPOND_LONG") != "" {
		return 5
	}
	return 2
}

// everywhere looks with each command several times. All commands that take messages are
// refused, or all are done.
func (l *looks) everywhere(managed, refused bool) {
	t := l.t
	t.Helper()
	for range looksEach() {
		for _, args := range [][]string{
			{"dead", "list"},
			{"dead", "groups"},
			{"dead", "show"},
			{"dead", "replay", "--dry-run"},
			{"dead", "discard", "--dry-run"},
			{"dead", "export", "--all"},
			{"waiting", "list"},
			{"waiting", "release", "--id", "nothing"},
		} {
			args = slices.Insert(args, 2, l.queue)
			if args[1] == "show" {
				args = append(args, "order-1")
			}
			o := l.tool(managed, args...)
			want := exitDone
			if refused {
				want = exitRefused
			} else if args[1] == "release" || args[1] == "replay" ||
				args[1] == "show" && o.code == exitFound {
				// The queue of the rehearsal has no consumer. Under delayed-retry-type a letter may be
				// hidden for a moment.
				want = exitFound
			}
			require.Equal(t, want, o.code, "%v: %s%s", args, o.out, o.err)
		}
		for _, args := range [][]string{{"status", l.queue}, {"verify", l.queue}} {
			require.LessOrEqual(t, l.tool(managed, args...).code, exitFound, args)
		}
	}
	o := l.operator(l.url, managed)
	for queue := range l.counts {
		for range looksEach() {
			_, err := o.Peek(t.Context(), queue, 10)
			if refused {
				require.ErrorIs(t, err, operate.ErrUnsafePeek)
			} else {
				require.NoError(t, err)
			}
		}
	}
	l.cutOff(managed)
}

func (l *looks) operator(address string, managed bool) *operate.Operator {
	l.t.Helper()
	var options []operate.Option
	if managed {
		options = append(options, operate.WithManagement(l.api))
	}
	return rig.OpenOperator(l.t, address, options...)
}

// count waits until every queue has the messages that it had.
func (l *looks) count() {
	l.t.Helper()
	for queue, n := range l.counts {
		rig.AwaitDepth(l.t, l.url, queue, n)
	}
}

// told compares the error of a refused list with a file in testdata.
func (l *looks) told(managed bool, name string) {
	l.t.Helper()
	o := l.tool(managed, "dead", "list", l.queue)
	require.Equal(l.t, exitRefused, o.code)
	golden(l.t, name, o.out+strings.ReplaceAll(o.err, l.queue, "orders"))
}

// cutOff cuts the connection of lists that hold messages, which counts on 4.3 too.
func (l *looks) cutOff(managed bool) {
	l.t.Helper()
	proxy := testbroker.NewProxy(l.t, l.url)
	o := l.operator(proxy.URL(), managed)
	plan := topology.Plan{Queue: l.queue, Dead: topology.Route{RoutingKey: l.queue + ".dlq"}}
	for range 4 {
		for range o.Dead(l.t.Context(), plan, operate.Filter{}, 0) {
			proxy.Cut()
			break
		}
	}
}
