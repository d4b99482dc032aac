package topology_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/topology"
)

func ExampleValidatePlan() {
	err := topology.ValidatePlan(topology.Plan{
		Queue: "orders",
		Queues: []topology.Queue{{
			Name: "orders.later", Delay: 5 * time.Second,
			Arguments: amqp.Table{"x-queue-type": "quorum", "x-message-ttl": 5000},
		}},
		WaitSteps: []topology.Route{{RoutingKey: "orders.later", Delay: 5 * time.Second, Hops: 1}},
	})
	fmt.Println(strings.NewReplacer(", ", ",\n\t", ": set", ":\n\tset", "; ", ";\n\t").
		Replace(err.Error()))
	// Output:
	// plan for queue "orders": wait queue "orders.later" has no x-dead-letter-exchange,
	// 	so that the broker drops a message whose wait is over:
	// 	set it to "" and x-dead-letter-routing-key to the queue's name;
	// 	topology.WaitQueue sets the safe arguments
	// wait queue "orders.later": x-dead-letter-strategy is <nil>,
	// 	so that messages are lost where their queue is out of reach:
	// 	set it to at-least-once,
	// 	with x-overflow reject-publish,
	// 	or name the weaker at-most-once;
	// 	topology.WaitQueue sets the safe arguments
	// dead letters have no target: declare a queue for them in Plan.Queues,
	// 	with Adopt to use an existing queue,
	// 	or name an exchange of yours in Plan.Dead
}

// planned returns plans with every option of every strategy.
func planned(t testing.TB) map[string]topology.Plan {
	t.Helper()
	const ms, s = time.Millisecond, time.Second
	target := topology.DeadLetters{Target: func(queue string) topology.Route {
		return topology.Route{Exchange: "graves", RoutingKey: queue}
	}}
	bounded := topology.DeadLetters{
		Name:      func(q string) string { return q + ".failed" },
		Arguments: amqp.Table{"x-max-length": 5, "x-message-ttl": 5000},
	}
	named := topology.PerAttempt{
		Delays:       []time.Duration{100 * ms, 100 * ms, 10 * s},
		ExchangeName: func(q string) string { return q + "__retry_exchange" },
		WaitName: func(q string, attempt int, _ time.Duration) string {
			return fmt.Sprintf("%s__retry.%d", q, attempt)
		},
	}
	more, events := amqp.Table{"x-max-length": 1000}, []string{"events"}
	strategies := map[string]topology.Strategy{
		"of a user":          perQueueByHand{},
		"per queue":          topology.PerQueue{},
		"per queue, classic": topology.PerQueue{Type: topology.Classic},
		"per queue, target":  topology.PerQueue{Dead: target},
		"per queue, bounded": topology.PerQueue{WaitArguments: more, Dead: bounded},
		"per queue, return":  topology.PerQueue{Via: []string{"amq.topic"}},
		"per queue, returns": topology.PerQueue{Via: []string{"events", "logs"}},
		"per queue, classic return": topology.PerQueue{
			Via: []string{"events"}, Type: topology.Classic, Prefix: "shop",
		},
		"per attempt":          topology.PerAttempt{},
		"per attempt, named":   named,
		"per attempt, classic": topology.PerAttempt{Type: topology.Classic},
		"shared":               topology.Shared{},
		"shared, classic":      topology.Shared{Type: topology.Classic, Prefix: "shop"},
		"shared, return":       topology.Shared{Via: events, WaitArguments: more, Dead: bounded},
		"levels":               topology.Levels{},
		"levels, classic":      topology.Levels{Type: topology.Classic, Max: time.Minute, Dead: target},
		"levels, a minute":     topology.Levels{Max: time.Minute},
		"levels, five seconds": topology.Levels{Resolution: 5 * s, Max: 5 * s},
		"levels, fine":         topology.Levels{Resolution: ms, Tolerance: -1},
		"levels, coarse": topology.Levels{
			Resolution: 700 * ms, Tolerance: 1, WaitArguments: more, Prefix: "shop",
		},
		"delayed": topology.DelayedExchange{},
		"delayed, classic": topology.DelayedExchange{
			Type: topology.Classic, Prefix: "shop", Dead: target,
		},
		"delayed, returns": topology.DelayedExchange{Via: []string{"events", "logs"}},
		"delayed by hand":  InExchange{},
	}
	all := map[string]topology.Plan{}
	for name, strategy := range strategies {
		for kind, delays := range map[string][]time.Duration{
			"unknown": nil, "none": {}, "long": {6 * time.Hour, 48 * time.Hour}, "short": {ms},
			"mixed": {200 * ms, 5 * s, time.Minute},
		} {
			if name == "of a user" && kind == "short" {
				continue // PerQueueByHand does not sort its wait steps.
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

// Given any policy, then a snooze of a second takes five seconds at most. With delays of
// hours it took hours: only a plan without a delay of a second or more had such a step.
func TestSetAsideForASecondWaitsFiveAtMost(t *testing.T) {
	t.Parallel()
	for name, plan := range planned(t) {
		route, err := plan.Route(topology.Retry{Delay: time.Second})
		require.NoError(t, err)
		require.GreaterOrEqual(t, route.Delay, time.Second, name)
		require.LessOrEqual(t, route.Delay, 5*time.Second, name)
	}
}

// clonePlan returns a deep copy.
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
		via := *p.Via
		via.Exchanges = slices.Clone(via.Exchanges)
		p.Via = &via
	}
	return p
}

// harmless are the arguments that may go without the loss of a message: of any queue, of a
// dead-letter queue, of a wait queue.
var harmless = map[string]bool{
	"x-queue-mode": true, "x-max-length": true, "dead x-message-ttl": true,
	"wait x-delivery-limit": true,
}

// breakage breaks one thing of a plan.
type breakage = func(*topology.Plan)

// breakages returns all ways to break one thing of a plan.
func breakages(p topology.Plan) map[string]breakage {
	all := map[string]breakage{
		"another queue": func(p *topology.Plan) { p.Queue = "invoices" },
		"no queue":      func(p *topology.Plan) { p.Queue = "" },
		"no dead":       func(p *topology.Plan) { p.Dead = topology.Route{} },
		"dead returns":  func(p *topology.Plan) { p.Dead = topology.Route{RoutingKey: p.Queue} },
		"dead waits":    func(p *topology.Plan) { p.Dead = p.WaitSteps[0] },
		"dead nowhere":  func(p *topology.Plan) { p.Dead = topology.Route{RoutingKey: "nowhere"} },
		"no wait steps": func(p *topology.Plan) { p.WaitSteps = nil },
		"a wait step twice": func(p *topology.Plan) {
			p.WaitSteps = append(p.WaitSteps, p.WaitSteps[0])
			p.WaitSteps[0].Delay++
		},
		"a queue twice": func(p *topology.Plan) { p.Queues = append(p.Queues, p.Queues[0]) },
	}
	breakQueues(all, p.Queues)
	breakExchanges(all, p)
	breakWaitSteps(all, p)
	return all
}

func breakQueues(all map[string]breakage, queues []topology.Queue) {
	for i, q := range queues {
		at := "queue " + q.Name + " "
		all[at+"dropped"] = func(p *topology.Plan) { p.Queues = slices.Delete(p.Queues, i, i+1) }
		all[at+"without a name"] = func(p *topology.Plan) { p.Queues[i].Name = "" }
		set := func(name, key string, value any) {
			all[at+name] = func(p *topology.Plan) { p.Queues[i].Arguments[key] = value }
		}
		set("expires", "x-expires", 1000)
		set("is a stream", "x-queue-type", "stream")
		for key := range q.Arguments {
			use := "dead "
			if q.Delay > 0 {
				use = "wait "
			}
			if harmless[key] || harmless[use+key] {
				continue
			}
			all[at+"without "+key] = func(p *topology.Plan) { delete(p.Queues[i].Arguments, key) }
			if key != "x-delivery-limit" {
				set("with another "+key, key, "another")
			}
		}
		if q.Delay > 0 {
			all[at+"waits longer"] = func(p *topology.Plan) { p.Queues[i].Delay += time.Millisecond }
			all[at+"is adopted"] = func(p *topology.Plan) { p.Queues[i].Adopt = true }
			set("has another TTL", "x-message-ttl", int64(7))
			all[at+"drops its head"] = func(p *topology.Plan) {
				p.Queues[i].Arguments["x-max-length"], p.Queues[i].Arguments["x-overflow"] = 5, "drop-head"
			}
		}
	}
}

// breakExchanges adds the exchanges and their bindings.
func breakExchanges(all map[string]breakage, p topology.Plan) {
	for i, e := range p.Exchanges {
		at := "exchange " + e.Name + " "
		all[at+"dropped"] = func(p *topology.Plan) { p.Exchanges = slices.Delete(p.Exchanges, i, i+1) }
		all[at+"of another type"] = func(p *topology.Plan) { p.Exchanges[i].Kind = "x-random" }
		// An exchange that is its own alternate is safe from broker policies, which is more
		// than ValidatePlan asks for.
		const key = "alternate-exchange"
		if alternate := e.Arguments[key]; alternate != nil && alternate != e.Name {
			all[at+"without an alternate"] = func(p *topology.Plan) { delete(p.Exchanges[i].Arguments, key) }
			all[at+"with another alternate"] = func(p *topology.Plan) {
				p.Exchanges[i].Arguments[key] = "another"
			}
		}
	}
	for i, b := range p.Bindings {
		at := fmt.Sprintf("binding %d of %s ", i, b.Exchange)
		all[at+"dropped"] = func(p *topology.Plan) { p.Bindings = slices.Delete(p.Bindings, i, i+1) }
		all[at+"elsewhere"] = func(p *topology.Plan) {
			p.Bindings[i].Queue, p.Bindings[i].ToExchange = "elsewhere", ""
		}
		if b.Header != "" {
			all[at+"of another value"] = func(p *topology.Plan) { p.Bindings[i].Value += "x" }
		}
	}
}

// breakWaitSteps adds the wait steps, the levels and the exchange that messages return by.
func breakWaitSteps(all map[string]breakage, p topology.Plan) {
	for i := range p.WaitSteps {
		if i > 20 {
			break // DelayedExchange has three hundred
		}
		at := fmt.Sprintf("wait step %d ", i)
		if p.Levels == nil && p.WaitSteps[i].Headers == nil {
			all[at+"dropped"] = func(p *topology.Plan) {
				p.WaitSteps = slices.Delete(p.WaitSteps, i, i+1)
			}
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
		all["another exchange to return to"] = func(p *topology.Plan) { p.Via.Exchanges[0] += "x" }
		all["another way to return"] = func(p *topology.Plan) { p.Via.Through += "x" }
	}
}

// Each argument, binding, exchange, queue and wait step of a valid plan is needed: a plan with
// one of them broken is refused.
func TestAPlanWithOneThingBrokenIsRefused(t *testing.T) {
	t.Parallel()
	tried := 0
	for name, plan := range planned(t) {
		if plan.Levels != nil && (len(plan.Queues) > 12 || !strings.HasSuffix(name, "unknown")) {
			continue // Plans are the same for all delays, and forty levels are alike and take long.
		}
		tried += len(breakages(plan))
		for broken, damage := range breakages(plan) {
			damaged := clonePlan(plan)
			damage(&damaged)
			if err := topology.ValidatePlan(damaged); err == nil {
				t.Errorf("%s: %s: passes", name, broken)
			} else if strings.Contains(err.Error(), "%!") {
				t.Errorf("%s: %s: %v", name, broken, err)
			}
		}
		require.NoError(t, topology.ValidatePlan(plan), "the original is unchanged")
	}
	t.Logf("%d breakages", tried)
	require.Greater(t, tried, 3000)
}

// A plan may be weaker than the plans of this package if it names the weaker guarantee.
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
		plan := rig.PlanOf(t, perQueueByHand{}, "orders")
		change(plan.Queues[0].Arguments)
		require.NoError(t, topology.ValidatePlan(plan), name)
	}
}

func TestAPlanThatMultipliesMessagesIsRefused(t *testing.T) {
	t.Parallel()
	plan := rig.PlanOf(t, topology.PerAttempt{}, "orders", time.Second, time.Minute)
	plan.Exchanges[0].Kind = "fanout"
	require.ErrorContains(t, topology.ValidatePlan(plan), "it leads to 2 wait queues")

	plan = rig.PlanOf(t, topology.Shared{}, "orders", time.Second)
	early := topology.Binding{Exchange: "millpond.wait.1s", Queue: "orders"}
	plan.Bindings = append(plan.Bindings, early)
	require.ErrorContains(t, topology.ValidatePlan(plan),
		`leads to queue "orders" before the wait is over`)

	plan = rig.PlanOf(t, perQueueByHand{}, "orders")
	plan.Queues[0].Arguments["x-dead-letter-routing-key"] = plan.Queues[0].Name
	require.ErrorContains(t, topology.ValidatePlan(plan), "in a circle")
}

// Open refuses an invalid strategy of this package before it connects.
func TestOpenNamesWhatIsWrongWithAStrategy(t *testing.T) {
	t.Parallel()
	both := topology.DeadLetters{
		Name:   func(string) string { return "dead" },
		Target: func(string) topology.Route { return topology.Route{Exchange: "dead"} },
	}
	ttl, zero := amqp.Table{"x-message-ttl": 1}, []time.Duration{0}
	nowhere := wamqp.ConnectionConfig{AmqpURI: "amqp://127.0.0.1:1/"}
	for want, strategies := range map[string][]topology.Strategy{
		"is not positive": {
			topology.PerQueue{WaitSteps: zero},
			&topology.Shared{WaitSteps: zero},
			topology.PerAttempt{Delays: zero},
			topology.PerAttempt{WaitSteps: zero},
		},
		"is unknown": {
			topology.PerQueue{Type: "x"},
			topology.Shared{Type: "x"},
			topology.PerAttempt{Type: "x"},
			topology.Levels{Type: "x"},
			topology.DelayedExchange{Type: "x"},
		},
		"both a Target": {
			topology.PerQueue{Dead: both},
			topology.Shared{Dead: both},
			topology.PerAttempt{Dead: both},
			topology.Levels{Dead: both},
			topology.DelayedExchange{Dead: both},
		},
		"x-message-ttl of the": {
			topology.PerQueue{WaitArguments: ttl},
			topology.Shared{WaitArguments: ttl},
			topology.PerAttempt{WaitArguments: ttl},
			topology.Levels{WaitArguments: ttl},
		},
		"is not in whole":          {topology.Levels{Resolution: 1}},
		"resolution 6s is over 5s": {topology.Levels{Resolution: 6 * time.Second}},
	} {
		for _, strategy := range strategies {
			_, err := topology.Open(t.Context(), nowhere, strategy)
			require.ErrorContains(t, err, "strategy: ", "%T", strategy)
			require.ErrorContains(t, err, want, "%T", strategy)
		}
	}
}
