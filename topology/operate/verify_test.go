package operate_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
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
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// Given no queue of a plan, then Verify names each and creates none. Given all, then the counts of
// its queues are right, with their roles and sources.
func TestVerifyNamesWhatIsMissingAndCountsTheRest(t *testing.T) {
	t.Parallel()
	rig.OnEachStrategy(t, func(t *testing.T, strategy topology.Strategy) {
		url, queue := testbroker.URL(t), testbroker.Queue(t)
		policy := backoff.List{time.Minute, time.Hour}
		rig.RemovePlan(t, url, strategy, queue, policy)
		o, plan := opened(t, url, queue, strategy, policy)
		want, roles := []string(nil), []operate.Role{operate.RoleMain}
		for _, e := range plan.Exchanges {
			want = append(want, "critical missing exchange "+e.Name)
		}
		want = append(want, "critical missing queue "+queue)
		for _, q := range plan.Queues {
			want = append(want, "critical missing queue "+q.Name)
			switch {
			case q.Delay > 0:
				roles = append(roles, operate.RoleWait)
			case q.Name == plan.Dead.RoutingKey:
				roles = append(roles, operate.RoleDead)
			default:
				roles = append(roles, operate.RoleStranded)
			}
		}
		require.Equal(t, want, rig.BlindFindings(t, o, plan))
		require.Equal(t, want, rig.BlindFindings(t, o, plan), "nothing was created")
		report, err := o.Inspect(t.Context(), plan)
		require.NoError(t, err)
		for _, q := range report.Queues {
			require.True(t, q.Missing, q.Name)
			require.Equal(t, operate.Count{N: -1}, q.Ready)
		}
		require.Contains(t, report.String(), "missing")

		rig.Provision(t, url, strategy, queue, policy)
		want = nil
		if strings.HasSuffix(t.Name(), "classic") {
			want = []string{"critical dropping queue " + queue} // which is a quorum queue
		}
		require.ElementsMatch(t, want, rig.BlindFindings(t, o, plan))
		rig.Fill(t, url, queue, 3)
		longest := plan.Queues[len(plan.WaitSteps)-1]
		require.GreaterOrEqual(t, longest.Delay, 30*time.Minute)
		rig.Fill(t, url, longest.Name, 5)
		rig.Fill(t, url, plan.Dead.RoutingKey, 2)
		deliveries, err := testbroker.Channel(t, url).Consume(queue, "", false, false, false, false, nil)
		require.NoError(t, err)
		<-deliveries
		var found []operate.Role
		rig.WaitFor(t, "the counts", func() bool { // a queue counts a little late
			report, err = o.Inspect(t.Context(), plan)
			require.NoError(t, err)
			found = nil
			ready := map[string]int{}
			for _, q := range report.Queues {
				found = append(found, q.Role)
				ready[q.Name] = q.Ready.N
				require.False(t, q.Missing, q.Name)
				require.Equal(t, operate.SourceAMQP, q.Ready.Source)
				require.False(t, q.Total.Known(), "it is not known")
			}
			return ready[queue] == 0 && ready[longest.Name] == 5 && ready[plan.Dead.RoutingKey] == 2
		})
		require.Equal(t, operate.Count{N: 1, Source: operate.SourceAMQP}, report.Queues[0].Consumers)
		require.Equal(t, roles, found)
		require.Equal(t, longest.Delay, report.Queues[len(plan.WaitSteps)].Delay)
		require.NoError(t, report.ManagementErr)
		require.Contains(t, report.String(), "5 (amqp)")
		rig.DeleteQueue(t, url, plan.Queues[0].Name)
		require.Equal(t, append(want, "critical missing queue "+plan.Queues[0].Name),
			rig.BlindFindings(t, o, plan))
	})
}

// Given as many messages in a wait queue as need seconds to return, then Verify names the setting.
func TestVerifyNamesTheSettingForManyThatWait(t *testing.T) {
	t.Parallel()
	url, queue, policy := testbroker.URL(t), testbroker.Queue(t), backoff.List{time.Hour}
	rig.RemovePlan(t, url, topology.PerQueue{}, queue, policy)
	rig.Provision(t, url, topology.PerQueue{}, queue, policy)
	o, plan := opened(t, url, queue, topology.PerQueue{}, policy)
	wait := plan.Queues[len(plan.WaitSteps)-1].Name
	rig.Fill(t, url, wait, 29_999)
	require.Empty(t, rig.BlindFindings(t, o, plan))
	rig.Fill(t, url, wait, 1)
	rig.WaitFor(t, "the warning", func() bool { // a queue counts a little late
		found := rig.BlindFindings(t, o, plan)
		return slices.Equal([]string{"warning exposed queue " + wait}, found)
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

	// An exchange of the user for dead letters is missing.
	for exchange, want := range map[string][]string{
		queue + ".nowhere": {"critical missing exchange " + queue + ".nowhere"}, "amq.topic": {},
	} {
		to := topology.PerQueue{Dead: topology.DeadLetters{Target: func(string) topology.Route {
			return topology.Route{Exchange: exchange, RoutingKey: "dead"}
		}}}
		other := testbroker.Queue(t)
		plan := rig.Provision(t, url, to, other, policy)
		require.Equal(t, want, rig.BlindFindings(t, o, plan))
	}
}

// Verify looks for every binding: Levels has some between exchanges, and a way back through an
// exchange has some that go by a header.
func verifyNamesABinding(t *testing.T, url, api string) {
	t.Helper()
	policy := backoff.List{time.Minute}
	for queue, c := range map[string]struct {
		strategy topology.Strategy
		unbind   []topology.Binding
	}{
		"steps": {topology.Levels{Prefix: "steps", Max: time.Minute}, []topology.Binding{
			{Exchange: "steps.level.2", RoutingKey: "*.*.0.#", ToExchange: "steps.level.1"},
			{Exchange: "steps.level.return", RoutingKey: "#.steps", Queue: "steps"},
		}},
		"parcels": {topology.PerQueue{Via: []string{"amq.topic"}, Prefix: "back"}, []topology.Binding{
			{
				Exchange: "back.via", RoutingKey: "parcels", Queue: "parcels", Header: header.Queue,
				Value: "parcels",
			},
		}},
	} {
		o, plan := opened(t, url, queue, c.strategy, policy, operate.WithManagement(api))
		rig.Provision(t, url, c.strategy, queue, policy)
		require.Empty(t, bindingsMissing(t, o, plan))
		var want []string
		for _, b := range c.unbind {
			rig.Unbind(t, url, b)
			want = append(want, "critical missing binding "+b.Exchange+" → "+b.Queue+b.ToExchange)
		}
		require.Equal(t, want, bindingsMissing(t, o, plan))
	}
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

	verifyNamesABinding(t, url, api)
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

// The main queue is deleted while messages wait in quorum queues: the broker
// holds them, Verify names the missing target, the counts say who has seen them,
// and when the queue is back they come. In classic wait queues they are lost. With
// MILLPOND_LONG the broker keeps its own 180 s before it tries again, and the test
// lasts four minutes.
func TestQueueVanishesWhileItsMessagesWait(t *testing.T) {
	t.Parallel()
	const waiting = 1000
	rabbit, patience := `{dead_letter_worker_publisher_confirm_timeout, 5000}`, rig.Patience
	if os.Getenv("MILLPOND_LONG") != "" {
		rabbit, patience = "", 200*time.Second
	}
	node, api := testbroker.Managed(t, rabbit)
	// the queue must be gone before the wait ends
	url, policy := node.URL(), backoff.List{15 * time.Second}
	for _, kind := range []topology.QueueType{topology.Quorum, topology.Classic} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			queue, strategy := "vanishing-"+string(kind), topology.PerQueue{Type: kind}
			o, plan := opened(t, url, queue, strategy, policy, operate.WithManagement(api))
			rig.Provision(t, url, strategy, queue, policy)
			waits := plan.Queues[len(plan.WaitSteps)-1].Name // the longest
			rig.Fill(t, url, waits, waiting)
			rig.DeleteQueue(t, url, queue)
			testbroker.WaitFor(t, "the wait to end", patience,
				func() bool { return testbroker.Depth(t, url, waits) == 0 })

			if kind == topology.Classic {
				rig.Provision(t, url, strategy, queue, policy)
				<-time.After(8 * time.Second) // longer than the broker would take to try again
				back := testbroker.Depth(t, url, queue)
				t.Logf("classic: %d of %d messages are lost", waiting-back, waiting)
				require.Zero(t, back, "classic wait queues hold nothing")
				return
			}

			findings := rig.Verify(t, o, plan)
			require.Len(t, findings, 1, findings)
			require.Equal(t, operate.Missing, findings[0].Problem)
			require.Equal(t, queue, findings[0].Name)
			require.Contains(t, findings[0].Text, "the broker holds messages whose wait ends")
			var report operate.Report
			testbroker.WaitFor(t, "the management API to count", patience, func() bool {
				var err error
				report, err = o.Inspect(t.Context(), plan)
				require.NoError(t, err)
				require.NoError(t, report.ManagementErr)
				return report.Queues[len(plan.WaitSteps)].Held.N == waiting
			})
			t.Logf("%s\n%s", findings[0], report)
			require.True(t, report.Queues[0].Missing)
			require.Equal(t, operate.Count{N: 0, Source: operate.SourceAMQP},
				report.Queues[len(plan.WaitSteps)].Ready)
			require.Equal(t, operate.Count{N: waiting, Source: operate.SourceManagement},
				report.Queues[len(plan.WaitSteps)].Total)
			require.Contains(t, report.String(), fmt.Sprintf("%d (management)", waiting))

			rig.Provision(t, url, strategy, queue, policy)
			began := time.Now()
			testbroker.WaitFor(t, "all to be back", patience,
				func() bool { return testbroker.Depth(t, url, queue) == waiting })
			t.Logf("quorum: %d of %d messages are back %v after their queue", waiting, waiting,
				time.Since(began).Round(time.Second))
			for _, f := range rig.Verify(t, o, plan) {
				require.NotEqual(t, operate.Critical, f.Severity, f)
			}
		})
	}
}

// A queue's name in a report moved the cursor of the terminal.
func TestAReportPrintedNamesRaw(t *testing.T) {
	t.Parallel()
	const hostile = "o\x1b[2J\u202e\nrders"
	for _, text := range []string{
		operate.Report{
			Queues:        []operate.Queue{{Name: hostile}},
			ManagementErr: errors.New(hostile),
		}.String(),
		operate.Finding{Kind: "queue", Name: hostile, Text: hostile}.String(),
	} {
		require.Equal(t, 2, strings.Count(text, `o\x1b[2J\u202e\nrders`), text)
		require.NotContains(t, text, "\x1b")
	}
}

// A management API that is away, refuses or hangs costs counts and no more, and
// its password is in no text.
func TestManagementAPIThatIsAway(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	policy := backoff.List{time.Second}
	o, plan := opened(t, url, queue, topology.PerQueue{}, policy,
		operate.WithManagement("http://guest:hush@127.0.0.1:1/"))
	rig.Provision(t, url, topology.PerQueue{}, queue, policy)
	report, err := o.Inspect(t.Context(), plan)
	require.NoError(t, err)
	require.ErrorContains(t, report.ManagementErr, "127.0.0.1:1")
	require.Equal(t, operate.SourceAMQP, report.Queues[0].Ready.Source)
	findings := rig.Verify(t, o, plan)
	require.Len(t, findings, 1)
	require.Equal(t, operate.Unchecked, findings[0].Problem)
	require.NotContains(t, report.String()+findings[0].String(), "hush")

	for _, bad := range []string{
		"", "amqp://guest:hush@host", "http://host", "http://guest:hush@", "http://guest:hu/sh@host",
		"http://guest:hu?sh@host", "http://guest:hu%zzhush@host",
	} {
		_, err := operate.Open(t.Context(), url, operate.WithManagement(bad))
		require.ErrorContains(t, err, "WithManagement", bad)
		require.NotContains(t, err.Error(), "hush")
		require.NotContains(t, err.Error(), "hu/sh")
	}
}

func TestQuestionsAboutMissingQueues(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	o, plan := opened(t, url, queue, topology.PerQueue{}, backoff.List{time.Second})
	_, err := o.Inspect(t.Context(), topology.Plan{})
	require.ErrorContains(t, err, "use topology.PlanFor")
	_, err = o.Verify(t.Context(), topology.Plan{})
	require.ErrorContains(t, err, "use topology.PlanFor")
	_, err = o.Replay(t.Context(), topology.Plan{Dead: topology.Route{Exchange: "theirs"}},
		operate.MoveOptions{})
	require.ErrorIs(t, err, operate.ErrNoQueue)
	_, err = o.Peek(t.Context(), queue, 0)
	require.ErrorContains(t, err, "at least 1")
	_, err = o.Peek(t.Context(), queue, 1)
	var refused *amqp.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, amqp.NotFound, refused.Code)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = o.Inspect(ctx, plan)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, o.Close())
	_, err = o.Inspect(t.Context(), plan)
	require.ErrorIs(t, err, topology.ErrClosed)
}
