package topology_test

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/topology"
)

const longestDelay = 4_294_967_295 * time.Millisecond

// Every delay that a policy lists is a wait step, and any other grows by no more than a twentieth
// or 100 ms. A delay over the plugin's limit waits in rounds.
func TestDelayedExchangeGivesAnyDelay(t *testing.T) {
	t.Parallel()
	plan, err := topology.PlanFor(topology.DelayedExchange{}, "orders",
		backoff.List{3 * time.Millisecond, 1234 * time.Millisecond, 60 * 24 * time.Hour})
	require.NoError(t, err)
	for asked, want := range map[time.Duration]time.Duration{
		time.Millisecond:        3 * time.Millisecond,
		1234 * time.Millisecond: 1234 * time.Millisecond,
		longestDelay:            longestDelay,
		longestDelay + 1:        longestDelay,
		60 * 24 * time.Hour:     longestDelay,
	} {
		route, err := plan.Route(topology.Retry{Delay: asked})
		require.NoError(t, err)
		require.Equal(t, topology.Route{
			Exchange: "millpond.delayed", RoutingKey: "orders", Delay: want,
			Headers: amqp.Table{"x-delay": want.Milliseconds()}, Kept: true,
		}, route, asked)
	}
	plan, err = topology.PlanFor(topology.DelayedExchange{}, "orders")
	require.NoError(t, err)
	require.Less(t, len(plan.WaitSteps), 350)
	for asked := time.Millisecond; asked < longestDelay; asked += 1 + asked/97 {
		route, err := plan.Route(topology.Retry{Delay: asked})
		require.NoError(t, err)
		require.GreaterOrEqual(t, route.Delay, asked)
		require.LessOrEqual(t, route.Delay-asked, max(100*time.Millisecond, asked/20), asked)
	}
}

// The plan of an exchange that delays is safe in one form alone. Each change is refused, with the
// part that is wrong.
func TestUnsafeDelayedExchangesAreRefused(t *testing.T) {
	t.Parallel()
	const back, delayed = 1, 2 // of the exchanges
	delay := func(value any) func(*topology.Plan) {
		return func(p *topology.Plan) { p.WaitSteps[4].Headers = amqp.Table{"x-delay": value} }
	}
	for name, c := range map[string]struct {
		spoil func(*topology.Plan)
		want  []string
	}{
		"no x-delay": {
			func(p *topology.Plan) { p.WaitSteps[4].Headers = nil },
			[]string{"step of 500ms", "x-delay is <nil>, so that the message does not wait"},
		},
		"an x-delay of 0": {delay(int64(0)), []string{"x-delay is 0, so that"}},
		"text":            {delay("soon"), []string{"x-delay is soon, so that"}},
		"another delay":   {delay(int64(499)), []string{"x-delay is 499", "in milliseconds, 500"}},
		"over 2^32-1 ms": {
			delay(int64(1) << 32), []string{"4294967296", "at once if that is over 4294967295"},
		},
		"a header of ours": {
			func(p *topology.Plan) { p.WaitSteps[4].Headers["millpond-queue"] = "mail" },
			[]string{"header millpond-queue belongs to the broker or to this library"},
		},
		"an alternate exchange that gets all": {
			func(p *topology.Plan) {
				p.Exchanges[delayed].Arguments["alternate-exchange"] = "millpond.stranded"
			},
			[]string{`"millpond.delayed"`, "alternate-exchange is millpond.stranded", "second copy"},
		},
		"straight to the queue": {
			func(p *topology.Plan) {
				p.Bindings = append(p.Bindings, topology.Binding{
					Exchange: "millpond.delayed", Queue: "orders",
				})
			},
			[]string{`leads straight to queue "orders", so that a message whose queue is gone is lost`},
		},
		"an unknown x-delayed-type": {
			func(p *topology.Plan) { p.Exchanges[delayed].Arguments["x-delayed-type"] = "x-random" },
			[]string{"its x-delayed-type is x-random"},
		},
		"an exchange that delays nothing": {
			func(p *topology.Plan) { p.Exchanges[delayed].Kind = "fanout" },
			[]string{"it leads to no wait queue of the plan"},
		},
		"twice": {
			func(p *topology.Plan) {
				p.Exchanges[back].Kind = "x-delayed-message"
				p.Exchanges[back].Arguments["x-delayed-type"] = "direct"
			},
			[]string{`it leads on to exchange "millpond.delayed.return", which delays nothing again`},
		},
		"a wait queue behind it": {
			func(p *topology.Plan) {
				wait := topology.WaitQueue("wait", time.Second, topology.Route{RoutingKey: "orders"})
				p.Queues = append(p.Queues, wait)
				p.Bindings[2].Queue = "wait"
			},
			[]string{`it leads to wait queue "wait", in which messages would wait again`},
		},
		"a wait queue before it": {
			func(p *topology.Plan) {
				wait := topology.WaitQueue("wait", time.Second,
					topology.Route{Exchange: "millpond.delayed", RoutingKey: "orders"})
				p.Queues = append(p.Queues, wait)
				p.WaitSteps = []topology.Route{{RoutingKey: "wait", Delay: time.Second, Hops: 1}}
			},
			[]string{`wait queue "wait" dead-letters to exchange "millpond.delayed", which may delay`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan, err := topology.DelayedExchange{}.Plan("orders", nil)
			require.NoError(t, err)
			require.NoError(t, topology.ValidatePlan(plan))
			c.spoil(&plan)
			err = topology.ValidatePlan(plan)
			require.Error(t, err)
			for _, text := range c.want {
				require.ErrorContains(t, err, text)
			}
		})
	}
}

// The headers of a route may choose the wait queue, by a headers exchange.
func TestRouteHeadersChooseTheWaitQueue(t *testing.T) {
	t.Parallel()
	plan, err := topology.PlanFor(topology.PerQueue{}, "orders",
		backoff.List{time.Second, time.Minute})
	require.NoError(t, err)
	plan.Exchanges = []topology.Exchange{{
		Name: "in", Kind: "headers", Arguments: amqp.Table{"alternate-exchange": "in"},
	}}
	for i, step := range plan.WaitSteps {
		wait := step.Delay.String()
		plan.Bindings = append(plan.Bindings, topology.Binding{
			Exchange: "in", Header: "wait", Value: wait, Queue: step.RoutingKey,
		})
		plan.WaitSteps[i].Exchange, plan.WaitSteps[i].RoutingKey = "in", "orders"
		plan.WaitSteps[i].Headers = amqp.Table{"wait": wait}
	}
	require.NoError(t, topology.ValidatePlan(plan))
	route, err := plan.Route(topology.Retry{Delay: time.Minute})
	require.NoError(t, err)
	require.Equal(t, amqp.Table{"wait": "1m0s"}, route.Headers)

	plan.WaitSteps[0].Headers = nil
	require.ErrorContains(t, topology.ValidatePlan(plan), "leads to no wait queue")
	plan.WaitSteps[0].Headers = amqp.Table{"wait": "1m0s"}
	require.ErrorContains(t, topology.ValidatePlan(plan), "its wait queues wait 1m0s")
}

// A change of one plan changes no other.
func TestDelayedPlansShareNothing(t *testing.T) {
	t.Parallel()
	first, err := topology.DelayedExchange{}.Plan("orders", nil)
	require.NoError(t, err)
	first.WaitSteps[0].Headers["x-delay"] = "changed"
	again, err := topology.DelayedExchange{}.Plan("orders", nil)
	require.NoError(t, err)
	require.Equal(t, int64(100), again.WaitSteps[0].Headers["x-delay"])
}
