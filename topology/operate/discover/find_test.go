package discover_test

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
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
	"github.com/millpond-go/millpond/topology/operate/discover"
)

// place is a vhost of a node with the management API.
type place struct {
	t               testing.TB
	node            *testbroker.Node
	vhost, url, api string
}

// find discovers the vhost.
func (p place) find(options ...discover.Option) discover.Vhost {
	p.t.Helper()
	found, err := discover.Find(p.t.Context(), p.api, p.vhost, options...)
	require.NoError(p.t, err)
	require.Equal(p.t, p.vhost, found.Name)
	for _, u := range found.Unclear {
		p.t.Log(u.Queue, "|", u)
	}
	return found
}

// main discovers a queue of the vhost.
func (p place) main(queue string) discover.Main {
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

// run runs each test in its own vhost, on one node.
func run(t *testing.T, tests map[string]func(p place)) {
	node, api := testbroker.Managed(t, "")
	var grants []testbroker.Grant
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		vhost := strings.ReplaceAll(name, " ", "-")
		grants = append(grants, testbroker.Everything(vhost, "guest"),
			testbroker.Grant{VHost: vhost, User: "watcher", Configure: "^$", Write: "^$", Read: "^$"})
	}
	grants = append(grants,
		testbroker.Grant{VHost: "/", User: "elsewhere", Configure: "^$", Write: "^$", Read: "^$"},
		testbroker.Grant{VHost: "/", User: "nobody", Configure: "^$", Write: "^$", Read: "^$"})
	node.Grant(t, grants...)
	node.Ctl(t, "set_user_tags", "watcher", "monitoring")
	node.Ctl(t, "set_user_tags", "elsewhere", "monitoring")
	t.Run("on one node", func(t *testing.T) {
		for name, test := range tests {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				vhost := strings.ReplaceAll(name, " ", "-")
				test(place{t, node, vhost, node.URL() + vhost, api})
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
			require.Equal(p.t, discover.ByName, m.Dead[0].Evidence)

			o := rig.OpenOperator(p.t, p.url, operate.WithManagement(p.api))
			works(p.t, o, m.Plan)
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
func works(t testing.TB, o *operate.Operator, plan topology.Plan) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	report, err := o.Inspect(ctx, plan)
	require.NoError(t, err)
	for _, q := range report.Queues {
		require.False(t, q.Missing, q.Name)
	}
	findings, err := o.Verify(ctx, plan)
	require.NoError(t, err)
	for _, f := range findings {
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
