package topology_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/topology"
)

// perQueueByHand is a strategy of a user's own, with what WaitQueue gives.
type perQueueByHand struct{}

func (perQueueByHand) Plan(queue string, delays []time.Duration) (topology.Plan, error) {
	plan := topology.Plan{Queue: queue, Dead: topology.Route{RoutingKey: queue + ".failed"}}
	for _, d := range append([]time.Duration{time.Second}, delays...) {
		wait := topology.WaitQueue(queue+".in."+d.String(), d, topology.Route{RoutingKey: queue})
		plan.Queues = append(plan.Queues, wait)
		plan.WaitSteps = append(plan.WaitSteps, topology.Route{RoutingKey: wait.Name, Delay: d, Hops: 1})
	}
	plan.Queues = append(plan.Queues, topology.Queue{
		Name:      queue + ".failed",
		Arguments: amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(2147483647)},
	})
	return plan, nil
}

func ExampleWaitQueue() {
	wait := topology.WaitQueue("orders.later", 5*time.Second, topology.Route{RoutingKey: "orders"})
	plan := topology.Plan{
		Queue: "orders",
		Queues: []topology.Queue{wait, {
			Name:      "orders.failed",
			Arguments: amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(2147483647)},
		}},
		WaitSteps: []topology.Route{{RoutingKey: wait.Name, Delay: wait.Delay, Hops: 1}},
		Dead:      topology.Route{RoutingKey: "orders.failed"},
	}
	fmt.Println(topology.ValidatePlan(plan))
	// Output:
	// <nil>
}

func ExampleValidatePlan() {
	err := topology.ValidatePlan(topology.Plan{
		Queue: "orders",
		Queues: []topology.Queue{{
			Name: "orders.later", Delay: 5 * time.Second,
			Arguments: amqp.Table{"x-queue-type": "quorum", "x-message-ttl": 5000},
		}},
		WaitSteps: []topology.Route{{RoutingKey: "orders.later", Delay: 5 * time.Second, Hops: 1}},
	})
	fmt.Println(err)
	// Output:
	// plan for queue "orders": wait queue "orders.later" has no x-dead-letter-exchange, so that the broker drops a message whose wait is over: set it to "" and x-dead-letter-routing-key to the queue's name; topology.WaitQueue sets the safe arguments
	// wait queue "orders.later": x-dead-letter-strategy is <nil>, so that messages are lost where their queue is out of reach: set it to at-least-once, with x-overflow reject-publish, or name the weaker at-most-once; topology.WaitQueue sets the safe arguments
	// dead letters have no target: declare a queue for them in Plan.Queues, with Adopt to use one that exists, or name an exchange of yours in Plan.Dead
}

// planned are plans with every option of every strategy.
func planned(t testing.TB) map[string]topology.Plan {
	t.Helper()
	target := topology.DeadLetters{Target: func(queue string) topology.Route { return topology.Route{Exchange: "graves", RoutingKey: queue} }}
	bounded := topology.DeadLetters{Name: func(q string) string { return q + ".failed" }, Arguments: amqp.Table{"x-max-length": 5, "x-message-ttl": 5000}}
	named := topology.PerAttempt{
		Delays:       []time.Duration{100 * time.Millisecond, 100 * time.Millisecond, 10 * time.Second},
		WaitName:     func(q string, attempt int, _ time.Duration) string { return fmt.Sprintf("%s__retry.%d", q, attempt) },
		ExchangeName: func(q string) string { return q + "__retry_exchange" },
	}
	more := amqp.Table{"x-max-length": 1000}
	strategies := map[string]topology.Strategy{
		"of a user":                 perQueueByHand{},
		"per queue":                 topology.PerQueue{},
		"per queue, classic":        topology.PerQueue{Type: topology.Classic},
		"per queue, target":         topology.PerQueue{Dead: target},
		"per queue, bounded":        topology.PerQueue{WaitArguments: more, Dead: bounded},
		"per queue, return":         topology.PerQueue{Via: "amq.topic"},
		"per queue, classic return": topology.PerQueue{Via: "events", Type: topology.Classic, Prefix: "shop"},
		"per attempt":               topology.PerAttempt{},
		"per attempt, named":        named,
		"per attempt, classic":      topology.PerAttempt{Type: topology.Classic},
		"per attempt, return":       topology.PerAttempt{Via: "events", WaitArguments: more, Dead: target},
		"shared":                    topology.Shared{},
		"shared, classic":           topology.Shared{Type: topology.Classic, Prefix: "shop"},
		"shared, return":            topology.Shared{Via: "events", WaitArguments: more, Dead: bounded},
		"levels":                    topology.Levels{},
		"levels, classic":           topology.Levels{Type: topology.Classic, Max: time.Minute, Dead: target},
		"levels, a minute":          topology.Levels{Max: time.Minute},
		"levels, five seconds":      topology.Levels{Resolution: 5 * time.Second, Max: 5 * time.Second},
		"levels, fine":              topology.Levels{Resolution: time.Millisecond, Tolerance: -1},
		"levels, coarse":            topology.Levels{Resolution: 700 * time.Millisecond, Tolerance: 1, WaitArguments: more, Prefix: "shop"},
	}
	all := map[string]topology.Plan{}
	for name, strategy := range strategies {
		for kind, delays := range map[string][]time.Duration{
			"ladder": nil, "none": {}, "long": {6 * time.Hour, 48 * time.Hour}, "short": {time.Millisecond}, "mixed": {200 * time.Millisecond, 5 * time.Second, time.Minute},
		} {
			if name == "of a user" && kind == "short" {
				continue // it does not sort
			}
			plan, err := strategy.Plan("eu.orders", delays)
			if name == "of a user" && kind == "mixed" {
				slices.SortFunc(plan.WaitSteps, func(a, b topology.Route) int { return int(a.Delay - b.Delay) })
			}
			require.NoError(t, err, name)
			all[name+", "+kind] = plan
		}
	}
	return all
}

func TestEveryStrategysPlanIsValid(t *testing.T) {
	t.Parallel()
	for name, plan := range planned(t) {
		require.NoError(t, topology.ValidatePlan(plan), name)
	}
}

// Whatever the policy: a message that is set aside for a second waits five at most.
// With delays of hours it waited for hours, as only a plan with nothing of a second
// or more got a step of a second.
func TestSetAsideForASecondWaitsFiveAtMost(t *testing.T) {
	t.Parallel()
	for name, plan := range planned(t) {
		route, err := plan.Route(topology.Retry{Delay: time.Second})
		require.NoError(t, err)
		require.GreaterOrEqual(t, route.Delay, time.Second, name)
		require.LessOrEqual(t, route.Delay, 5*time.Second, name)
	}
}

// clonePlan returns a plan that shares nothing with p.
func clonePlan(p topology.Plan) topology.Plan {
	p.Queues, p.Exchanges = slices.Clone(p.Queues), slices.Clone(p.Exchanges)
	p.Bindings, p.WaitSteps = slices.Clone(p.Bindings), slices.Clone(p.WaitSteps)
	for i := range p.Queues {
		p.Queues[i].Arguments = maps.Clone(p.Queues[i].Arguments)
	}
	for i := range p.Exchanges {
		p.Exchanges[i].Arguments = maps.Clone(p.Exchanges[i].Arguments)
	}
	if p.Levels != nil {
		levels := *p.Levels
		p.Levels = &levels
	}
	if p.Via != nil {
		back := *p.Via
		p.Via = &back
	}
	return p
}

// harmless are arguments without which no message is lost.
var harmless = map[string]bool{"x-queue-mode": true, "x-max-length": true, "x-message-ttl of what keeps": true, "x-delivery-limit of what waits": true}

// breakages are all the ways in which one thing of a plan can be broken.
func breakages(p topology.Plan) map[string]func(*topology.Plan) {
	all := map[string]func(*topology.Plan){
		"another queue": func(p *topology.Plan) { p.Queue = "invoices" },
		"no queue":      func(p *topology.Plan) { p.Queue = "" },
		"no dead":       func(p *topology.Plan) { p.Dead = topology.Route{} },
		"dead returns":  func(p *topology.Plan) { p.Dead = topology.Route{RoutingKey: p.Queue} },
		"dead waits":    func(p *topology.Plan) { p.Dead = p.WaitSteps[0] },
		"dead nowhere":  func(p *topology.Plan) { p.Dead = topology.Route{RoutingKey: "nowhere"} },
		"no rungs":      func(p *topology.Plan) { p.WaitSteps = nil },
		"a rung twice":  func(p *topology.Plan) { p.WaitSteps = append(p.WaitSteps, p.WaitSteps[0]); p.WaitSteps[0].Delay++ },
		"a queue twice": func(p *topology.Plan) { p.Queues = append(p.Queues, p.Queues[0]) },
	}
	for i, q := range p.Queues {
		at := "queue " + q.Name + " "
		all[at+"dropped"] = func(p *topology.Plan) { p.Queues = slices.Delete(p.Queues, i, i+1) }
		all[at+"without a name"] = func(p *topology.Plan) { p.Queues[i].Name = "" }
		all[at+"expires"] = func(p *topology.Plan) { p.Queues[i].Arguments["x-expires"] = 1000 }
		all[at+"is a stream"] = func(p *topology.Plan) { p.Queues[i].Arguments["x-queue-type"] = "stream" }
		for key := range q.Arguments {
			of := key + " of what keeps"
			if q.Delay > 0 {
				of = key + " of what waits"
			}
			if harmless[key] || harmless[of] {
				continue
			}
			all[at+"without "+key] = func(p *topology.Plan) { delete(p.Queues[i].Arguments, key) }
			if key != "x-delivery-limit" {
				all[at+"with another "+key] = func(p *topology.Plan) { p.Queues[i].Arguments[key] = "another" }
			}
		}
		if q.Delay > 0 {
			all[at+"waits longer"] = func(p *topology.Plan) { p.Queues[i].Delay += time.Millisecond }
			all[at+"is adopted"] = func(p *topology.Plan) { p.Queues[i].Adopt = true }
			all[at+"has a TTL of its own"] = func(p *topology.Plan) { p.Queues[i].Arguments["x-message-ttl"] = int64(7) }
			all[at+"drops its head"] = func(p *topology.Plan) {
				p.Queues[i].Arguments["x-max-length"], p.Queues[i].Arguments["x-overflow"] = 5, "drop-head"
			}
		}
	}
	for i, e := range p.Exchanges {
		at := "exchange " + e.Name + " "
		all[at+"dropped"] = func(p *topology.Plan) { p.Exchanges = slices.Delete(p.Exchanges, i, i+1) }
		all[at+"of another type"] = func(p *topology.Plan) { p.Exchanges[i].Kind = "x-random" }
		// An exchange that is its own alternate is safe from policies, which a plan need
		// not be.
		if alternate := e.Arguments["alternate-exchange"]; alternate != nil && alternate != e.Name {
			all[at+"without an alternate"] = func(p *topology.Plan) { delete(p.Exchanges[i].Arguments, "alternate-exchange") }
			all[at+"with another alternate"] = func(p *topology.Plan) { p.Exchanges[i].Arguments["alternate-exchange"] = "another" }
		}
	}
	for i, b := range p.Bindings {
		at := fmt.Sprintf("binding %d of %s ", i, b.Exchange)
		all[at+"dropped"] = func(p *topology.Plan) { p.Bindings = slices.Delete(p.Bindings, i, i+1) }
		all[at+"elsewhere"] = func(p *topology.Plan) { p.Bindings[i].Queue, p.Bindings[i].ToExchange = "elsewhere", "" }
		if b.Header != "" {
			all[at+"of another value"] = func(p *topology.Plan) { p.Bindings[i].Value += "x" }
		}
	}
	for i := range p.WaitSteps {
		at := fmt.Sprintf("rung %d ", i)
		if p.Levels == nil {
			all[at+"dropped"] = func(p *topology.Plan) { p.WaitSteps = slices.Delete(p.WaitSteps, i, i+1) }
		}
		all[at+"too long"] = func(p *topology.Plan) { p.WaitSteps[i].Delay += time.Millisecond }
		all[at+"by another exchange"] = func(p *topology.Plan) { p.WaitSteps[i].Exchange = "another" }
		all[at+"of more hops"] = func(p *topology.Plan) { p.WaitSteps[i].Hops++ }
		if p.WaitSteps[i].Exchange == "" || p.Levels != nil {
			all[at+"of another key"] = func(p *topology.Plan) { p.WaitSteps[i].RoutingKey += "x" }
		}
	}
	if p.Levels != nil {
		all["one level more"] = func(p *topology.Plan) { p.Levels.Levels++ }
		all["no levels"] = func(p *topology.Plan) { p.Levels.Levels = 0 }
		all["no resolution"] = func(p *topology.Plan) { p.Levels.Resolution = 0 }
		all["another resolution"] = func(p *topology.Plan) { p.Levels.Resolution *= 2 }
		all["another destination"] = func(p *topology.Plan) { p.Levels.Destination += "x" }
		all["another entry"] = func(p *topology.Plan) { p.Levels.Exchange += "x" }
		all["a tolerance of two"] = func(p *topology.Plan) { p.Levels.Tolerance = 2 }
	}
	if p.Via != nil {
		all["another exchange to return to"] = func(p *topology.Plan) { p.Via.Exchange += "x" }
		all["another way to return"] = func(p *topology.Plan) { p.Via.Through += "x" }
	}
	return all
}

// Each argument, binding, exchange, queue and wait step of a valid plan matters: where any
// one is broken the plan is refused.
func TestAPlanWithOneThingBrokenIsRefused(t *testing.T) {
	t.Parallel()
	tried := 0
	for name, plan := range planned(t) {
		if plan.Levels != nil && (len(plan.Queues) > 12 || !strings.HasSuffix(name, "ladder")) {
			continue // the same for all delays; forty levels take long and are alike
		}
		tried += len(breakages(plan))
		for what, breaks := range breakages(plan) {
			broken := clonePlan(plan)
			breaks(&broken)
			if err := topology.ValidatePlan(broken); err == nil {
				t.Errorf("%s: %s: passes", name, what)
			} else if strings.Contains(err.Error(), "%!") {
				t.Errorf("%s: %s: %v", name, what, err)
			}
		}
		require.NoError(t, topology.ValidatePlan(plan), "the original is unchanged")
	}
	t.Logf("%d breakages", tried)
	require.Greater(t, tried, 3000)
}

// A plan may be weaker than our own where it says so by name.
func TestAWeakerGuaranteeIsChosenByName(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(args amqp.Table){
		"classic": func(args amqp.Table) {
			delete(args, "x-dead-letter-strategy")
			delete(args, "x-overflow")
			args["x-queue-type"] = "classic"
		},
		"at most once": func(args amqp.Table) {
			delete(args, "x-overflow")
			args["x-dead-letter-strategy"] = "at-most-once"
		},
	} {
		plan, err := perQueueByHand{}.Plan("orders", nil)
		require.NoError(t, err)
		change(plan.Queues[0].Arguments)
		require.NoError(t, topology.ValidatePlan(plan), name)
	}
}

// Two services may bind their queues to one exchange of their own, as Shared does.
func TestAPlanThatMultipliesMessagesIsRefused(t *testing.T) {
	t.Parallel()
	plan, err := topology.PerAttempt{}.Plan("orders", backoff.List{time.Second, time.Minute})
	require.NoError(t, err)
	plan.Exchanges[0].Kind = "fanout"
	require.ErrorContains(t, topology.ValidatePlan(plan), "it leads to 2 wait queues")

	plan, err = topology.Shared{}.Plan("orders", backoff.List{time.Second})
	require.NoError(t, err)
	plan.Bindings = append(plan.Bindings, topology.Binding{Exchange: "millpond.wait.1s", Queue: "orders"})
	require.ErrorContains(t, topology.ValidatePlan(plan), `leads to queue "orders" before the wait is over`)

	plan, err = perQueueByHand{}.Plan("orders", nil)
	require.NoError(t, err)
	plan.Queues[0].Arguments["x-dead-letter-routing-key"] = plan.Queues[0].Name
	require.ErrorContains(t, topology.ValidatePlan(plan), "in a circle")
}

func BenchmarkValidatePlan(b *testing.B) {
	for name, strategy := range map[string]topology.Strategy{"per queue": topology.PerQueue{}, "levels": topology.Levels{}} {
		b.Run(name, func(b *testing.B) {
			plan, err := strategy.Plan("orders", nil)
			require.NoError(b, err)
			for b.Loop() {
				if err := topology.ValidatePlan(plan); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
