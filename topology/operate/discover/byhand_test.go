package discover_test

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate/discover"
)

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

func consumers(p place) {
	service := rig.Start(p.t, rig.Config{
		URL: p.url, Queue: "q", Policy: rig.Quickly(3), Handle: rig.Succeed, Keep: true,
	})
	p.provision("idle", topology.PerQueue{}, time.Second)
	var m discover.Main
	rig.WaitFor(p.t, "the consumer in the list", func() bool {
		m = p.main("q")
		return len(m.Clients) == 1 && m.Clients[0].User != "" && m.Consumers.Known() && m.Consumers.N == 1
	})
	require.Equal(p.t, "guest", m.Clients[0].User)
	require.NotEmpty(p.t, m.Clients[0].Tag)
	require.Contains(p.t, m.Clients[0].Connection, "->")
	require.Empty(p.t, p.main("idle").Clients)
	service.Stop()
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
		o := rig.OpenOperator(p.t, p.url)
		require.NoError(p.t, o.Declare(p.t.Context(), rig.PlanOf(p.t, topology.PerQueue{}, queue)))
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
	dead := func(queue string) map[string]discover.Evidence {
		m, ok := v.Main(queue)
		require.True(p.t, ok, queue)
		require.NoError(p.t, m.PlanErr)
		found := map[string]discover.Evidence{}
		for _, d := range m.Dead {
			found[d.Name] = d.Evidence
		}
		return found
	}
	require.Equal(p.t, map[string]discover.Evidence{
		"argument.dlq": discover.ByName, "kept": discover.ByArgument,
	}, dead("argument"))
	require.Equal(p.t, map[string]discover.Evidence{
		"fan.dlq": discover.ByName, "fanned": discover.ByArgument,
	}, dead("fan"))
	require.Equal(p.t, map[string]discover.Evidence{
		"policy.dlq": discover.ByName, "kept": discover.ByPolicy,
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
	o := rig.OpenOperator(p.t, p.url)
	require.NoError(p.t, o.Declare(p.t.Context(), plan))
	m := p.main("q")
	requirePlan(p.t, plan, m.Plan)
	require.Equal(p.t, []discover.Strategy{discover.PerQueue, discover.Unknown}, m.Strategies())

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
