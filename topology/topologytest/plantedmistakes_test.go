package topologytest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/experiment"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// planFunc is a strategy that is one function.
type planFunc func(queue string, delays []time.Duration) (topology.Plan, error)

func (f planFunc) Plan(queue string, delays []time.Duration) (topology.Plan, error) {
	return f(queue, delays)
}

// altered is PerQueue with a mistake in its plans.
func altered(mistake func(plan *topology.Plan)) topology.Strategy {
	return planFunc(func(queue string, delays []time.Duration) (topology.Plan, error) {
		plan, err := topology.PerQueue{}.Plan(queue, delays)
		if err == nil {
			mistake(&plan)
		}
		return plan, err
	})
}

// planFailures runs the checks that need no broker, and returns the text of each that failed.
func planFailures(t *testing.T, c Config) map[string]string {
	t.Helper()
	found := map[string]string{}
	note(t, found, newSuite(c).inTurn(planChecks...))
	return found
}

// failures runs checks on a broker, and returns the text of each that failed. The last of Run's
// checks runs after them. begin is called when the service runs.
func failures(t *testing.T, c Config, begin func(), checks ...check) map[string]string {
	t.Helper()
	s, found := newSuite(c), map[string]string{}
	start := experiment.New(context.Background(), "Start", s.Patience)
	defer start.Clean()
	if start.Run(func() { s.start(start) }); start.Failed {
		note(t, found, []*trial{start})
		return found
	}
	begin()
	note(t, found, s.try(checks...))
	note(t, found, s.try(endChecks...))
	return found
}

func note(t *testing.T, found map[string]string, trials []*trial) {
	t.Helper()
	for _, tr := range trials {
		if text := strings.Join(tr.Lines, "\n"); tr.Failed {
			found[tr.Name] = text
			t.Logf("%s: %.600s", tr.Name, text)
		}
	}
}

// named returns the checks of these names.
func named(t *testing.T, names ...string) (found []check) {
	t.Helper()
	for _, name := range names {
		i := slices.IndexFunc(brokerChecks, func(c check) bool { return c.name == name })
		require.GreaterOrEqual(t, i, 0, name)
		found = append(found, brokerChecks[i])
	}
	return found
}

// Each mistake of a strategy that shows in its plans is found by the check for it, and by no other
// that the mistake does not concern.
func TestPlansWithAMistakeAreFound(t *testing.T) {
	t.Parallel()
	perQueue := topology.PerQueue{}
	var mu sync.Mutex
	calls := 0
	queues, kept := map[bool]string{}, []time.Duration(nil)
	for name, c := range map[string]struct {
		strategy topology.Strategy
		found    []string
		says     string
	}{
		"none": {perQueue, nil, ""},
		"no plan for delays that are not known": {
			planFunc(func(queue string, delays []time.Duration) (topology.Plan, error) {
				if delays == nil {
					return topology.Plan{}, fmt.Errorf("which delays?")
				}
				return perQueue.Plan(queue, delays)
			}),
			[]string{"AllowsAnotherPolicy", "IsTheSameForTheSameArguments", "IsValidForAnyDelays"},
			"no plan for delays that are not known: which delays?",
		},
		"another queue": {
			altered(func(p *topology.Plan) { p.Queue = strings.ToLower(p.Queue + "s") }),
			[]string{"IsValidForAnyDelays"},
			"set Plan.Queue to the name",
		},
		"messages can be lost": {
			altered(func(p *topology.Plan) { delete(p.Queues[0].Arguments, "x-dead-letter-exchange") }),
			[]string{"IsValidForAnyDelays"},
			"messages can be lost",
		},
		"a number that grows": {
			altered(func(p *topology.Plan) {
				mu.Lock()
				defer mu.Unlock()
				calls++
				p.Dead = topology.Route{Exchange: fmt.Sprint("dead", calls)}
			}),
			[]string{
				"IsSafeForConcurrentUse", "IsTheSameForTheSameArguments",
				"LeavesTheDelaysOfTheCallerAlone",
			},
			"return different plans",
		},
		"state between calls": {
			planFunc(func(queue string, delays []time.Duration) (topology.Plan, error) {
				mu.Lock()
				queues[true] = queue
				mu.Unlock()
				time.Sleep(time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				return perQueue.Plan(queues[true], delays)
			}), []string{"IsSafeForConcurrentUse"}, "by several goroutines",
		},
		"sorts the slice of the caller": {
			planFunc(func(queue string, delays []time.Duration) (topology.Plan, error) {
				plan, err := perQueue.Plan(queue, delays)
				mu.Lock()
				defer mu.Unlock()
				slices.Sort(delays)
				return plan, err
			}), []string{"LeavesTheDelaysOfTheCallerAlone"}, "slices.Clone before sorting",
		},
		"appends to the slice of the caller": {
			planFunc(func(queue string, delays []time.Duration) (topology.Plan, error) {
				mu.Lock()
				defer mu.Unlock()
				return perQueue.Plan(queue, append(delays, 5*time.Second))
			}), []string{"LeavesTheDelaysOfTheCallerAlone"}, "slices.Clone before sorting",
		},
		"keeps the slice of the caller": {
			planFunc(func(queue string, delays []time.Duration) (topology.Plan, error) {
				mu.Lock()
				defer mu.Unlock()
				if len(kept) == 3 && len(delays) == 3 && delays[0] == 3*time.Second {
					return perQueue.Plan(queue, kept)
				}
				if len(delays) == 3 && delays[0] == 3*time.Second {
					kept = delays
				}
				return perQueue.Plan(queue, delays)
			}), []string{"LeavesTheDelaysOfTheCallerAlone"}, "has kept the slice",
		},
		"the same wait queues for every queue": {
			altered(func(p *topology.Plan) {
				renameWaits(p, func(q topology.Queue) string { return "wait." + q.Delay.String() })
			}),
			[]string{"SharesOnlyPartsThatAreEqual"},
			`queue "wait.1s", with the arguments`,
		},
		"the same exchange as another kind": {
			altered(func(p *topology.Plan) {
				kind := []string{"direct", "fanout"}[len(p.Queue)%2]
				p.Exchanges = append(p.Exchanges, topology.Exchange{Name: "all", Kind: kind})
			}), []string{"SharesOnlyPartsThatAreEqual"}, `exchange "all", as`,
		},
		"names without the delay": {
			altered(func(p *topology.Plan) {
				n := 0
				renameWaits(p, func(topology.Queue) string { n++; return fmt.Sprint(p.Queue, ".retry.", n) })
			}), []string{"AllowsAnotherPolicy"}, "set Config.FixedDelays",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := planFailures(t, Config{Strategy: c.strategy})
			var names, texts []string
			for name, text := range found {
				names, texts = append(names, name), append(texts, text)
			}
			require.ElementsMatch(t, c.found, names)
			require.Contains(t, strings.Join(texts, "\n"), c.says)
		})
	}
}

// renameWaits gives the wait queues of a plan other names.
func renameWaits(p *topology.Plan, name func(topology.Queue) string) {
	for i, q := range p.Queues {
		if q.Delay > 0 {
			p.Queues[i].Name = name(q)
			p.WaitSteps[i].RoutingKey = p.Queues[i].Name
		}
	}
}

// byOrdinal has an exchange for each queue in which the key of a wait queue is its place. After a
// change of the policy the bindings of the old plan are still there.
func byOrdinal(queue string, delays []time.Duration) (topology.Plan, error) {
	plan, err := topology.PerQueue{}.Plan(queue, delays)
	if err != nil {
		return plan, err
	}
	retry := queue + ".retry"
	plan.Exchanges = append(plan.Exchanges, topology.Exchange{Name: retry, Kind: "direct"})
	for i := range plan.WaitSteps {
		key := fmt.Sprint(i + 1)
		plan.WaitSteps[i].Exchange, plan.WaitSteps[i].RoutingKey = retry, key
		plan.Bindings = append(plan.Bindings,
			topology.Binding{Exchange: retry, RoutingKey: key, Queue: plan.Queues[i].Name})
	}
	return plan, nil
}

// oneReturn returns the messages of all queues through one fanout exchange.
func oneReturn(prefix string) topology.Strategy {
	return altered(func(p *topology.Plan) {
		all, stranded := prefix+".return", prefix+".stranded"
		for i, q := range p.Queues {
			if q.Delay > 0 {
				p.Queues[i] = topology.WaitQueue(q.Name, q.Delay, topology.Route{Exchange: all})
			}
		}
		dead := p.Queues[len(p.Queues)-1]
		dead.Name = stranded
		p.Queues = append(p.Queues, dead)
		caught := amqp.Table{"alternate-exchange": stranded}
		p.Exchanges = append(p.Exchanges, topology.Exchange{Name: stranded, Kind: "fanout"},
			topology.Exchange{Name: all, Kind: "fanout", Arguments: caught})
		p.Bindings = append(p.Bindings, topology.Binding{Exchange: all, Queue: p.Queue},
			topology.Binding{Exchange: stranded, Queue: stranded})
	})
}

// Each mistake of a strategy that shows on a broker alone is found by the check for it.
func TestStrategiesThatFailOnABrokerAreFound(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	asked := 0
	for name, c := range map[string]struct {
		strategy topology.Strategy
		found    string
		says     string
	}{
		"bindings of the old policy": {
			planFunc(byOrdinal), "AnotherPolicyForAQueueIsKept", "earlier plan",
		},
		"one way back for two queues": {
			oneReturn(testbroker.Queue(t)), "MessagesReturnToTheirOwnQueue", "that failed it",
		},
		"arguments by chance": {
			altered(func(p *topology.Plan) {
				if strings.HasSuffix(p.Queue, ".declared") {
					mu.Lock()
					defer mu.Unlock()
					asked++
					p.Queues[0].Arguments["x-max-length"] = int64(100 + asked)
				}
			}), "DeclaringTwiceIsNoConflict", "x-max-length",
		},
		"a stranded queue without a way to it": {
			altered(func(p *topology.Plan) {
				classic, delays := topology.PerQueue{Type: topology.Classic}, []time.Duration{2 * time.Second}
				*p, _ = classic.Plan(p.Queue, delays)
				dead := p.Queues[len(p.Queues)-1]
				dead.Name = p.Queue + ".stranded"
				p.Queues = append(p.Queues, dead)
			}), "AMessageWhoseQueueIsDeletedIsKept", "it is lost",
		},
		"an argument that the broker refuses": {
			altered(func(p *topology.Plan) { p.Queues[0].Arguments["x-max-length"] = int64(-5) }),
			"Start", "invalid arg 'x-max-length'",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := Config{
				Strategy: c.strategy, URL: testbroker.URL(t), DeleteShared: true, Patience: 3 * time.Second,
			}
			require.NotContains(t, planFailures(t, Config{Strategy: c.strategy}), "IsValidForAnyDelays")
			var checks []check
			if c.found != "Start" {
				checks = named(t, c.found)
			}
			found := failures(t, config, func() {}, checks...)
			require.Contains(t, found, c.found)
			require.Contains(t, found[c.found], c.says)
		})
	}
}
