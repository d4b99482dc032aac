package operate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// keyCase is one way to set a policy key for every queue and exchange.
type keyCase struct {
	key string
	// definition has the key, and the other keys that it needs in order to do harm.
	definition map[string]any
	// quick says that the case runs without MILLPOND_LONG too.
	quick bool
	// victim is the strategy of another service, which has the queue of that name; empty for none.
	victim string
	// vanish deletes the wait queues before the first message fails.
	vanish bool
	// cuts is how often all connections are closed while the first message is handled.
	cuts int
	// slow is how long the handler keeps the first message, the first time.
	slow time.Duration
	// late is how long after the last decision the key may still do something.
	late time.Duration
}

type definition = map[string]any

// keyCases has every policy key that a RabbitMQ from 3.10 to 4.3 knows, with values that do as
// much harm as the key can.
var keyCases = []keyCase{
	{
		key: "alternate-exchange", definition: definition{"alternate-exchange": catchAll}, quick: true,
		vanish: true,
	},
	{
		key:        "consumer-disconnected-timeout",
		definition: definition{"consumer-disconnected-timeout": 1000}, cuts: 1,
	},
	{key: "consumer-timeout", definition: definition{"consumer-timeout": 2000}, slow: 6 * time.Second},
	{key: "dead-letter-exchange", definition: definition{"dead-letter-exchange": catchAll}, cuts: 1},
	{key: "dead-letter-exchange", definition: definition{"dead-letter-exchange": void}, cuts: 1},
	{
		key:        "dead-letter-exchange",
		definition: definition{"dead-letter-exchange": "admin.gone", "message-ttl": 50},
		late:       time.Second,
	},
	{
		key:        "dead-letter-exchange",
		definition: definition{"dead-letter-exchange": catchAll, "delivery-limit": 0}, cuts: 1,
	},
	{key: "dead-letter-routing-key", definition: definition{"dead-letter-routing-key": "nowhere"}},
	{
		key: "dead-letter-routing-key", definition: definition{"dead-letter-routing-key": victim},
		quick: true, victim: "shared",
	},
	{
		key: "dead-letter-routing-key", definition: definition{"dead-letter-routing-key": victim},
		victim: "returning",
	},
	// By all exchanges of Levels.
	{
		key:        "dead-letter-routing-key",
		definition: definition{"dead-letter-routing-key": "0.0.0.0.0.0.0.0." + victim}, victim: "levels",
	},
	// The victim has been moved to PerQueue, and its bindings were left.
	{
		key: "dead-letter-routing-key", definition: definition{"dead-letter-routing-key": victim},
		victim: "quorum",
	},
	{
		key:        "dead-letter-routing-key",
		definition: definition{"dead-letter-routing-key": "0.0.0.0.0.0.0.0." + victim}, victim: "quorum",
	},
	{key: "dead-letter-routing-key", definition: definition{
		"dead-letter-exchange": "", "dead-letter-routing-key": victim, "message-ttl": 50,
	}, victim: "quorum", late: time.Second},
	{key: "dead-letter-strategy", definition: definition{"dead-letter-strategy": "at-most-once"}},
	{key: "dead-letter-strategy", definition: definition{"dead-letter-strategy": "at-least-once"}},
	{key: "delayed-retry-type", definition: delayedRetry("all"), cuts: 1},
	{key: "delayed-retry-min", definition: delayedRetry("returned"), cuts: 1},
	{key: "delayed-retry-max", definition: delayedRetry("failed"), cuts: 1},
	{key: "delivery-limit", definition: definition{"delivery-limit": 0}, cuts: 1},
	{key: "delivery-limit", definition: definition{"delivery-limit": 1}, cuts: 2},
	{key: "expires", definition: definition{"expires": 8000}, late: 25 * time.Second},
	{key: "ha-mode", definition: definition{"ha-mode": "all"}},
	{key: "ha-params", definition: definition{"ha-mode": "exactly", "ha-params": 1}},
	{
		key:        "ha-promote-on-failure",
		definition: definition{"ha-mode": "all", "ha-promote-on-failure": "always"},
	},
	{
		key:        "ha-promote-on-shutdown",
		definition: definition{"ha-mode": "all", "ha-promote-on-shutdown": "always"},
	},
	{key: "ha-sync-batch-size", definition: definition{"ha-mode": "all", "ha-sync-batch-size": 1}},
	{key: "ha-sync-mode", definition: definition{"ha-mode": "all", "ha-sync-mode": "automatic"}},
	{key: "initial-cluster-size", definition: definition{"initial-cluster-size": 3}},
	{key: "max-age", definition: definition{"max-age": "1s"}, late: 2 * time.Second},
	{key: "max-in-memory-bytes", definition: definition{"max-in-memory-bytes": 1}},
	{key: "max-in-memory-length", definition: definition{"max-in-memory-length": 1}},
	{key: "max-length", definition: definition{"max-length": 5}},
	{key: "max-length-bytes", definition: definition{"max-length-bytes": 60}},
	{key: "message-ttl", definition: definition{"message-ttl": 50}, quick: true, late: time.Second},
	// Longer than the wait, shorter than a dead letter is kept.
	{key: "message-ttl", definition: definition{"message-ttl": 8000}, late: 10 * time.Second},
	{key: "overflow", definition: definition{"overflow": "drop-head"}},
	{key: "overflow", definition: definition{"overflow": "reject-publish"}},
	{key: "overflow", definition: definition{"overflow": "reject-publish-dlx"}},
	{key: "overflow", definition: definition{"overflow": "drop-head", "max-length": 5}},
	{key: "overflow", definition: definition{"overflow": "reject-publish", "max-length": 5}},
	{key: "overflow", definition: definition{"overflow": "reject-publish-dlx", "max-length": 5}},
	{key: "queue-leader-locator", definition: definition{"queue-leader-locator": "balanced"}},
	{key: "queue-master-locator", definition: definition{"queue-master-locator": "min-masters"}},
	{key: "queue-mode", definition: definition{"queue-mode": "lazy"}},
	{key: "queue-version", definition: definition{"queue-version": 2}},
	{key: "stream-filter-size-bytes", definition: definition{"stream-filter-size-bytes": 16}},
	{
		key:        "stream-max-segment-size-bytes",
		definition: definition{"stream-max-segment-size-bytes": 1000},
	},
	{key: "target-group-size", definition: definition{"target-group-size": 3}},
}

func delayedRetry(kind string) definition {
	return definition{"delayed-retry-type": kind, "delayed-retry-min": 2000, "delayed-retry-max": 4000}
}

// quickStrategies run without MILLPOND_LONG. To a policy each of the others is like one of them.
var quickStrategies = []string{"quorum", "shared", "levels", "returning"}

// cells bounds the cells that run at once: each has up to a hundred handlers.
var cells = make(chan struct{}, 4)

// policyKeys asks the broker for the keys of its policies, and of its operator policies.
func policyKeys(t *testing.T, node *testbroker.Node) map[string][]string {
	t.Helper()
	keys := map[string][]string{}
	for kind, registered := range map[string]string{
		"policy": "policy_validator", "operator policy": "operator_policy_validator",
	} {
		said := node.Ctl(t, "eval", fmt.Sprintf(
			`lists:usort([K || {K, _} <- rabbit_registry:lookup_all(%s)]).`, registered))
		keys[kind] = regexp.MustCompile(`[a-z][a-z-]+`).FindAllString(said, -1)
		require.NotEmpty(t, keys[kind], said)
	}
	return keys
}

// Every policy key that the broker knows is applied to everything, by a policy and by an operator
// policy, while every strategy retries. Where a message is lost or goes to another queue, Verify
// has said before the first message that the key is critical, and docs/guarantees.md names it. With
// MILLPOND_LONG all of it, else a choice.
func TestNoPolicyKeyTakesAMessageThatVerifyHasNotWarnedOf(t *testing.T) {
	t.Parallel()
	long := os.Getenv("MILLPOND_LONG") != ""
	// RabbitMQ 4.3 refuses queue-master-locator unless it is permitted.
	node, api := testbroker.Managed(t, `{channel_tick_interval, 500},
		{dead_letter_worker_publisher_confirm_timeout, 3000},
		{permit_deprecated_features, #{queue_master_locator => true}}`)
	keys := policyKeys(t, node)
	known := slices.Concat(keys["policy"], keys["operator policy"])
	for _, key := range known {
		if !slices.ContainsFunc(keyCases, func(c keyCase) bool { return c.key == key }) {
			t.Errorf("RabbitMQ %s has the policy key %q, which no case of this table has", node.Version(),
				key)
		}
	}
	guarantees, err := os.ReadFile("../../docs/guarantees.md")
	require.NoError(t, err)

	runs := []keyRun{{kind: "none"}}
	for _, c := range keyCases {
		for _, kind := range []string{"policy", "operator policy"} {
			if slices.Contains(keys[kind], c.key) && (long || c.quick && kind == "policy") {
				runs = append(runs, newKeyRun(c, kind, keys))
			}
		}
	}
	for i, r := range runs {
		t.Run(fmt.Sprint(r), func(t *testing.T) {
			t.Parallel()
			cells <- struct{}{}
			defer func() { <-cells }()
			g := newCell(t, node, api, fmt.Sprintf("cell-%d", i), r.policy, r.operator)
			r.run(g, long)
			for _, s := range g.services {
				r.check(t, s, string(guarantees))
			}
		})
	}
}

// keyRun is a case in a virtual host, as one of the two kinds of policies.
type keyRun struct {
	keyCase
	kind             string
	policy, operator definition
}

// newKeyRun makes an operator policy of the keys that one may have, and a policy of the others.
func newKeyRun(c keyCase, kind string, keys map[string][]string) keyRun {
	r := keyRun{keyCase: c, kind: kind, policy: definition{}, operator: definition{}}
	for key, value := range c.definition {
		if kind != "policy" && slices.Contains(keys[kind], key) {
			r.operator[key] = value
		} else {
			r.policy[key] = value
		}
	}
	return r
}

func (c keyCase) String() string {
	if c.key == "" {
		return ""
	}
	value, _ := json.Marshal(c.definition) // never fails
	text := c.key + " by " + string(value)
	if c.victim != "" {
		text += " victim " + c.victim
	}
	return text
}

func (r keyRun) String() string { return strings.TrimSpace(r.kind + " " + r.keyCase.String()) }

// run sends the messages through every strategy under the policy.
func (r keyRun) run(g *cell, long bool) {
	all := cellStrategies()
	names := quickStrategies
	if long {
		names = slices.Sorted(maps.Keys(all))
	}
	for _, name := range names {
		g.services = append(g.services,
			g.declare(name, "orders-"+strings.ReplaceAll(name, " ", "-"), all[name]))
	}
	if r.victim != "" {
		g.receiveStrays(r.victim, all)
	}
	for _, s := range g.services {
		s.serve(g.t, r.hold)
		if r.vanish {
			g.deleteWaitQueues(s)
		}
	}
	var filling sync.WaitGroup
	for _, s := range g.services {
		filling.Go(func() { s.fill(g.t, g.url) })
	}
	filling.Wait()
	for n := range r.cuts {
		g.await("the first messages", func(s *governed) bool { return s.callsOf(0) > n })
		g.node.Ctl(g.t, "close_all_connections", "--vhost", g.vhost, "the test")
	}
	g.await("every message", (*governed).done)
	if r.late > 0 {
		<-time.After(r.late)
	}
	g.count()
}

// deleteWaitQueues lets the wait queues of a service vanish while it consumes.
func (g *cell) deleteWaitQueues(s *governed) {
	g.t.Helper()
	g.change(func(ch *amqp.Channel) error {
		var problems []error
		for _, q := range s.plan.Queues {
			if q.Delay > 0 {
				_, err := ch.QueueDelete(q.Name, false, false, false)
				problems = append(problems, err)
			}
		}
		return errors.Join(problems...)
	})
}

// hold keeps the first message until its connection is closed, or its time is over.
func (r keyRun) hold(ctx context.Context, calls int) {
	switch {
	case calls <= r.cuts:
		<-ctx.Done()
	case calls == 1 && r.slow > 0:
		select {
		case <-ctx.Done():
		case <-time.After(r.slow):
		}
	}
}

// await waits until the condition is true of every service, or the service makes no progress.
func (g *cell) await(what string, cond func(s *governed) bool) {
	g.t.Helper()
	testbroker.WaitFor(g.t, what, 2*rig.Patience, func() bool {
		return !slices.ContainsFunc(g.services,
			func(s *governed) bool { return !cond(s) && !s.done() })
	})
}

// receiveStrays makes another service. One of PerQueue has been moved there from each of the other
// strategies, and their bindings were left.
func (g *cell) receiveStrays(strategy string, all map[string]topology.Strategy) {
	g.t.Helper()
	g.victim = g.declare(strategy, victim, all[strategy])
	require.NoError(g.t, g.victim.refusal)
	for _, before := range []string{
		"shared", "shared classic", "shared returning", "levels", "levels classic", "returning",
	} {
		if strategy == "quorum" {
			o, plan := opened(g.t, g.url, victim, all[before], policyOfCells)
			require.NoError(g.t, g.steadily(func() error { return o.Declare(g.t.Context(), plan) }))
			if plan.Via != nil {
				g.change(
					func(ch *amqp.Channel) error { return ch.QueueBind(victim, victim, domain, false, nil) },
				)
			}
		}
	}
	g.victim.serve(g.t, nil)
}

// check fails the test where something has become of a message that Verify has not said.
func (r keyRun) check(t *testing.T, s *governed, guarantees string) {
	t.Helper()
	switch {
	case r.key == "":
		require.Empty(t, s.harm, "without a policy: %s", s.name)
		require.Empty(t, s.critical, "without a policy: %s", s.name)
	case len(s.harm) == 0:
		for _, f := range s.critical {
			t.Logf("nothing has happened to %s, though Verify says: %s", s.name, f)
		}
	// The Subscriber of the victim knows the messages by its own plan.
	case len(s.begun) > 0 && s.name == r.victim && r.victim != "quorum":
		t.Errorf("%s: %s: messages that were handled before have gone to another service: %v", r, s.name,
			s.begun)
	case s.refusal == nil && len(s.critical) == 0:
		t.Errorf("%s: %s: %v, and Verify has said nothing of it that is critical", r, s.name, s.harm)
	case !r.namedIn(guarantees):
		t.Errorf("%s: %s: %v, and docs/guarantees.md names none of the keys", r, s.name, s.harm)
	default:
		t.Logf("%s: %v, as Verify has said", s.name, s.harm)
	}
}

// namedIn reports whether a page has a key of the policy in a code span, not as a part of another
// word.
func (r keyRun) namedIn(page string) bool {
	for key := range r.definition {
		if regexp.MustCompile("`([^`\n]*[^`\na-z-])?" + key + "([^`\na-z-][^`\n]*)?`").MatchString(page) {
			return true
		}
	}
	return false
}
