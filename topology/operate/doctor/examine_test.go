package doctor_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate/doctor"
)

// ward is a vhost of a managed node.
type ward struct {
	t          *testing.T
	node       *testbroker.Node
	api, vhost string
}

func newWard(t *testing.T, node *testbroker.Node, api, vhost string) ward {
	t.Helper()
	node.Grant(t, testbroker.Everything(vhost, "guest"))
	return ward{t, node, api, vhost}
}

func (w ward) url(user string) string {
	return strings.Replace(w.node.URL(), "guest:guest", user+":"+user, 1) + w.vhost
}

// everything are the queues of the vhost with their messages, and its exchanges, a line each. Tests
// ask again and again, so it does without rabbitmqctl.
func (w ward) everything() string {
	return w.node.Ctl(w.t, "eval", fmt.Sprintf(`
		lists:foreach(fun([{name, {resource, _, _, Q}}, {messages, N}]) ->
			io:format("~ts\t~p~n", [Q, N])
		end, rabbit_amqqueue:info_all(<<%[1]q>>, [name, messages])),
		lists:foreach(fun([{name, {resource, _, _, E}}]) ->
			io:format("~ts~n", [E])
		end, rabbit_exchange:info_all(<<%[1]q>>, [name])).`, w.vhost))
}

func plan(t *testing.T, strategy topology.Strategy, queue string) topology.Plan {
	t.Helper()
	return rig.PlanFor(t, queue, strategy, backoff.List{time.Second, 5 * time.Second})
}

// examine returns the report and its checks by name.
func (w ward) examine(options ...doctor.Option) map[string]doctor.Check {
	return w.examineAs("guest", append(options, doctor.WithManagement(w.api))...)
}

func (w ward) examineAs(user string, options ...doctor.Option) map[string]doctor.Check {
	w.t.Helper()
	r, err := doctor.Examine(w.t.Context(), w.url(user), options...)
	require.NoError(w.t, err)
	checks := map[string]doctor.Check{}
	for _, c := range r.Checks {
		w.t.Logf("%s %-8s %-20s %s", r.Version, c.Status, c.Name, c.Seen)
		for _, text := range []string{c.Name, c.Expected, c.Seen, c.Meaning} {
			assert.NotEmpty(w.t, text, "%+v", c)
		}
		checks[c.Name] = c
	}
	require.True(w.t, slices.IsSortedFunc(r.Checks, func(a, b doctor.Check) int {
		order := []doctor.Status{doctor.Differs, doctor.Unknown, doctor.OK}
		return slices.Index(order, a.Status) - slices.Index(order, b.Status)
	}), "trouble first")
	return checks
}

// differing are the names of the checks that differ, sorted.
func differing(checks map[string]doctor.Check) (names []string) {
	for name, c := range checks {
		if c.Status == doctor.Differs {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// A broker with its default settings is as expected. Everything is as before, also the queues that
// the plans name.
func TestADefaultBrokerIsSound(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "")
	w := newWard(t, node, api, "sound")
	o := rig.OpenOperator(t, w.url("guest"))
	rig.DeclareQueue(t, w.url("guest"), "orders", amqp.Table{"x-queue-type": "quorum"})
	require.NoError(t, o.Declare(t.Context(), plan(t, topology.Shared{}, "orders")))
	before := w.everything()
	began := time.Now()
	checks := w.examine(doctor.WithPlan(plan(t, topology.Shared{}, "orders")),
		doctor.WithPlan(plan(t, topology.Levels{}, "missing")),
		doctor.WithPlan(plan(t, topology.PerQueue{Type: topology.Classic}, "invoices")))
	t.Logf("all of it took %v", time.Since(began))
	require.Empty(t, differing(checks))
	require.Equal(t, before, w.everything())
	for name, c := range checks {
		switch name {
		case "consumer timeout", "held, then sent": // the broker does not show them
			assert.Equal(t, doctor.Unknown, c.Status, name)
		case "policies": // a young node has not shown its alarms
		default:
			assert.Equal(t, doctor.OK, c.Status, name)
		}
	}
	require.Len(t, checks, 20)
	require.Contains(t, checks["due at once"].Seen, "32 are on their way at once: dead_letter_worker")
}

func TestExamineRefusesOptions(t *testing.T) {
	t.Parallel()
	_, err := doctor.Examine(t.Context(), "amqp://guest:secret@[", nil,
		doctor.WithPatience(time.Millisecond), doctor.WithManagement("ftp://a"),
		doctor.WithPlan(topology.Plan{}))
	for _, text := range []string{"option 1 is nil", "from 1s to 24h", "WithManagement", "WithPlan"} {
		require.ErrorContains(t, err, text)
	}
	require.NotContains(t, err.Error(), "secret")
}

// A run whose context ends removes its queues before it returns.
func TestACancelledRunLeavesNothing(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "")
	w := newWard(t, node, api, "cancelled")
	before := w.everything()
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped")
	done := make(chan error, 1)
	go func() {
		_, err := doctor.Examine(ctx, w.url("guest"), doctor.WithPatience(time.Hour))
		done <- err
	}()
	testbroker.WaitFor(t, "scratch queues", rig.Patience, func() bool {
		return strings.Contains(w.everything(), "millpond.doctor.")
	})
	cancel(stopped)
	require.ErrorIs(t, rig.Await(t, done), stopped)
	require.Equal(t, before, w.everything())
}

// Policies of an administrator, each in its own vhost. The checks that differ are named, with the
// management API and, where the experiments notice the policy, without it.
func TestPlantedPoliciesAreFound(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "")
	type definition = map[string]any
	keeps := []string{"kept, classic", "kept, quorum", "policies"}
	ttl := append(slices.Clone(keeps), "wait, classic", "wait, quorum")
	for name, c := range map[string]struct {
		kind, pattern string // default: a policy for all
		definition    definition
		since         string // the first version that knows the key
		differ        []string
	}{
		"message-ttl": {definition: definition{"message-ttl": 100}, differ: ttl},
		"message-ttl-by-operator": {
			kind: "operator-policies", definition: definition{"message-ttl": 100}, differ: ttl,
		},
		"message-ttl-of-a-queue": {
			pattern: `^orders\.dlq$`, definition: definition{"message-ttl": 100}, differ: keeps[2:],
		},
		"message-ttl-of-another-queue": {
			pattern: `^invoices\.dlq$`, definition: definition{"message-ttl": 100},
		},
		"max-length": {definition: definition{"max-length": 5}, differ: keeps},
		"max-length-refusing": {
			definition: definition{"max-length": 5, "overflow": "reject-publish"}, differ: keeps,
		},
		"delivery-limit": {
			definition: definition{"delivery-limit": 3}, differ: []string{"delivery limit", "policies"},
		},
		"overflow": {
			definition: definition{"overflow": "drop-head"}, differ: []string{"at-least-once", "policies"},
		},
		"consumer-timeout": {
			definition: definition{"consumer-timeout": 60_000}, since: "4.", differ: keeps[2:],
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !strings.HasPrefix(node.Version(), c.since) {
				t.Skip("needs RabbitMQ 4: make test BROKER=4.0")
			}
			w := newWard(t, node, api, name)
			testbroker.SetPolicy(t, api, cmp.Or(c.kind, "policies"), w.vhost, "planted",
				cmp.Or(c.pattern, ".*"), c.definition)
			options := []doctor.Option{doctor.WithPatience(3 * time.Second)}
			if c.pattern != "" {
				options = append(options, doctor.WithPlan(plan(t, topology.PerQueue{}, "orders")))
			}
			checks := w.examine(options...)
			// What else an early end of all waits and a full queue disturb is not listed.
			found := differing(checks)
			require.Subset(t, found, c.differ)
			if len(c.differ) == 0 {
				require.Empty(t, found)
			} else {
				require.Contains(t, checks["policies"].Seen, `policy "planted"`)
			}
			blind := w.examineAs("guest", options...)
			require.Equal(t, doctor.Unknown, blind["policies"].Status)
			for _, name := range c.differ {
				if name != "policies" {
					require.Equal(t, doctor.Differs, blind[name].Status, name)
				}
			}
		})
	}
}

func TestMissingPermissionsAreFound(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "")
	w := newWard(t, node, api, "permissions")
	const all = `^(millpond\.doctor\..*|amq\.default|orders.*)$`
	const noOrders = `^(millpond\.doctor\..*|amq\.default)$`
	const noDead = `^(millpond\.doctor\..*|amq\.default|orders|orders\.wait.*)$`
	for user, c := range map[string]struct {
		configure, write, read string
		check, seen            string // empty: none differs
	}{
		"may-all":            {all, all, all, "", ""},
		"configures-nothing": {"^$", all, all, "scratch queues", `configure "millpond.doctor.`},
		"writes-nothing":     {all, "^$", all, "scratch queues", `write "amq.default"`},
		"reads-nothing":      {all, all, "^$", "scratch queues", `read "millpond.doctor.`},
		"no-dead":            {noDead, all, all, "rights of orders", `configure "orders.dlq"`},
		"no-read":            {all, all, noOrders, "rights of orders", `read "orders"`},
		"no-write": {
			all, `^millpond\.doctor\..*$`, all, "rights of orders", `write "amq.default"`,
		},
	} {
		t.Run(user, func(t *testing.T) {
			t.Parallel()
			node.Grant(t, testbroker.Grant{
				VHost: w.vhost, User: user, Configure: c.configure, Write: c.write, Read: c.read,
			})
			checks := w.examineAs(user, doctor.WithPatience(time.Second),
				doctor.WithPlan(plan(t, topology.PerQueue{}, "orders")))
			if c.check == "" {
				require.Empty(t, differing(checks))
				require.Equal(t, doctor.OK, checks["rights of orders"].Status)
				return
			}
			require.Equal(t, doctor.Differs, checks[c.check].Status)
			require.Contains(t, checks[c.check].Seen, "the user may not "+c.seen)
			require.True(t, checks[c.check].Needed)
			if c.check == "scratch queues" { // the rest is looked at, or says why not
				require.Equal(t, doctor.Unknown, checks["delivery limit"].Status)
				require.Contains(t, checks["delivery limit"].Seen, "the user may not")
				require.Equal(t, doctor.OK, checks["frame size"].Status)
			}
		})
	}
	// The questions have made nothing.
	require.NotContains(t, w.everything(), "orders")
	require.NotContains(t, w.everything(), scratch)

	t.Run("with an exchange", func(t *testing.T) {
		const shared = `^(millpond\..*|amq\.default|orders.*)$`
		node.Grant(t, testbroker.Grant{
			VHost: w.vhost, User: "no-bind", Configure: shared, Write: noOrders, Read: shared,
		}, testbroker.Grant{
			VHost: w.vhost, User: "may-bind", Configure: shared, Write: shared, Read: shared,
		})
		options := []doctor.Option{
			doctor.WithPatience(time.Second), doctor.WithPlan(plan(t, topology.Shared{}, "orders")),
		}
		seen := w.examineAs("no-bind", options...)["rights of orders"].Seen
		require.Contains(t, seen, `write "millpond.wait.1s"`)
		options[1] = doctor.WithPlan(plan(t, topology.Shared{}, "orders"))
		require.Equal(t, doctor.OK, w.examineAs("may-bind", options...)["rights of orders"].Status)
		require.NotContains(t, w.everything(), "millpond")
	})
}

// A node with a consumer timeout of a minute, small frames, and settings of dead-lettering like
// those of docs/broker-settings.md.
func TestPlantedSettingsOfANodeAreFound(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, `{consumer_timeout, 60000}, {channel_tick_interval, 1000},
		{frame_max, 32768}, {dead_letter_worker_publisher_confirm_timeout, 5000},
		{dead_letter_worker_consumer_prefetch, 33}`)
	w := newWard(t, node, api, "settings")
	checks := w.examine(doctor.WithPatience(75 * time.Second))
	require.Equal(t, []string{"consumer timeout", "frame size"}, differing(checks))
	require.Regexp(t, `took an unacked delivery back after (59|1m)`, checks["consumer timeout"].Seen)
	require.Contains(t, checks["frame size"].Seen, "32768")
	require.Equal(t, doctor.OK, checks["held, then sent"].Status)
	require.Equal(t, "more than 32 are on their way at once", checks["due at once"].Seen)
}

const scratch = "millpond.doctor."

// A run that is killed leaves queues. They are gone by themselves, and their exchanges with them.
func TestAKilledRunLeavesNothingForLong(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "")
	w := newWard(t, node, api, "killed")
	before := w.everything()
	run := exec.CommandContext(t.Context(), os.Args[0])
	run.Env = append(os.Environ(), killed+"="+w.url("guest"))
	require.NoError(t, run.Start())
	// An exchange leaves with its last binding. One that is not bound yet would stay.
	testbroker.WaitFor(t, "the scratch exchanges and their bindings", rig.Patience, func() bool {
		return strings.Contains(node.Ctl(t, "eval", `[Name || {binding, {_, _, exchange, Name}, _, _, _}
			<- rabbit_binding:list(<<"killed">>)].`), `.stranded">>`)
	})
	require.NoError(t, run.Process.Kill())
	_ = run.Wait() // says that it was killed
	// What it had sent is still declared. A queue that is declared while a policy comes may miss it.
	testbroker.WaitFor(t, "the end of its connections", rig.Patience, func() bool {
		return !strings.Contains(node.Ctl(t, "list_connections", "vhost"), "killed")
	})
	require.Equal(t, "[]\n", node.Ctl(t, "eval", `[Name || [{name, Name}, {arguments, Table}] <-
		rabbit_amqqueue:info_all(<<"killed">>, [name, arguments]),
		{<<"x-expires">>, long, 3600000} =/= lists:keyfind(<<"x-expires">>, 1, Table)].`))
	// The hour is over. Until here no queue could expire, however slow the machine is.
	testbroker.SetPolicy(t, api, "policies", "killed", "hour", ".*", map[string]any{"expires": 1000})
	var left string
	defer func() {
		if t.Failed() {
			t.Log("left:", left)
		}
	}()
	testbroker.WaitFor(t, "the queues to expire", rig.Patience, func() bool {
		left = w.everything()
		return left == before
	})
}

// killed tells this test binary to be the run that is killed: the URL of its broker.
const killed = "MILLPOND_TEST_DOCTOR"

func TestMain(m *testing.M) {
	if url := os.Getenv(killed); url != "" {
		for { // until it is killed
			_, err := doctor.Examine(context.Background(), url, doctor.WithLifetime(time.Hour))
			fmt.Fprintln(os.Stderr, "not killed in time:", err)
		}
	}
	testbroker.Main(m, func() error { return goleak.Find() })
}
