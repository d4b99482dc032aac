package topologytest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millpond-go/millpond/topology"
)

// planChecks need no broker.
var planChecks = []check{
	{"IsValidForAnyDelays", planIsValid},
	{"IsTheSameForTheSameArguments", planIsPure},
	{"IsSafeForConcurrentUse", planIsConcurrent},
	{"LeavesTheDelaysOfTheCallerAlone", planLeavesDelays},
	{"SharesOnlyPartsThatAreEqual", planShares},
	{"AllowsAnotherPolicy", planAllowsChange},
}

// delaySets are the delays that a strategy is asked to plan.
func delaySets() map[string][]time.Duration {
	const ms, s, m, h = time.Millisecond, time.Second, time.Minute, time.Hour
	many := make([]time.Duration, 40)
	for i := range many {
		many[i] = time.Duration(i*i+1) * s
	}
	return map[string][]time.Duration{
		"delays that are not known": nil, "no delays": {}, "a millisecond": {ms},
		"one delay": {30 * s}, "a delay three times": {5 * s, 5 * s, 5 * s},
		"delays that fall": {m, 5 * s, 200 * ms}, "hours": {6 * h, 48 * h}, "forty delays": many,
	}
}

const usual = "orders"

// oddQueues are names for which a strategy may return an error, but no plan that loses messages. A
// longer name would leave no room for the names of wait queues, and ValidatePlan refuses that.
var oddQueues = []string{
	"päper/€", "two words", "a.b*c#d%e", strings.Repeat("q", 200),
}

func planIsValid(tr *trial, s *suite) {
	judge := func(queue, delays string, plan topology.Plan) {
		if plan.Queue != queue {
			tr.Errorf("Plan(%q) returns a plan for queue %q: set Plan.Queue to the name that Plan is "+
				"called with", queue, plan.Queue)
		}
		if err := topology.ValidatePlan(plan); err != nil {
			tr.Errorf("with the plan for queue %.40q and %s messages can be lost: %v", queue, delays, err)
		}
	}
	for name, delays := range delaySets() {
		plan, err := s.Strategy.Plan(usual, delays)
		if err != nil {
			tr.Errorf("Plan(%q) has no plan for %s: %v. Any policy may be used with a strategy; plan the "+
				"wait steps that are nearest", usual, name, err)
			continue
		}
		judge(usual, name, plan)
	}
	for _, queue := range oddQueues {
		if plan, err := s.Strategy.Plan(queue, s.delays()); err == nil {
			judge(queue, "three delays", plan)
		}
	}
}

func planIsPure(tr *trial, s *suite) {
	for name, delays := range delaySets() {
		first := s.planOf(tr, usual, delays)
		s.planOf(tr, "mail", []time.Duration{time.Hour})
		if difference := compare(first, s.planOf(tr, usual, delays)); difference != "" {
			tr.Errorf("two calls of Plan(%q) with %s return different plans: %s. Every instance of a "+
				"service, and the tool, computes the plan anew: let it depend on nothing but the arguments "+
				"and the fields of the strategy", usual, name, difference)
		}
	}
}

func planIsConcurrent(tr *trial, s *suite) {
	const calls = 8
	queues, want := []string{usual, "mail", "bills"}, map[string]topology.Plan{}
	for _, queue := range queues {
		want[queue] = s.planOf(tr, queue, s.delays())
	}
	delays := s.delays() // every call gets the same slice
	var wg sync.WaitGroup
	for range calls {
		for _, queue := range queues {
			wg.Go(func() {
				plan, err := s.Strategy.Plan(queue, delays)
				if difference := compare(want[queue], plan); err != nil || difference != "" {
					tr.Errorf("Plan(%q), called by several goroutines, returns another plan: %s (error: %v). "+
						"Keep no state between calls", queue, difference, err)
				}
			})
		}
	}
	wg.Wait()
}

func planLeavesDelays(tr *trial, s *suite) {
	const s1, s2, s3, behind = 3 * time.Second, time.Second, 2 * time.Second, 77 * time.Hour
	given := []time.Duration{s1, s2, s3, behind}[:3] // An append would write behind its end.
	plan, again := s.planOf(tr, usual, given), s.planOf(tr, usual, slices.Clone(given))
	if now := given[:4]; !slices.Equal(now, []time.Duration{s1, s2, s3, behind}) {
		tr.Errorf("Plan has changed the delays that it was called with, to %v: the slice belongs to the "+
			"caller. Use slices.Clone before sorting or appending", now)
	}
	for i := range given {
		given[i] = time.Hour
	}
	if difference := compare(again, plan); difference != "" {
		tr.Errorf("the plan changes when its caller changes the slice of delays: %s. Use slices.Clone",
			difference)
	}
	difference := compare(again, s.planOf(tr, usual, []time.Duration{s1, s2, s3}))
	if difference != "" {
		tr.Errorf("Plan has kept the slice of delays of an earlier call: %s. Use slices.Clone",
			difference)
	}
}

// apart are queues whose names a careless strategy takes for the same.
var apart = [][2]string{
	{usual, "mail"},
	{"a.b", "a_b"},
	{"a.b", "a-b"},
	{"orders", "Orders"},
	{"orders", "orders2"},
	{strings.Repeat("q", 150) + "1", strings.Repeat("q", 150) + "2"},
}

func planShares(tr *trial, s *suite) {
	for _, pair := range apart {
		for _, delays := range [][]time.Duration{{time.Second, time.Minute}, {30 * time.Second}, nil} {
			first, err := s.Strategy.Plan(pair[0], []time.Duration{time.Second, 30 * time.Second})
			second, err2 := s.Strategy.Plan(pair[1], delays)
			if err != nil || err2 != nil { // IsValidForAnyDelays judges errors
				continue
			}
			for _, conflict := range conflicts(first, second) {
				tr.Errorf("the plans of the queues %.20q and %.20q (%d bytes) both have %s: the broker "+
					"refuses the second declaration. Let the name tell apart all that differs",
					pair[0], pair[1], len(pair[1]), conflict)
			}
		}
	}
}

func planAllowsChange(tr *trial, s *suite) {
	if s.FixedDelays {
		tr.Skipf("Config.FixedDelays is set")
	}
	first := s.planOf(tr, usual, []time.Duration{time.Second, 30 * time.Second})
	for _, delays := range [][]time.Duration{{time.Minute}, {30 * time.Second, time.Second}, nil} {
		for _, conflict := range conflicts(first, s.planOf(tr, usual, delays)) {
			tr.Errorf("a policy with the delays 1s and 30s and one with %v both have %s: after a change of "+
				"the policy the broker refuses the declaration. Let the name tell apart all that differs, or "+
				"set Config.FixedDelays", delays, conflict)
		}
	}
}

// conflicts returns the queues and exchanges that two plans declare differently.
func conflicts(first, second topology.Plan) (found []string) {
	for _, a := range first.Queues {
		for _, b := range second.Queues {
			same := a.Delay == b.Delay && reflect.DeepEqual(a.Arguments, b.Arguments)
			if a.Name == b.Name && !same && !(a.Adopt && b.Adopt) {
				found = append(found, fmt.Sprintf("queue %q, with the arguments %v and %v", a.Name,
					a.Arguments, b.Arguments))
			}
		}
	}
	for _, a := range first.Exchanges {
		for _, b := range second.Exchanges {
			if a.Name == b.Name && !reflect.DeepEqual(a, b) {
				found = append(found, fmt.Sprintf("exchange %q, as %+v and as %+v", a.Name, a, b))
			}
		}
	}
	return found
}

// planOf ends the trial if there is no plan.
func (s *suite) planOf(tr *trial, queue string, delays []time.Duration) topology.Plan {
	plan, err := s.Strategy.Plan(queue, delays)
	if err != nil {
		tr.Fatalf("Plan(%q, %v) returns an error: %v", queue, delays, err)
	}
	return plan
}

// compare returns the first lines in which two plans differ, or "".
func compare(a, b topology.Plan) string {
	if reflect.DeepEqual(a, b) {
		return ""
	}
	of := func(p topology.Plan) []string {
		return strings.Split(fmt.Sprintf("%v\n%+v", p, p.WaitSteps), "\n")
	}
	first, second := of(a), of(b)
	for i := range min(len(first), len(second)) {
		if first[i] != second[i] {
			return fmt.Sprintf("%q became %q", first[i], second[i])
		}
	}
	return fmt.Sprintf("%d lines became %d", len(first), len(second))
}
