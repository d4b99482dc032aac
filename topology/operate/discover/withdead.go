package discover

import (
	"fmt"
	"slices"

	"github.com/millpond-go/millpond/topology"
)

// WithDead returns the plan of a main queue with another dead-letter queue, which the broker does
// not show as its dead-letter queue. The queue has the broker's arguments if a strategy declares
// such a queue. Otherwise it has none, as a queue of the user. An error names a queue that was not
// in the vhost when Find looked, or that cannot keep dead letters.
// The plan is not validated: see topology.ValidatePlan.
func (v Vhost) WithDead(main Main, queue string) (topology.Plan, error) {
	arguments, there := v.queues[queue]
	named := func(w Wait) bool { return w.Name == queue }
	waits := slices.ContainsFunc(v.Orphans, func(o Orphan) bool { return named(o.Wait) })
	for _, m := range v.Mains {
		waits = waits || slices.ContainsFunc(m.Waits, named)
	}
	switch {
	case !there:
		return topology.Plan{}, fmt.Errorf("discover: vhost %q has no queue %q that could keep the dead "+
			"letters of queue %q", v.Name, queue, main.Name)
	case queue == main.Name:
		return topology.Plan{}, fmt.Errorf("discover: queue %q cannot keep its own dead letters: name "+
			"its dead-letter queue", queue)
	case waits:
		return topology.Plan{}, fmt.Errorf("discover: queue %q is a wait queue and cannot keep the dead "+
			"letters of queue %q: name its dead-letter queue", queue, main.Name)
	}
	plan := main.Plan
	before := plan.Dead.RoutingKey
	plan.Dead = topology.Route{RoutingKey: queue}
	plan.Queues = slices.DeleteFunc(slices.Clone(plan.Queues), func(q topology.Queue) bool {
		return q.Delay == 0 && (q.Name == before || q.Name == queue)
	})
	plan.Queues = append(plan.Queues, topology.Queue{
		Name: queue, Arguments: table(arguments), Adopt: true,
	})
	return plan, nil
}
