package operate_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/inorder"
	"github.com/millpond-go/millpond/topology/operate"
)

// place is a vhost of a node with the management API.
type place struct {
	*operate.Operator
	t               testing.TB
	node            *testbroker.Node
	vhost, url, api string
}

// find looks at the vhost.
func (p place) find() operate.View { p.t.Helper(); return p.look(operate.ViewOptions{}) }

func (p place) look(options operate.ViewOptions) operate.View {
	p.t.Helper()
	found, err := p.View(p.t.Context(), options)
	require.NoError(p.t, err)
	require.Equal(p.t, p.vhost, found.Vhost)
	for _, u := range found.Unclear {
		p.t.Log(u.Queue, "|", u)
	}
	return found
}

// main looks at a queue of the vhost.
func (p place) main(queue string) operate.Main {
	p.t.Helper()
	m, ok := p.find().Main(queue)
	require.True(p.t, ok, queue)
	return m
}

// provision declares a queue and its plan.
func (p place) provision(
	queue string, strategy topology.Strategy, delays ...time.Duration,
) topology.Plan {
	p.t.Helper()
	return rig.Provision(p.t, p.url, strategy, queue, backoff.List(delays))
}

// run runs each test in its own vhost, on one node. The users may watch their vhost and nothing
// else.
func run(t *testing.T, tests map[string]func(p place)) {
	node, api := testbroker.Managed(t, "")
	watches := func(user, vhost string) testbroker.Grant {
		return testbroker.Grant{VHost: vhost, User: user, Configure: "^$", Write: "^$", Read: "^$"}
	}
	grants := []testbroker.Grant{watches("elsewhere", "/"), watches("nobody", "/")}
	vhostOf := strings.NewReplacer(" ", "-")
	for name := range tests {
		vhost := vhostOf.Replace(name)
		grants = append(grants, testbroker.Everything(vhost, "guest"), watches("watcher", vhost))
	}
	node.Grant(t, grants...)
	node.Ctl(t, "set_user_tags", "watcher", "monitoring")
	node.Ctl(t, "set_user_tags", "elsewhere", "monitoring")
	t.Run("on one node", func(t *testing.T) {
		for name, test := range tests {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				vhost := vhostOf.Replace(name)
				o := rig.OpenOperator(t, node.URL()+vhost, operate.WithManagement(api))
				test(place{o, t, node, vhost, node.URL() + vhost, api})
			})
		}
	})
}

const exchangeOfUser = "amq.topic"

func waitName(queue string, delay time.Duration) string {
	return fmt.Sprintf("%s waits for %v", queue, delay)
}

// strategies are all strategies, with each field that changes names or arguments.
var strategies = map[string]topology.Strategy{
	"perqueue":         topology.PerQueue{},
	"perqueue classic": topology.PerQueue{Type: topology.Classic},
	"perqueue arguments": topology.PerQueue{
		WaitArguments: amqp.Table{"x-max-length": int64(1000)},
		Dead: topology.DeadLetters{
			Arguments: amqp.Table{"x-max-length": int64(9), "x-overflow": "reject-publish"},
		},
	},
	"perqueue names":         topology.PerQueue{WaitName: waitName},
	"perqueue classic names": topology.PerQueue{Type: topology.Classic, WaitName: waitName},
	"perqueue via":           topology.PerQueue{Via: []string{exchangeOfUser}},
	"perqueue classic via": topology.PerQueue{
		Type: topology.Classic, Via: []string{exchangeOfUser}, Prefix: "other",
	},
	"perattempt":         topology.PerAttempt{},
	"perattempt classic": topology.PerAttempt{Type: topology.Classic},
	"perattempt series":  topology.PerAttempt{Delays: []time.Duration{5e9, 5e9, 1e9, 5e9}},
	"perattempt exchange": topology.PerAttempt{
		ExchangeName: func(queue string) string { return "again " + queue },
	},
	"shared":         topology.Shared{},
	"shared classic": topology.Shared{Type: topology.Classic},
	"shared prefix":  topology.Shared{Prefix: "ours"},
	"shared via":     topology.Shared{Via: []string{exchangeOfUser}},
	"shared classic via": topology.Shared{
		Type: topology.Classic, Via: []string{exchangeOfUser}, Prefix: "c",
	},
	"perqueue two vias": topology.PerQueue{Via: []string{"amq.fanout", exchangeOfUser}},
	"shared two vias":   topology.Shared{Via: []string{"amq.fanout", exchangeOfUser}},
	"levels":            topology.Levels{Max: time.Hour},
	"levels classic":    topology.Levels{Type: topology.Classic, Max: time.Hour, Prefix: "ours"},
	"levels of seconds": topology.Levels{Resolution: time.Second, Max: time.Minute},
	"levels ten years":  topology.Levels{},
}

// The plan that is derived is the plan that was declared, and every method of an Operator takes it.
func TestDerivedPlanIsTheDeclaredOne(t *testing.T) {
	t.Parallel()
	tests := map[string]func(place){}
	for name, strategy := range strategies {
		tests[name] = func(p place) {
			const queue = "shop.orders"
			plan := p.provision(queue, strategy, time.Second, 90*time.Second, time.Hour)
			m := p.main(queue)
			requirePlan(p.t, plan, m.Plan)
			require.NoError(p.t, m.PlanErr)
			kind, _, _ := strings.Cut(name, " ")
			require.Len(p.t, m.Strategies(), 1)
			require.Equal(p.t, kind, strings.ToLower(string(m.Strategies()[0])))
			for i, w := range m.Waits {
				require.Equal(p.t, plan.Queues[i].Name, w.Name)
				require.Equal(p.t, plan.Queues[i].Delay, w.Delay)
				require.False(p.t, w.Shared)
			}
			require.Len(p.t, m.Dead, 1)
			require.Equal(p.t, queue+".dlq", m.Dead[0].Name)
			require.Equal(p.t, operate.ByName, m.Dead[0].Evidence)
			works(p, m.Plan)
		}
	}
	run(t, tests)
}

// requirePlan compares plans. The order of exchanges and of bindings means nothing.
func requirePlan(t testing.TB, want, got topology.Plan) {
	t.Helper()
	require.ElementsMatch(t, want.Exchanges, got.Exchanges)
	require.ElementsMatch(t, want.Bindings, got.Bindings)
	want.Exchanges, want.Bindings, got.Exchanges, got.Bindings = nil, nil, nil, nil
	require.Equal(t, want, got)
}

// works calls the methods of an Operator that take a plan.
func works(p place, plan topology.Plan) {
	t, o := p.t, p.Operator
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	report, err := o.Verify(ctx, plan)
	require.NoError(t, err)
	for _, q := range report.Queues {
		require.False(t, q.Missing, q.Name)
	}
	for _, f := range report.Findings {
		require.NotContains(t,
			[]operate.Problem{operate.Missing, operate.Conflicting, operate.Overruled}, f.Problem, f)
	}
	for _, err := range o.Dead(ctx, plan, operate.Filter{}, 0) {
		require.NoError(t, err)
	}
	_, err = o.Replay(ctx, plan, operate.MoveOptions{})
	require.NoError(t, err)
	_, err = o.Release(ctx, plan, operate.MoveOptions{})
	require.NoError(t, err)
	pruned, err := o.Prune(ctx, []topology.Plan{plan}, operate.PruneOptions{
		Queues: []string{plan.Queues[0].Name}, NobodyPublishes: true,
	})
	require.ErrorIs(t, err, operate.ErrUnsafe)
	require.Contains(t, pruned[0].Why, "uses it")
}

// TestFind has all that a vhost may hold beside one service in good order.
func TestView(t *testing.T) {
	t.Parallel()
	run(t, map[string]func(place){
		"nothing": nothing, "queues of one exchange": sharing, "several ways back": severalWays,
		"way of an older version": olderWay, "levels by headers": olderLevels,
		"steps of an older policy": olderSteps, "main queue gone": orphans, "letters": letters,
		"stranded": stranded, "dead named by the user": withDead,
		"users": users, "hostile": hostile, "dead by the broker": deadByBroker,
		"missing wait queue": missing, "a chain by hand": byHand, "several pages": pages,
		"in order": inOrder, "messages for queues that are gone": gone,
	})
}

// A queue with a line is found, also where it has no wait queue. A line is neither stranded nor
// unclaimed, and a line without its queue is told.
func inOrder(p place) {
	args := amqp.Table{
		"x-queue-type": "quorum", "x-single-active-consumer": true, "x-delivery-limit": int64(1 << 30),
	}
	for _, queue := range []string{"orders", "gone", "delayed"} {
		delays := []time.Duration{}
		if queue == "delayed" {
			delays = []time.Duration{time.Second}
		}
		plan, err := inorder.Strategy{}.Plan(queue, delays)
		require.NoError(p.t, err)
		require.NoError(p.t, p.Declare(p.t.Context(), plan))
		if queue == "gone" {
			continue
		}
		rig.DeclareQueue(p.t, p.url, queue, args)
		m := p.main(queue)
		plan.Queues[slices.IndexFunc(plan.Queues, func(q topology.Queue) bool {
			return q.Name == queue+".dlq"
		})].Adopt = true
		requirePlan(p.t, plan, m.Plan)
		require.NoError(p.t, m.PlanErr)
		require.Equal(p.t, queue+".line", m.Line.Name)
		require.Equal(p.t, operate.InOrder, m.Strategies()[0])
		works(p, m.Plan)
	}
	// A queue that is a line by its name alone, or by its arguments alone, is none.
	rig.DeclareQueue(p.t, p.url, "orders.line.line", amqp.Table{"x-queue-type": "quorum"})
	rig.DeclareQueue(p.t, p.url, "other", args)
	rig.Publish(p.t, p.url, "", "orders.line", rig.Message("one"))
	v := p.find()
	require.Len(p.t, v.Mains, 2)
	require.Empty(p.t, v.Stranded)
	require.NotContains(p.t, fmt.Sprint(v.Unclaimed), ".line")
	told(p.t, v, "", "gone.line", "does not exist")
}

func names(waits []operate.Wait) (list []string) {
	for _, w := range waits {
		list = append(list, w.Name)
	}
	return list
}

// told requires a sentence about a queue that contains all texts.
func told(t testing.TB, v operate.View, queue string, texts ...string) {
	t.Helper()
	require.True(t, tells(v, queue, texts...), "it is not told: %q in %v", texts, v.Unclear)
}

func tells(v operate.View, queue string, texts ...string) bool {
	return slices.ContainsFunc(v.Unclear, func(u operate.Unclear) bool {
		return u.Queue == queue && !slices.ContainsFunc(texts, func(text string) bool {
			return !strings.Contains(u.String(), text)
		})
	})
}

// Queues of other programs are not millpond's, also with a TTL and a dead-letter target.
func nothing(p place) {
	none := func() {
		v := p.find()
		require.True(p.t, v.Empty())
		require.Empty(p.t, v.Unclaimed)
		require.Empty(p.t, v.Unclear)
		_, ok := v.Main("classic")
		require.False(p.t, ok)
	}
	none()
	for _, kind := range []string{"classic", "quorum"} {
		rig.DeclareQueue(p.t, p.url, kind, amqp.Table{"x-queue-type": kind})
		rig.DeclareQueue(p.t, p.url, kind+".retry", amqp.Table{
			"x-queue-type": kind, "x-message-ttl": int64(1000), "x-dead-letter-exchange": "",
			"x-dead-letter-routing-key": kind,
		})
	}
	none()
}

// Queues share what their strategies share. The wait queues of PerQueue and Shared differ only in
// their names where messages return through an exchange.
func sharing(p place) {
	via := []string{exchangeOfUser}
	plans := map[string]topology.Plan{}
	for name, strategy := range map[string]topology.Strategy{
		"shared": topology.Shared{}, "levels": topology.Levels{Max: time.Minute},
		"classic": topology.Shared{Type: topology.Classic, Prefix: "c"},
		"own":     topology.PerQueue{Via: via}, "via": topology.Shared{Via: via, Prefix: "shared"},
	} {
		for i := range 2 {
			queue := fmt.Sprint(name, i)
			plans[queue] = p.provision(queue, strategy, time.Second, time.Hour)
		}
	}
	v := p.find()
	require.Len(p.t, v.Mains, len(plans))
	for _, m := range v.Mains {
		requirePlan(p.t, plans[m.Name], m.Plan)
		for _, w := range m.Waits {
			require.Equal(p.t, !strings.HasPrefix(m.Name, "own"), w.Shared, w.Name)
		}
	}
	var stranded []string
	for _, q := range v.Stranded {
		stranded = append(stranded, q.Name)
	}
	require.Equal(p.t, []string{"c.stranded", "millpond.stranded", "shared.stranded"}, stranded)
	require.Equal(p.t, []string{"c.stranded"}, v.Mains[0].Stranded)
	require.Empty(p.t, v.Unclaimed)

	custom := topology.PerQueue{Via: via, Prefix: "custom", WaitName: waitName}
	p.provision("e", custom, time.Second)
	alone := p.main("e")
	require.Equal(p.t, []string{waitName("e", time.Second)}, names(alone.Waits))
	require.False(p.t, alone.Waits[0].Shared)
	p.provision("f", custom, time.Second)
	v = p.find()
	for _, name := range []string{"e", "f"} {
		m, _ := v.Main(name)
		require.Len(p.t, m.Waits, 2)
		require.True(p.t, m.Waits[0].Shared)
		told(p.t, v, name, `"`+waitName("f", time.Second)+`"`, "headers of its messages")
	}
}

// The wait queues of earlier policies and strategies are there, too.
func olderSteps(p place) {
	p.provision("q", topology.PerQueue{}, time.Second, time.Minute)
	p.provision("q", topology.PerQueue{}, 2*time.Second, time.Hour)
	rig.Fill(p.t, p.url, "q.wait.1m", 3)
	now, _ := p.look(operate.ViewOptions{Exact: true}).Main("q")
	want := operate.Count{N: 3, Source: operate.SourceAMQP}
	require.Equal(p.t, []operate.Count{want, want},
		[]operate.Count{now.Waits[2].Ready, now.Waits[2].Total})
	require.Equal(p.t, operate.SourceAMQP, now.Dead[0].Ready.Source)
	var m operate.Main
	rig.WaitFor(p.t, "the count of the management API", func() bool {
		m = p.main("q")
		require.Equal(p.t, []string{"q.wait.1s", "q.wait.2s", "q.wait.1m", "q.wait.1h"}, names(m.Waits))
		return m.Waits[2].Ready.Known() && m.Waits[2].Ready.N == 3
	})
	require.NoError(p.t, m.PlanErr)

	plans := []topology.Plan{
		p.provision("o", topology.PerQueue{Type: topology.Classic}, time.Second, time.Minute),
		p.provision("o", topology.PerQueue{}, time.Second),
		p.provision("o", topology.Shared{}, 3*time.Second),
		p.provision("o", topology.Levels{Max: time.Minute}),
	}
	m = p.main("o")
	require.NoError(p.t, m.PlanErr)
	require.ElementsMatch(p.t, []operate.Strategy{
		operate.PerQueue, operate.Shared, operate.Levels,
	}, m.Strategies())
	for _, plan := range plans {
		require.Subset(p.t, rig.QueueNames(m.Plan), rig.QueueNames(plan))
		require.Subset(p.t, m.Plan.WaitSteps, plan.WaitSteps)
		require.Subset(p.t, m.Plan.Exchanges, plan.Exchanges)
		require.Subset(p.t, m.Plan.Bindings, plan.Bindings)
	}
	require.Len(p.t, m.Waits, 1+1+10+2)
	told(p.t, p.find(), "o", `"o.wait.1s"`, `"o.wait.1s.classic"`, "same delay")
}

func orphans(p place) {
	p.provision("own", topology.PerQueue{}, time.Second, time.Minute)
	p.provision("one", topology.Shared{}, time.Second)
	p.provision("leveled", topology.Levels{Max: time.Second})
	p.provision("via", topology.PerQueue{Via: []string{exchangeOfUser}, Prefix: "p"}, time.Second)
	for _, queue := range []string{"own", "one", "leveled", "via"} {
		rig.DeleteQueue(p.t, p.url, queue)
	}
	v := p.find()
	require.False(p.t, v.Empty())
	require.Empty(p.t, v.Mains)
	found := map[string]string{}
	for _, o := range v.Orphans {
		found[o.Name] = o.For + "|" + o.Why
		require.NotZero(p.t, o.Delay)
	}
	const gone = `own|queue "own", which its messages return to, does not exist`
	require.Equal(p.t, gone, found["own.wait.1s"])
	require.Equal(p.t, gone, found["own.wait.1m"])
	require.Contains(p.t, found["millpond.wait.1s"], `exchange "millpond.return"`)
	require.Contains(p.t, found["via.wait.1s.via"], `"p.via"`)
	for level := range 4 {
		require.Contains(p.t, found[fmt.Sprint("millpond.level.", level)], "millpond.level.return")
	}
	require.Len(p.t, found, 8)
	msg := rig.Message("waits for a queue that is gone")
	msg.Headers = amqp.Table{header.Queue: "own"}
	rig.Publish(p.t, p.url, "", "own.wait.1m", msg)
	rig.WaitFor(p.t, "the message in the list", func() bool {
		waiting, err := p.Waiting(p.t.Context(), v.Waits(), operate.Filter{})
		require.NoError(p.t, err)
		return len(waiting) == 1 && waiting[0].Queue == "own" && waiting[0].Delay == time.Minute
	})
	var left []string
	for _, q := range v.Unclaimed {
		left = append(left, q.Name)
	}
	require.Equal(p.t, []string{"leveled.dlq", "one.dlq", "own.dlq", "via.dlq"}, left)
	require.Len(p.t, v.Stranded, 2)

	// The stranded queue is found without any wait queue.
	rig.DeleteQueue(p.t, p.url, "millpond.wait.1s")
	require.Len(p.t, p.find().Stranded, 2)
}

// Messages that wait for a queue that is gone are named, also where other queues use the wait
// queue, with what becomes of them. Another View takes them over, until the queue is back.
func gone(p place) {
	shared := topology.Shared{Prefix: "s"}
	for queue, strategy := range map[string]topology.Strategy{
		"kept": shared, "renamed": shared, "held": topology.PerQueue{},
		"classic": topology.PerQueue{Type: topology.Classic},
	} {
		p.provision(queue, strategy, time.Minute)
	}
	due := time.Now().Add(time.Minute).UTC().Truncate(time.Millisecond)
	var want []operate.Gone
	for i, w := range []struct {
		queue, in string
		fate      operate.Fate
	}{
		{"kept", "s.wait.1m", ""},
		{"renamed", "s.wait.1m", operate.FateStranded},
		{"held", "held.wait.1m", operate.FateHeld},
		{"classic", "classic.wait.1m.classic", operate.FateLost},
	} {
		first := due.Add(time.Duration(i) * time.Second)
		for n := range 2 {
			msg := rig.Message("waits")
			msg.Headers = amqp.Table{}
			notes := header.RetryState{Failures: 1, NotBefore: first.Add(time.Duration(n) * time.Hour)}
			for key, value := range notes.Headers(w.queue) {
				msg.Headers[key] = value
			}
			rig.Publish(p.t, p.url, "", w.in, msg)
		}
		if w.fate != "" {
			rig.DeleteQueue(p.t, p.url, w.queue)
			want = append(want, operate.Gone{Queue: w.queue, Messages: 2, First: first, Fate: w.fate})
		}
	}
	var v operate.View
	rig.WaitFor(p.t, "all messages", func() bool {
		v = p.look(operate.ViewOptions{Exact: true, Trouble: true})
		return reflect.DeepEqual(want, v.Gone)
	})
	require.Equal(p.t, v.Gone, p.look(operate.ViewOptions{Last: &v}).Gone)
	rig.DeclareQueue(p.t, p.url, "renamed", nil)
	require.Equal(p.t, want[1:], p.look(operate.ViewOptions{Last: &v}).Gone)
}

// die publishes a dead letter of a queue.
func die(p place, to, queue string, at time.Time) {
	p.t.Helper()
	notes := header.RetryState{Failures: 1, Reason: header.ReasonExhausted, DeadAt: at}
	msg := rig.Message("order")
	msg.Headers = amqp.Table{}
	for key, value := range notes.DeadHeaders(queue) {
		msg.Headers[key] = value
	}
	rig.Publish(p.t, p.url, "", to, msg)
}

// The name of a dead-letter queue is known only where it is the usual one, or a letter tells.
func letters(p place) {
	named := topology.PerQueue{Dead: topology.DeadLetters{
		Name: func(queue string) string { return "dead letters of " + queue },
	}}
	p.provision("q", topology.PerQueue{}, time.Second)
	p.provision("strange", topology.PerQueue{Type: topology.Classic}, time.Second)
	plan := p.provision("named", named, time.Second)
	p.provision("other", named, time.Second)
	v := p.find()
	m, _ := v.Main("q")
	if first := m.Dead[0]; !first.Total.Known() { // the broker has not counted yet
		require.Equal(p.t, -1, first.Total.N)
		require.Equal(p.t, "-", first.Total.String())
	}
	m, _ = v.Main("named")
	require.Empty(p.t, m.Dead)
	require.Empty(p.t, m.Plan.Dead)
	require.ErrorContains(p.t, m.PlanErr, "dead letters have no target")
	told(p.t, v, "named", `there is no queue "named.dlq"`)
	require.Len(p.t, v.Unclaimed, 2)
	require.Equal(p.t, "dead letters of other", v.Unclaimed[1].Name)

	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	die(p, "q.dlq", "q", at)
	die(p, "q.dlq", "q", at.Add(time.Hour))
	die(p, "strange.dlq", "elsewhere", at)
	die(p, plan.Dead.RoutingKey, "named", at)
	var dead operate.Dead
	rig.WaitFor(p.t, "the counts of the management API", func() bool {
		v = p.look(operate.ViewOptions{Owners: true})
		m, _ := v.Main("q")
		dead = m.Dead[0]
		m, _ = v.Main("named")
		// A look may come before the queue has the message of the last look again.
		return dead.Total.Known() && dead.Ready.Known() && dead.Total.N == 2 && dead.Ready.N == 2 &&
			dead.Evidence == operate.ByLetter && tells(v, "strange", `"strange.dlq"`) && len(m.Dead) > 0
	})
	require.Equal(p.t, operate.Count{N: 0, Source: operate.SourceManagement}, dead.Unacked)
	told(p.t, v, "strange", `"strange.dlq"`, `is a dead letter of queue "elsewhere"`)
	m, _ = v.Main("strange")
	require.Equal(p.t, operate.ByName, m.Dead[0].Evidence)
	m, _ = v.Main("named")
	require.Equal(p.t, plan.Dead.RoutingKey, m.Dead[0].Name)
	require.Equal(p.t, operate.ByLetter, m.Dead[0].Evidence)
	requirePlan(p.t, plan, m.Plan)
	require.Len(p.t, v.Unclaimed, 1)
	told(p.t, v, "other", "is unknown")
}

// A message is stranded because its queue has vanished while it waited. When the exchange before a
// stranded queue is deleted, then the queue is found with its messages. A queue of that name with
// other arguments is not millpond's, and dead letters are not stranded.
func stranded(p place) {
	ch := testbroker.Channel(p.t, p.url)
	p.provision("stays", topology.Shared{}, time.Second)
	plan := p.provision("goes", topology.Shared{}, time.Second)
	p.provision("c", topology.Shared{Type: topology.Classic, Prefix: "c"}, time.Second)
	dead := topology.DeadLetters{Name: func(string) string { return "letters.stranded" }}
	p.provision("named", topology.PerQueue{Dead: dead}, time.Second)
	rig.DeclareQueue(p.t, p.url, "theirs.stranded", amqp.Table{"x-queue-type": "quorum"})
	rig.DeleteQueue(p.t, p.url, "goes")
	rig.Publish(p.t, p.url, plan.WaitSteps[0].Exchange, plan.WaitSteps[0].RoutingKey, rig.Message("m"))
	die(p, "letters.stranded", "named", time.Now())
	const sentence = `queue "millpond.stranded" has the name and the arguments of a stranded queue`
	for _, byName := range []bool{false, true} {
		if byName {
			for _, exchange := range []string{"c.stranded", "millpond.stranded"} {
				require.NoError(p.t, ch.ExchangeDelete(exchange, false, false))
			}
		}
		var v operate.View
		rig.WaitFor(p.t, "the counts of the management API", func() bool {
			v = p.look(operate.ViewOptions{Owners: true})
			m, _ := v.Main("named")
			return len(v.Stranded) == 2 && v.Stranded[1].Ready.N == 1 && len(m.Dead) == 1
		})
		require.Equal(p.t, byName, tells(v, "", sentence,
			`no stranded exchange "millpond.stranded" leads into it`))
		require.Equal(p.t, "c.stranded", v.Stranded[0].Name)
		require.Equal(p.t, "millpond.stranded", v.Stranded[1].Name)
		require.Len(p.t, v.Mains, 3)
		m, _ := v.Main("stays")
		require.Equal(p.t, !byName, slices.Contains(m.Stranded, "millpond.stranded"))
		require.Len(p.t, v.Unclaimed, 1)
		require.Equal(p.t, "goes.dlq", v.Unclaimed[0].Name)
		for _, u := range v.Unclear {
			require.NotContains(p.t, u.Text, "letters.stranded")
			require.NotContains(p.t, u.Text, "theirs")
		}
	}
}

func users(p place) {
	p.provision("q", topology.PerQueue{}, time.Second)
	as := func(user string) (operate.View, error) {
		o := operate.At(p.vhost, strings.Replace(p.api, "guest:guest", user, 1), nil)
		return o.View(p.t.Context(), operate.ViewOptions{})
	}
	all := p.find()
	v, err := as("watcher:watcher")
	require.NoError(p.t, err)
	require.Equal(p.t, all.Mains[0].Plan, v.Mains[0].Plan)
	require.Equal(p.t, all.Unclear, v.Unclear)
	for user, texts := range map[string][]string{
		"elsewhere:elsewhere": {"permissions in"},
		"nobody:nobody":       {"401", "the tag management "},
		"watcher:wrong":       {"401", "the right password"},
	} {
		v, err = as(user)
		rig.RequireTexts(p.t, err, append(texts, `look at vhost "`+p.vhost+`"`)...)
		require.Empty(p.t, v)
		require.NotContains(p.t, err.Error(), user)
	}
	_, err = operate.At("no such vhost", p.api, nil).View(p.t.Context(), operate.ViewOptions{})
	rig.RequireTexts(p.t, err, "there is no such vhost", "^$ is enough")
}

// The management API has only names in UTF-8, and the broker strips line ends.
func hostile(p place) {
	for _, queue := range []string{
		"a/b?c#d%2F&e=f", "\x1b[31mred\u202e", "quo\"te'", "dots.*.#.wait.1s", "…é",
	} {
		for name, strategy := range map[string]topology.Strategy{
			"q ": topology.PerQueue{}, "v ": topology.PerQueue{Via: []string{exchangeOfUser}},
			"s ": topology.Shared{}, "l ": topology.Levels{Max: time.Second},
		} {
			plan := p.provision(name+queue, strategy, time.Second)
			m := p.main(name + queue)
			require.Equal(p.t, rig.QueueNames(plan), rig.QueueNames(m.Plan))
			require.Equal(p.t, plan.WaitSteps, m.Plan.WaitSteps)
			require.NoError(p.t, m.PlanErr)
		}
	}
}

// The broker's own dead-lettering of a main queue leads to other queues than millpond's.
func deadByBroker(p place) {
	ch := testbroker.Channel(p.t, p.url)
	rig.DeclareExchange(p.t, p.url, "dead fanout", "fanout")
	rig.DeclareExchange(p.t, p.url, "dead topic", "topic")
	for _, queue := range []string{"kept", "fanned"} {
		rig.DeclareQueue(p.t, p.url, queue, nil)
	}
	rig.BindQueue(p.t, p.url, "fanned", "dead fanout", "")
	declared := func(queue string, args amqp.Table) {
		_, err := ch.QueueDeclare(queue, true, false, false, false, args)
		require.NoError(p.t, err)
		require.NoError(p.t, p.Declare(p.t.Context(), rig.PlanOf(p.t, topology.PerQueue{}, queue)))
	}
	to := func(exchange string, key ...string) amqp.Table {
		args := amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": exchange}
		for _, k := range key {
			args["x-dead-letter-routing-key"] = k
		}
		return args
	}
	declared("argument", to("", "kept"))
	declared("fan", to("dead fanout"))
	declared("topic", to("dead topic"))
	declared("missing", to("gone"))
	declared("nowhere", to("", "gone"))
	declared("policy", amqp.Table{"x-queue-type": "quorum"})
	testbroker.SetPolicy(p.t, p.api, "policies", p.vhost, "dead", "^policy$", map[string]any{
		"dead-letter-exchange": "", "dead-letter-routing-key": "kept",
	})
	v := p.find()
	dead := func(queue string) map[string]operate.Evidence {
		m, ok := v.Main(queue)
		require.True(p.t, ok, queue)
		require.NoError(p.t, m.PlanErr)
		found := map[string]operate.Evidence{}
		for _, d := range m.Dead {
			found[d.Name] = d.Evidence
		}
		return found
	}
	require.Equal(p.t, map[string]operate.Evidence{
		"argument.dlq": operate.ByName, "kept": operate.ByArgument,
	}, dead("argument"))
	require.Equal(p.t, map[string]operate.Evidence{
		"fan.dlq": operate.ByName, "fanned": operate.ByArgument,
	}, dead("fan"))
	require.Equal(p.t, map[string]operate.Evidence{
		"policy.dlq": operate.ByName, "kept": operate.ByPolicy,
	}, dead("policy"))
	told(p.t, v, "topic", `exchange "dead topic"`, "routing keys decide")
	told(p.t, v, "missing", `exchange "gone", which does not exist`)
	told(p.t, v, "nowhere", `queue "gone", which does not exist`)
}

// A wait queue, an exchange and a binding were deleted by hand.
func missing(p place) {
	p.provision("q", topology.PerQueue{}, time.Second, time.Minute)
	p.provision("s", topology.Shared{}, time.Second, time.Minute)
	p.provision("l", topology.Levels{Prefix: "l", Max: time.Minute})
	rig.DeleteQueue(p.t, p.url, "q.wait.1s")
	ch := testbroker.Channel(p.t, p.url)
	require.NoError(p.t, ch.ExchangeDelete("millpond.wait.1m", false, false))
	require.NoError(p.t, ch.ExchangeDelete("l.level.enter", false, false))
	v := p.find()
	m, _ := v.Main("q")
	require.Equal(p.t, []string{"q.wait.1m"}, names(m.Waits))
	require.ErrorContains(p.t, m.PlanErr, "the step for messages that are snoozed waits 1m0s")
	m, _ = v.Main("s")
	require.Equal(p.t, []string{"millpond.wait.1s", "millpond.wait.1m"}, names(m.Waits))
	require.ErrorContains(p.t, m.PlanErr, `"millpond.wait.1m": no wait step leads to it`)
	told(p.t, v, "s", `no exchange that leads into wait queue "millpond.wait.1m" was found`)
	m, _ = v.Main("l")
	require.Len(p.t, m.Waits, 10)
	require.Error(p.t, m.PlanErr)
	told(p.t, v, "l", `no exchange that leads into wait queue "l.level.0" was found`)
}

// A strategy of the user leads through two wait queues, and a plan round in a circle.
func byHand(p place) {
	rig.DeclareQueue(p.t, p.url, "q", nil)
	plan := topology.Plan{
		Queue: "q",
		Queues: []topology.Queue{
			topology.WaitQueue("second", 2*time.Second, topology.Route{RoutingKey: "q"}),
			topology.WaitQueue("first", time.Minute, topology.Route{RoutingKey: "second"}),
			{Name: "q.dlq", Arguments: amqp.Table{
				"x-queue-type": "quorum", "x-delivery-limit": int64(2147483647),
			}, Adopt: true},
		},
		WaitSteps: []topology.Route{
			{RoutingKey: "second", Delay: 2 * time.Second, Hops: 1},
			{RoutingKey: "first", Delay: 62 * time.Second, Hops: 2},
		},
		Dead: topology.Route{RoutingKey: "q.dlq"},
	}
	require.NoError(p.t, p.Declare(p.t.Context(), plan))
	m := p.main("q")
	requirePlan(p.t, plan, m.Plan)
	require.Equal(p.t, []operate.Strategy{operate.PerQueue, operate.Unknown}, m.Strategies())

	for from, to := range map[string]string{"a": "b", "b": "a", "loop": "loop"} {
		q := topology.WaitQueue(from, time.Second, topology.Route{RoutingKey: to})
		rig.DeclareQueue(p.t, p.url, q.Name, q.Arguments)
	}
	own := topology.WaitQueue("own key", time.Second, topology.Route{})
	rig.DeclareQueue(p.t, p.url, own.Name, own.Arguments)
	direct := topology.Route{Exchange: "amq.direct", RoutingKey: "q"}
	odd := topology.WaitQueue("odd", time.Second, direct)
	rig.DeclareQueue(p.t, p.url, odd.Name, odd.Arguments)
	v := p.find()
	require.Len(p.t, v.Mains, 1)
	require.Len(p.t, v.Orphans, 4)
	for _, o := range v.Orphans {
		require.Contains(p.t, o.Why, "its messages ")
	}
	told(p.t, v, "", `wait queue "odd" leads to exchange "amq.direct" with a routing key of its own`)
}

// A queue whose service is of an earlier version has one return exchange for its exchange, and wait
// queues with another ending. Later its service is of today, and the old wait queues drain.
func olderWay(p place) {
	today := topology.PerQueue{Via: []string{exchangeOfUser}}
	plan := rig.PlanOf(p.t, today, "q", time.Second)
	rename := func(name string) string {
		name = strings.Replace(name, "q.wait.1s.via", "q.wait.1s.to."+exchangeOfUser, 1)
		return strings.Replace(name, "millpond.via", "millpond.return."+exchangeOfUser, 1)
	}
	for i := range plan.Queues {
		q := &plan.Queues[i]
		q.Name = rename(q.Name)
		if to, ok := q.Arguments["x-dead-letter-exchange"].(string); ok {
			q.Arguments["x-dead-letter-exchange"] = rename(to)
		}
	}
	for i := range plan.Exchanges {
		e := &plan.Exchanges[i]
		e.Name = rename(e.Name)
		e.Arguments["alternate-exchange"] = rename(e.Arguments["alternate-exchange"].(string))
	}
	for i := range plan.Bindings {
		b := &plan.Bindings[i]
		b.Exchange, b.Queue = rename(b.Exchange), rename(b.Queue)
		if b.Header == keys.Via {
			b.Value = "through q"
		}
	}
	rig.DeclareQueue(p.t, p.url, "q", amqp.Table{
		"x-queue-type": "quorum", "x-delivery-limit": int64(1 << 30), // as Provision does
	})
	ch := testbroker.Channel(p.t, p.url)
	run := func(_ context.Context, use func(*amqp.Channel) error) error { return use(ch) }
	require.NoError(p.t, plan.Declare(p.t.Context(), run, watermill.NopLogger{}))
	m := p.main("q")
	require.NoError(p.t, m.PlanErr)
	require.Equal(p.t, []string{"q.wait.1s.to." + exchangeOfUser}, names(m.Waits))
	require.Equal(p.t, []string{exchangeOfUser}, m.Vias)
	require.Nil(p.t, m.Plan.Via)

	p.provision("q", today, time.Minute)
	m = p.main("q")
	require.NoError(p.t, m.PlanErr)
	require.Len(p.t, m.Waits, 3, "the step of snoozed messages, too")
	require.Equal(p.t, []string{exchangeOfUser}, m.Vias)
}

// The levels of an earlier version that route by headers are told, and are in no plan.
func olderLevels(p place) {
	plan := p.provision("q", topology.PerQueue{Via: []string{exchangeOfUser}}, time.Second)
	const enter, in = "millpond.level.enter.via", "millpond.level.0.via.in"
	const first, second = "millpond.level.0.via", "millpond.level.1.via"
	level0 := func(value string) amqp.Table { return amqp.Table{keys.Level + "0": value} }
	for level, to := range map[string]string{first: "millpond.via", second: first} {
		q := topology.WaitQueue(level, 100*time.Millisecond, topology.Route{Exchange: to})
		rig.DeclareQueue(p.t, p.url, q.Name, q.Arguments)
	}
	ch := testbroker.Channel(p.t, p.url)
	require.NoError(p.t, ch.ExchangeDeclare(enter, "headers", true, false, false, false,
		amqp.Table{"alternate-exchange": enter}))
	rig.DeclareExchange(p.t, p.url, first, "headers")
	rig.DeclareExchange(p.t, p.url, in, "fanout")
	require.NoError(p.t, ch.QueueBind(first, "", in, false, nil))
	require.NoError(p.t, ch.QueueBind(first, "", enter, false, level0("first")))
	require.NoError(p.t, ch.ExchangeBind(in, "", first, false, level0("next")))
	v := p.find()
	m, _ := v.Main("q")
	requirePlan(p.t, plan, m.Plan)
	require.Empty(p.t, v.Orphans)
	for _, level := range []string{first, second} {
		told(p.t, v, "", `"`+level+`"`, "as a level of an earlier version")
	}
}

// Each way back is told truly, and only the ways that there are.
func severalWays(p place) {
	const fanout = "amq.fanout"
	for _, queue := range []string{"two", "both"} {
		p.provision(queue, topology.PerQueue{Via: []string{exchangeOfUser}}, time.Second)
	}
	p.provision("two", topology.Shared{Via: []string{fanout}, Prefix: "other"}, time.Minute)
	p.provision("both", topology.PerQueue{}, time.Minute)
	p.provision("both", topology.Shared{}, time.Hour)
	p.provision("none", topology.PerQueue{}, time.Minute)
	p.provision("none", topology.Shared{}, time.Hour)
	v := p.find()
	for queue, c := range map[string]struct {
		vias []string
		ways string
	}{
		"two": {[]string{fanout, exchangeOfUser}, `return by 2 ways, of which a plan has one, so that ` +
			`its plan has no Via: through exchange "millpond.via" and exchanges of yours; ` +
			`through exchange "other.via" and exchanges of yours`},
		"both": {[]string{exchangeOfUser}, `return by 3 ways, of which a plan has one, so that its ` +
			`plan has no Via: by the name of the queue; through exchange "millpond.return"; ` +
			`through exchange "millpond.via" and exchanges of yours`},
		"none": {},
	} {
		m, ok := v.Main(queue)
		require.True(p.t, ok)
		require.Nil(p.t, m.Plan.Via)
		require.Equal(p.t, c.vias, m.Vias)
		if c.ways != "" {
			told(p.t, v, queue, `queue "`+queue+`"`, c.ways)
			continue
		}
		for _, u := range v.Unclear {
			require.False(p.t, u.Queue == queue && strings.Contains(u.Text, "ways"), u)
		}
	}
}

// The plan with the dead-letter queue that the user names is the plan that was declared.
func withDead(p place) {
	dead := topology.DeadLetters{
		Name:      func(queue string) string { return "letters of " + queue },
		Arguments: amqp.Table{"x-max-length": int64(9), "x-overflow": "reject-publish"},
	}
	plan := p.provision("q", topology.Shared{Dead: dead}, time.Second)
	other := p.provision("other", topology.PerQueue{}, time.Second)
	rig.DeclareQueue(p.t, p.url, "own", amqp.Table{"x-queue-type": "quorum"})
	v := p.find()
	m, _ := v.Main("q")
	got, err := v.WithDead(m, "letters of q")
	require.NoError(p.t, err)
	requirePlan(p.t, plan, got)
	require.NoError(p.t, topology.ValidatePlan(got))
	require.Empty(p.t, m.Plan.Dead)
	works(p, got)

	m, _ = v.Main("other")
	for range 2 { // in place of other.dlq; the second time with the plan that it gave
		got, err = v.WithDead(m, "own")
		require.NoError(p.t, err)
		want := topology.Queue{Name: "own", Adopt: true}
		require.Equal(p.t, []topology.Queue{other.Queues[0], want}, got.Queues)
		require.Equal(p.t, topology.Route{RoutingKey: "own"}, got.Dead)
		require.Equal(p.t, other, p.main("other").Plan)
		m.Plan = got
	}
	for queue, text := range map[string]string{
		"gone":             `has no queue "gone" that could keep the dead letters of queue "other"`,
		"other":            `queue "other" cannot keep its own dead letters`,
		"other.wait.1s":    `"other.wait.1s" is a wait queue`,
		"millpond.wait.1s": `"millpond.wait.1s" is a wait queue`,
	} {
		_, err := v.WithDead(m, queue)
		require.ErrorContains(p.t, err, text)
	}
}
