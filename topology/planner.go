package topology

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// planner collects a plan and all that is wrong with it.
type planner struct {
	plan     Plan
	taken    map[string]string // names of queues in use, and whose they are
	problems []error
}

// newPlanner begins the plan of queue, with the wait steps for delays.
func newPlanner(queue string, delays, ladder []time.Duration, kind QueueType) (*planner, []time.Duration) {
	if delays == nil {
		delays = ladder
		if len(delays) == 0 {
			delays = defaultWaitSteps()
		}
	}
	rungs, err := planRungs(delays)
	p := &planner{plan: Plan{Queue: queue}, taken: map[string]string{queue: "the queue itself"}}
	p.problem(checkName("queue", queue))
	p.problem(kind.check())
	p.problem(err)
	return p, rungs
}

func (p *planner) problem(err error) {
	if err != nil {
		p.problems = append(p.problems, err)
	}
}

// queue adds a queue that must have a name of its own.
func (p *planner) queue(q Queue, role string, extra amqp.Table) {
	p.problem(checkName(role, q.Name))
	if other, taken := p.taken[q.Name]; taken {
		p.problem(fmt.Errorf("the name %q of the %s is also that of %s", q.Name, role, other))
	}
	p.taken[q.Name] = "the " + role
	var err error
	q.Arguments, err = merge(q.Arguments, extra, role)
	p.problem(err)
	p.plan.Queues = append(p.plan.Queues, q)
}

// exchange adds an exchange. One without an alternate exchange names itself as that,
// so that a message it cannot route is returned to its publisher, or stays in its wait
// queue. Without the argument a policy could name an alternate exchange that takes the
// message (F36).
func (p *planner) exchange(e Exchange, role string) {
	p.problem(checkName(role, e.Name))
	if e.Arguments == nil {
		e.Arguments = amqp.Table{"alternate-exchange": e.Name}
	}
	p.plan.Exchanges = append(p.plan.Exchanges, e)
}

func (p *planner) bind(exchange, key, queue string) {
	p.plan.Bindings = append(p.plan.Bindings, Binding{Exchange: exchange, RoutingKey: key, Queue: queue})
}

func (p *planner) bindExchange(exchange, key, to string) {
	p.plan.Bindings = append(p.plan.Bindings, Binding{Exchange: exchange, RoutingKey: key, ToExchange: to})
}

// strandedQueue adds the queue behind the stranded exchange.
func (p *planner) strandedQueue(name string, kind QueueType) {
	p.queue(Queue{Name: name, Arguments: kind.keepArguments(), Adopt: true}, "stranded queue", nil)
	p.bind(name, "", name)
}

// wait step adds a delay and the wait queue for it.
func (p *planner) rung(q Queue, route Route, extra amqp.Table) {
	p.queue(q, "wait queue of "+delayName(q.Delay), extra)
	route.Delay, route.Hops = q.Delay, 1
	p.plan.WaitSteps = append(p.plan.WaitSteps, route)
}

// deadLetters adds where dead letters go.
func (p *planner) deadLetters(dead DeadLetters, kind QueueType) {
	if dead.Target != nil {
		p.problem(dead.check(kind))
		p.plan.Dead = dead.Target(p.plan.Queue)
		p.plan.Dead.Delay, p.plan.Dead.Hops = 0, 0
		return
	}
	p.problem(dead.checkNames())
	name := p.plan.Queue + cmp.Or(dead.Suffix, ".dlq")
	if dead.Name != nil {
		name = dead.Name(p.plan.Queue)
	}
	p.queue(Queue{Name: name, Arguments: kind.keepArguments(), Adopt: true}, "dead-letter queue", dead.Arguments)
	p.plan.Dead = Route{RoutingKey: name}
}

func (p *planner) finish() (Plan, error) {
	if len(p.problems) > 0 {
		return Plan{}, fmt.Errorf("plan for queue %q: %w", p.plan.Queue, errors.Join(p.problems...))
	}
	return p.plan, nil
}
