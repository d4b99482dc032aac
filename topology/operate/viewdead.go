package operate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// dead finds the queues that keep dead letters. millpond publishes a dead letter to a queue by its
// name, so that no argument and no binding shows which one.
func (d *derivation) dead() {
	for _, name := range slices.Sorted(maps.Keys(d.mains)) {
		usual := name + ".dlq"
		if _, there := d.queues[usual]; there && d.byName[usual] == nil && d.mains[usual] == nil {
			d.parts[name].deadQueue(d, usual, ByName)
		}
		d.deadByBroker(name)
	}
	d.unclaimed = map[string]bool{}
	for name, q := range d.queues {
		if keepsAlone(q) && q.consumers <= 0 && d.mains[name] == nil && !d.stranded[name] && !isLine(q) {
			d.unclaimed[name] = true
		}
	}
	for _, m := range d.mains {
		for _, dead := range m.Dead {
			delete(d.unclaimed, dead.Name)
		}
	}
	d.strandedByName = map[string]bool{}
	for name := range d.unclaimed {
		if strings.HasSuffix(name, ".stranded") {
			d.strandedByName[name] = true
			delete(d.unclaimed, name)
		}
	}
}

// deadQueue adds the queue that dead letters are published to.
func (p *parts) deadQueue(d *derivation, name string, evidence Evidence) {
	p.main.Dead = append(p.main.Dead, Dead{Queue: d.counts(name), Evidence: evidence})
	p.main.Plan.Dead = topology.Route{RoutingKey: name}
	p.keep(d, name)
}

// deadByBroker adds the queues that get the messages of a main queue that the broker itself
// dead-letters.
func (d *derivation) deadByBroker(name string) {
	q := d.queues[name]
	evidence := ByArgument
	exchange, leads := q.arguments["x-dead-letter-exchange"].(string)
	key, fixed := q.arguments["x-dead-letter-routing-key"].(string)
	if set := d.manager.Policies(); set != nil {
		applied := set.Of(name, string(q.kind))
		policy := applied.Definition()
		if to, set := policy["dead-letter-exchange"].(string); set && !leads {
			exchange, leads, evidence = to, true, ByPolicy
		}
		if to, set := policy["dead-letter-routing-key"].(string); set && !fixed {
			key, fixed = to, true
		}
	}
	if !leads {
		return
	}
	const about = "messages of queue %q that the broker dead-letters go to %s"
	var to []string
	kind := d.exchanges[exchange].Kind
	_, there := d.exchanges[exchange]
	switch {
	case exchange == "" && !fixed:
		return // back into the queue
	case exchange == "":
		if _, there := d.queues[key]; !there {
			d.tell(name, about+", which does not exist", name, fmt.Sprintf("queue %q", key))
			return
		}
		to = []string{key}
	case !there:
		d.tell(name, about+", which does not exist", name, fmt.Sprintf("exchange %q", exchange))
		return
	case kind == "fanout" || kind == "direct" && fixed:
		bindings, _ := d.manager.Bindings(exchange)
		for _, b := range bindings {
			if b.DestinationType == "queue" && (kind == "fanout" || b.RoutingKey == key) {
				to = append(to, b.Destination)
			}
		}
	default:
		d.tell(name, about+", and their routing keys decide in which queue they are", name,
			fmt.Sprintf("exchange %q", exchange))
		return
	}
	m := d.mains[name]
	for _, queue := range to {
		known := func(dead Dead) bool { return dead.Name == queue }
		if queue != name && !slices.ContainsFunc(m.Dead, known) {
			m.Dead = append(m.Dead, Dead{Queue: d.counts(queue), Evidence: evidence})
		}
	}
}

// peek looks at the oldest message of each queue that keeps messages.
func (d *derivation) peek(ctx context.Context, o *Operator) error {
	owners := map[string]*Main{} // by dead-letter queue, where a name alone tells
	queues := maps.Clone(d.stranded)
	maps.Copy(queues, d.unclaimed)
	maps.Copy(queues, d.strandedByName)
	for _, m := range d.mains {
		for _, dead := range m.Dead {
			queues[dead.Name] = true
			if dead.Evidence == ByName {
				owners[dead.Name] = m
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(queues)) {
		if q := d.queues[name]; q.total == 0 || q.consumers > 0 || d.mains[name] != nil {
			continue
		}
		messages, err := o.Peek(ctx, name, 1)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			d.tell("", "the oldest message of queue %q could not be looked at: %v", name, err)
			continue
		case len(messages) == 0:
			continue
		}
		l := newLetter(messages[0], 1)
		if d.oldest[name] = l.DeadAt; l.DeadAt.IsZero() {
			d.oldest[name], _ = lastDeath(&messages[0])["time"].(time.Time)
		}
		if _, state := header.ParseDead(textOf(&messages[0])); state.Reason != "" {
			d.proven(name, l.Queue, owners[name])
		}
	}
	return nil
}

// proven notes that a queue keeps a dead letter of a main queue. byName is the main queue whose
// letters the queue keeps by its name.
func (d *derivation) proven(name, queue string, byName *Main) {
	p := d.parts[queue]
	switch {
	case byName != nil && byName.Name == queue:
		byName.Dead[0].Evidence = ByLetter
	case byName != nil:
		d.tell(byName.Name, "the oldest message of queue %q is a dead letter of queue %q and not of "+
			"queue %q", name, queue, byName.Name)
	case !d.unclaimed[name] && !d.strandedByName[name] || p == nil:
	case isNowhere(p.main.Plan.Dead):
		d.claim(name)
		p.deadQueue(d, name, ByLetter)
	default:
		d.claim(name)
		p.main.Dead = append(p.main.Dead, Dead{Queue: d.counts(name), Evidence: ByLetter})
		d.tell(queue, "dead letters of queue %q are in queue %q and in queue %q: the plan has the first",
			queue, p.main.Plan.Dead.RoutingKey, name)
	}
}

// claim notes that a queue belongs to a main queue.
func (d *derivation) claim(name string) {
	delete(d.unclaimed, name)
	delete(d.strandedByName, name)
}

// WithDead returns the plan of a main queue with another dead-letter queue, which the broker does
// not show as its dead-letter queue. The queue has the broker's arguments if a strategy declares
// such a queue. Otherwise it has none, as a queue of the user. An error names a queue that was not
// in the vhost when View looked, or that cannot keep dead letters.
// The plan is not validated: see topology.ValidatePlan.
func (v View) WithDead(main Main, queue string) (topology.Plan, error) {
	arguments, there := v.queues[queue]
	named := func(w Wait) bool { return w.Name == queue }
	waits := slices.ContainsFunc(v.Orphans, func(o Orphan) bool { return named(o.Wait) })
	for _, m := range v.Mains {
		waits = waits || slices.ContainsFunc(m.Waits, named)
	}
	switch {
	case !there:
		return topology.Plan{}, fmt.Errorf("vhost %q has no queue %q that could keep the dead "+
			"letters of queue %q", v.Vhost, queue, main.Name)
	case queue == main.Name:
		return topology.Plan{}, fmt.Errorf("queue %q cannot keep its own dead letters: name "+
			"its dead-letter queue", queue)
	case waits:
		return topology.Plan{}, fmt.Errorf("queue %q is a wait queue and cannot keep the dead "+
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
