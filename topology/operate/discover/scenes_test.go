package discover_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/inorder"
	"github.com/millpond-go/millpond/topology/operate"
	"github.com/millpond-go/millpond/topology/operate/discover"
)

// TestFind has all that a vhost may hold beside one service in good order.
func TestFind(t *testing.T) {
	t.Parallel()
	run(t, map[string]func(place){
		"nothing": nothing, "queues of one exchange": sharing, "queues via one exchange": sharingVia,
		"several ways back":        severalWays,
		"way of an older version":  olderWay,
		"levels by headers":        olderLevels,
		"steps of an older policy": olderSteps, "another strategy": otherStrategies,
		"main queue gone": orphans, "names of the user": namesOfTheUser, "letters": letters,
		"stranded": strandedMessages, "stranded by name": strandedByName,
		"dead named by the user": withDead, "policies": policies, "users": users, "hostile": hostile,
		"consumers": consumers, "dead by the broker": deadByBroker, "missing wait queue": missing,
		"a chain by hand": byHand, "several pages": pages,
		"brake": brakes, "in order": inOrder,
	})
}

// A stopped brake and its processes are no queues of a plan, and keep no letters.
func brakes(p place) {
	o := rig.OpenOperator(p.t, p.url)
	_, err := o.StopBrake(p.t.Context(), "payments", "anna", "", time.Hour)
	require.NoError(p.t, err)
	v := p.find()
	require.True(p.t, v.Empty())
	require.Empty(p.t, v.Unclaimed)
	require.Empty(p.t, v.Unclear)
	require.Equal(p.t, []string{"payments"}, v.Brakes)
}

// A queue with a line is found, also where it has no wait queue. A line is neither stranded nor
// unclaimed, and a line without its queue is told.
func inOrder(p place) {
	args := amqp.Table{
		"x-queue-type": "quorum", "x-single-active-consumer": true, "x-delivery-limit": int64(1 << 30),
	}
	o := rig.OpenOperator(p.t, p.url, operate.WithoutPolicyCheck())
	for _, queue := range []string{"orders", "gone", "delayed"} {
		delays := []time.Duration{}
		if queue == "delayed" {
			delays = []time.Duration{time.Second}
		}
		plan, err := inorder.Strategy{}.Plan(queue, delays)
		require.NoError(p.t, err)
		require.NoError(p.t, o.Declare(p.t.Context(), plan))
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
		require.Equal(p.t, discover.InOrder, m.Strategies()[0])
		works(p.t, o, m.Plan)
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

func names(waits []discover.Wait) (list []string) {
	for _, w := range waits {
		list = append(list, w.Name)
	}
	return list
}

// told requires a sentence about a queue that contains all texts.
func told(t testing.TB, v discover.Vhost, queue string, texts ...string) {
	t.Helper()
	require.True(t, tells(v, queue, texts...), "it is not told: %q in %v", texts, v.Unclear)
}

func tells(v discover.Vhost, queue string, texts ...string) bool {
	return slices.ContainsFunc(v.Unclear, func(u discover.Unclear) bool {
		return u.Queue == queue && !slices.ContainsFunc(texts, func(text string) bool {
			return !strings.Contains(u.String(), text)
		})
	})
}

// Queues of other programs are not millpond's, also with a TTL and a dead-letter target.
func nothing(p place) {
	require.Equal(p.t, discover.Vhost{Name: p.vhost}, p.find())
	for _, kind := range []string{"classic", "quorum"} {
		rig.DeclareQueue(p.t, p.url, kind, amqp.Table{"x-queue-type": kind})
		rig.DeclareQueue(p.t, p.url, kind+".retry", amqp.Table{
			"x-queue-type": kind, "x-message-ttl": int64(1000), "x-dead-letter-exchange": "",
			"x-dead-letter-routing-key": kind,
		})
	}
	v := p.find()
	require.True(p.t, v.Empty())
	require.Equal(p.t, discover.Vhost{Name: p.vhost}, v)
	_, ok := v.Main("classic")
	require.False(p.t, ok)
}

func sharing(p place) {
	quorum, classic := topology.Shared{}, topology.Shared{Type: topology.Classic, Prefix: "c"}
	levels := topology.Levels{Max: time.Minute}
	plans := map[string]topology.Plan{}
	for i := range 2 {
		plans[fmt.Sprint("q", i)] = p.provision(fmt.Sprint("q", i), quorum, time.Second, time.Hour)
		plans[fmt.Sprint("c", i)] = p.provision(fmt.Sprint("c", i), classic, time.Second)
		plans[fmt.Sprint("l", i)] = p.provision(fmt.Sprint("l", i), levels, time.Second)
	}
	v := p.find()
	require.Len(p.t, v.Mains, 6)
	for _, m := range v.Mains {
		requirePlan(p.t, plans[m.Name], m.Plan)
		for _, w := range m.Waits {
			require.True(p.t, w.Shared, w.Name)
		}
	}
	require.Len(p.t, v.Stranded, 2)
	require.Equal(p.t, "c.stranded", v.Stranded[0].Name)
	require.Equal(p.t, "millpond.stranded", v.Stranded[1].Name)
	require.Equal(p.t, []string{"c.stranded"}, v.Mains[0].Stranded)
	require.Empty(p.t, v.Unclaimed)
}

// The wait queues of PerQueue and Shared differ only in their names where messages return through
// an exchange.
func sharingVia(p place) {
	own := topology.PerQueue{Via: []string{exchangeOfUser}}
	shared := topology.Shared{Via: []string{exchangeOfUser}, Prefix: "shared"}
	plans := map[string]topology.Plan{
		"a": p.provision("a", own, time.Second), "b": p.provision("b", own, time.Second),
		"c": p.provision("c", shared, time.Second), "d": p.provision("d", shared, time.Second),
	}
	v := p.find()
	require.Len(p.t, v.Mains, 4)
	for _, m := range v.Mains {
		requirePlan(p.t, plans[m.Name], m.Plan)
	}
	custom := topology.PerQueue{Via: []string{exchangeOfUser}, Prefix: "custom", WaitName: waitName}
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

func olderSteps(p place) {
	p.provision("q", topology.PerQueue{}, time.Second, time.Minute)
	p.provision("q", topology.PerQueue{}, 2*time.Second, time.Hour)
	rig.Fill(p.t, p.url, "q.wait.1m", 3)
	o := rig.OpenOperator(p.t, p.url)
	now, _ := p.find(discover.WithCounts(o)).Main("q")
	want := operate.Count{N: 3, Source: operate.SourceAMQP}
	require.Equal(p.t, []operate.Count{want, want},
		[]operate.Count{now.Waits[2].Ready, now.Waits[2].Total})
	require.Equal(p.t, operate.SourceAMQP, now.Dead[0].Ready.Source)
	var m discover.Main
	rig.WaitFor(p.t, "the count of the management API", func() bool {
		m = p.main("q")
		require.Equal(p.t, []string{"q.wait.1s", "q.wait.2s", "q.wait.1m", "q.wait.1h"}, names(m.Waits))
		return m.Waits[2].Ready.Known() && m.Waits[2].Ready.N == 3
	})
	require.NoError(p.t, m.PlanErr)
}

func otherStrategies(p place) {
	old := p.provision("q", topology.PerQueue{Type: topology.Classic}, time.Second, time.Minute)
	now := []topology.Plan{
		p.provision("q", topology.PerQueue{}, time.Second),
		p.provision("q", topology.Shared{}, 3*time.Second),
		p.provision("q", topology.Levels{Max: time.Minute}),
	}
	m := p.main("q")
	require.NoError(p.t, m.PlanErr)
	require.ElementsMatch(p.t, []discover.Strategy{
		discover.PerQueue, discover.Shared, discover.Levels,
	}, m.Strategies())
	for _, plan := range append(now, old) {
		require.Subset(p.t, rig.QueueNames(m.Plan), rig.QueueNames(plan))
		require.Subset(p.t, m.Plan.WaitSteps, plan.WaitSteps)
		require.Subset(p.t, m.Plan.Exchanges, plan.Exchanges)
		require.Subset(p.t, m.Plan.Bindings, plan.Bindings)
	}
	require.Len(p.t, m.Waits, 1+1+10+2)
	told(p.t, p.find(), "q", `"q.wait.1s"`, `"q.wait.1s.classic"`, "same delay")
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
	o := rig.OpenOperator(p.t, p.url, operate.WithManagement(p.api))
	rig.WaitFor(p.t, "the message in the list", func() bool {
		waiting, err := o.Waiting(p.t.Context(), v.Waits(), operate.Filter{})
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

// The name of a dead-letter queue is known only where it is the usual one, or a letter tells.
func namesOfTheUser(p place) {
	dead := topology.DeadLetters{Name: func(queue string) string { return "dead letters of " + queue }}
	plan := p.provision("q", topology.PerQueue{Dead: dead}, time.Second)
	p.provision("other", topology.PerQueue{Dead: dead}, time.Second)
	v := p.find()
	m, _ := v.Main("q")
	require.Empty(p.t, m.Dead)
	require.Empty(p.t, m.Plan.Dead)
	require.ErrorContains(p.t, m.PlanErr, "dead letters have no target")
	told(p.t, v, "q", `there is no queue "q.dlq"`)
	require.Len(p.t, v.Unclaimed, 2)
	require.Equal(p.t, "dead letters of other", v.Unclaimed[0].Name)

	die(p, plan.Dead.RoutingKey, "q", time.Now())
	o := rig.OpenOperator(p.t, p.url, operate.WithManagement(p.api))
	rig.WaitFor(p.t, "the letter in the list", func() bool {
		v = p.find(discover.WithLooks(o))
		m, _ = v.Main("q")
		return len(m.Dead) > 0
	})
	require.Equal(p.t, plan.Dead.RoutingKey, m.Dead[0].Name)
	require.Equal(p.t, discover.ByLetter, m.Dead[0].Evidence)
	requirePlan(p.t, plan, m.Plan)
	require.Len(p.t, v.Unclaimed, 1)
	told(p.t, v, "other", "is unknown")
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

func letters(p place) {
	p.provision("q", topology.PerQueue{}, time.Second)
	p.provision("strange", topology.PerQueue{Type: topology.Classic}, time.Second)
	first := p.find().Mains[0].Dead[0]
	if !first.Total.Known() { // the broker has not counted yet
		require.Equal(p.t, -1, first.Total.N)
		require.Equal(p.t, "-", first.Total.String())
	}
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	die(p, "q.dlq", "q", at)
	die(p, "q.dlq", "q", at.Add(time.Hour))
	die(p, "strange.dlq", "elsewhere", at)
	o := rig.OpenOperator(p.t, p.url, operate.WithManagement(p.api))
	var v discover.Vhost
	var dead discover.Dead
	rig.WaitFor(p.t, "the counts of the management API", func() bool {
		v = p.find(discover.WithLooks(o))
		m, _ := v.Main("q")
		dead = m.Dead[0]
		// A look may come before the queue has the message of the last look again.
		return dead.Total.Known() && dead.Ready.Known() && dead.Total.N == 2 && dead.Ready.N == 2 &&
			!dead.Oldest.IsZero() && tells(v, "strange", `"strange.dlq"`)
	})
	require.Equal(p.t, discover.ByLetter, dead.Evidence)
	require.True(p.t, at.Equal(dead.Oldest), dead.Oldest)
	require.Equal(p.t, operate.Count{N: 0, Source: operate.SourceManagement}, dead.Unacked)
	told(p.t, v, "strange", `"strange.dlq"`, `is a dead letter of queue "elsewhere"`)
	m, _ := v.Main("strange")
	require.Equal(p.t, discover.ByName, m.Dead[0].Evidence)
	m, _ = p.find().Main("q")
	require.Zero(p.t, m.Dead[0].Oldest, "nobody asked for a look")
}

// A message is stranded because its queue has vanished while it waited.
func strandedMessages(p place) {
	p.provision("stays", topology.Shared{}, time.Second)
	plan := p.provision("goes", topology.Shared{}, time.Second)
	rig.DeleteQueue(p.t, p.url, "goes")
	before := time.Now().Add(-2 * time.Second)
	rig.Publish(p.t, p.url, plan.WaitSteps[0].Exchange, plan.WaitSteps[0].RoutingKey, rig.Message("m"))
	o := rig.OpenOperator(p.t, p.url, operate.WithManagement(p.api))
	var v discover.Vhost
	rig.WaitFor(p.t, "the stranded message", func() bool {
		v = p.find(discover.WithLooks(o))
		return v.Stranded[0].Ready.Known() && v.Stranded[0].Ready.N == 1
	})
	require.Equal(p.t, "millpond.stranded", v.Stranded[0].Name)
	require.WithinRange(p.t, v.Stranded[0].Oldest, before, time.Now().Add(time.Second))
	require.Len(p.t, v.Mains, 1)
	require.Equal(p.t, []string{"millpond.stranded"}, v.Mains[0].Stranded)
	require.Len(p.t, v.Unclaimed, 1)
	require.Equal(p.t, "goes.dlq", v.Unclaimed[0].Name)
}

func policies(p place) {
	p.provision("own", topology.PerQueue{}, time.Minute, time.Second)
	p.provision("shared", topology.Shared{}, time.Minute)
	testbroker.SetPolicy(p.t, p.api, "policies", p.vhost, "ttl", `^own\.wait`,
		map[string]any{"message-ttl": 2000})
	testbroker.SetPolicy(p.t, p.api, "policies", p.vhost, "key", `^millpond\.wait`,
		map[string]any{"dead-letter-routing-key": "own"})
	v := p.find()
	told(p.t, v, "", `policy "ttl" sets message-ttl to 2000, so that messages return earlier`,
		`"own.wait.1m" and 0 others`)
	told(p.t, v, "", `policy "key" sets dead-letter-routing-key to own`,
		`"millpond.wait.1s" and 1 others`)
	testbroker.SetPolicy(p.t, p.api, "policies", p.vhost, "key", `(?<=x)y`,
		map[string]any{"max-length": 100})
	told(p.t, p.find(), "", `policy "key"`, "cannot be told")
}

func users(p place) {
	p.provision("q", topology.PerQueue{}, time.Second)
	as := func(user string) string { return strings.Replace(p.api, "guest:guest", user, 1) }
	all := p.find()
	v, err := discover.Find(p.t.Context(), as("watcher:watcher"), p.vhost)
	require.NoError(p.t, err)
	require.Equal(p.t, all.Mains[0].Plan, v.Mains[0].Plan)
	require.Equal(p.t, all.Unclear, v.Unclear)
	for user, texts := range map[string][]string{
		"elsewhere:elsewhere": {"permissions in"},
		"nobody:nobody":       {"401", "the tag monitoring"},
		"watcher:wrong":       {"401", "the right password"},
	} {
		v, err = discover.Find(p.t.Context(), as(user), p.vhost)
		rig.RequireTexts(p.t, err, append(texts, `discover vhost "`+p.vhost+`"`)...)
		require.Empty(p.t, v)
		require.NotContains(p.t, err.Error(), user)
	}
	_, err = discover.Find(p.t.Context(), p.api, "no such vhost")
	rig.RequireTexts(p.t, err, "there is no such vhost", "^$ is enough")
}
