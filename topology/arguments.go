package topology

import (
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
)

// DeadLetters says where the dead letters of a queue go. The zero value keeps them in the queue
// <queue>.dlq, which nothing bounds.
type DeadLetters struct {
	// Suffix follows the name of the queue in the name of the dead-letter queue.
	// Default: ".dlq".
	Suffix string
	// Name returns the name of the dead-letter queue, in place of Suffix. Default: the name of
	// the queue with Suffix.
	Name func(queue string) string
	// Arguments are added to the arguments of the dead-letter queue, x-max-length or
	// x-message-ttl for example. The broker deletes the messages that they exclude. With
	// x-overflow reject-publish a full queue refuses dead letters, and failed messages are
	// held until there is room. x-expires is refused. Default: none.
	Arguments amqp.Table
	// Target sends dead letters to an exchange that exists, in place of a dead-letter queue of
	// the plan. For a queue that exists use Name. If the exchange has no queue for a dead
	// letter, the failed message is held. Default: a dead-letter queue of the plan.
	Target func(queue string) Route
}

// check returns an error about the fields, as far as no queue is known.
func (d DeadLetters) check(kind QueueType) error {
	_, err := merge(kind.keepArguments(), d.Arguments, "dead-letter queue")
	return errors.Join(d.checkNames(), err)
}

// checkNames refuses fields of which only one can count.
func (d DeadLetters) checkNames() error {
	switch own := d.Name != nil || d.Suffix != "" || len(d.Arguments) > 0; {
	case d.Target != nil && own:
		return errors.New("dead letters have both a Target and a queue of the plan: set Target, or " +
			"Name, Suffix and Arguments")
	case d.Name != nil && d.Suffix != "":
		return errors.New("dead letters have both a Name and a Suffix: set one")
	}
	return nil
}

const (
	// maxName is AMQP's limit for a name, in bytes.
	maxName = 255
	// deliveryLimit stands for no limit. By default a quorum queue of RabbitMQ 4.0 deletes a
	// message after twenty looks at it, and -1 allows one delivery on 3.10 (F21).
	deliveryLimit = 2147483647
)

// keepArguments are the arguments of a queue that keeps messages. RabbitMQ 3.12 and later
// ignore lazy mode but compare it on redeclare, so it is always sent (F20).
func (t QueueType) keepArguments() amqp.Table {
	if t == Classic {
		return amqp.Table{"x-queue-type": "classic", "x-queue-mode": "lazy"}
	}
	return amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(deliveryLimit)}
}

// waitArguments are the arguments of a wait queue, without its target. The TTL is the queue's
// and never the message's, because a message expires only at the head of its queue (F7).
func (t QueueType) waitArguments(delay time.Duration) amqp.Table {
	args := t.keepArguments()
	args["x-message-ttl"] = delay.Milliseconds()
	if t != Classic {
		// At-least-once becomes at-most-once without a word unless overflow is reject-publish
		// (F5).
		args["x-dead-letter-strategy"] = "at-least-once"
		args["x-overflow"] = "reject-publish"
	}
	return args
}

// WaitQueue returns a queue for the plan of a strategy of your own: a quorum queue in which a
// message waits for delay, rounded up to a millisecond. The queue keeps the message until the
// target has confirmed it. target is where the message goes then. Route{RoutingKey: queue} leads
// straight back to the queue, through the default exchange. With an empty RoutingKey the message
// keeps its own key.
func WaitQueue(name string, delay time.Duration, target Route) Queue {
	return Quorum.waitQueue(name, delay, target)
}

func (t QueueType) waitQueue(name string, delay time.Duration, target Route) Queue {
	delay = wholeMilliseconds(delay)
	args := t.waitArguments(delay)
	args["x-dead-letter-exchange"] = target.Exchange
	if target.RoutingKey != "" {
		args["x-dead-letter-routing-key"] = target.RoutingKey
	}
	return Queue{Name: name, Delay: delay, Arguments: args}
}

// wholeMilliseconds rounds a delay up to the unit of a TTL.
func wholeMilliseconds(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}

// checkFields returns an error about the fields that all strategies have. It does not call the
// functions among them for a queue that does not exist.
func checkFields(kind QueueType, steps []time.Duration, extra amqp.Table, dead DeadLetters) error {
	_, stepsErr := planSteps(steps)
	args := kind.waitQueue("", minSnooze, Route{RoutingKey: "queue"}).Arguments
	_, extraErr := merge(args, extra, "wait queues")
	return errors.Join(kind.check(), stepsErr, extraErr, dead.check(kind))
}

func (t QueueType) check() error {
	switch t {
	case "", Quorum, Classic:
		return nil
	}
	return fmt.Errorf("queue type %q is unknown: use topology.Quorum or topology.Classic", t)
}

// suffix is the part of a wait queue's name that tells its arguments apart, beside the delay.
func (t QueueType) suffix(extra amqp.Table) string {
	suffix := ""
	if t == Classic {
		suffix = ".classic"
	}
	if len(extra) > 0 {
		suffix += fmt.Sprintf(".x%08x", crc32.ChecksumIEEE([]byte(argumentText(extra))))
	}
	return suffix
}

// merge adds the user's arguments to args, which they may not replace.
func merge(args, extra amqp.Table, role string) (amqp.Table, error) {
	var problems []error
	for _, key := range slices.Sorted(maps.Keys(extra)) {
		if _, taken := args[key]; taken {
			problems = append(problems,
				fmt.Errorf("argument %s of the %s cannot be changed: it is %v", key, role, args[key]))
		}
		args[key] = extra[key]
	}
	if err := extra.Validate(); err != nil {
		problems = append(problems, fmt.Errorf("arguments of the %s: %w", role, err))
	}
	return args, errors.Join(problems...)
}

// planSteps returns the delays as whole milliseconds, rounded up, sorted and distinct. It adds
// minSnooze if no delay is from minSnooze to maxSnooze.
func planSteps(delays []time.Duration) ([]time.Duration, error) {
	var problems []error
	steps := make([]time.Duration, 0, len(delays)+1)
	for _, d := range delays {
		switch {
		case d <= 0:
			problems = append(problems, fmt.Errorf("delay %v is not positive", d))
		case d > backoff.MaxDelay:
			problems = append(problems, fmt.Errorf("delay %v is longer than a queue can hold a message: "+
				"at most %d ms",
				d, backoff.MaxDelay.Milliseconds()))
		default:
			steps = append(steps, wholeMilliseconds(d))
		}
	}
	if !slices.ContainsFunc(steps, isShort) {
		steps = append(steps, minSnooze)
	}
	slices.Sort(steps)
	return slices.Compact(steps), errors.Join(problems...)
}

func checkName(role, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("the name of the %s is empty", role)
	case len(name) > maxName:
		return fmt.Errorf("the name of the %s has %d bytes, AMQP allows %d: %.40s…", role, len(name),
			maxName, name)
	}
	return nil
}

// planner collects a plan and its problems.
type planner struct {
	plan     Plan
	taken    map[string]string // names of queues in use, and their roles
	problems []error
}

// newPlanner begins the plan of queue and returns its wait steps: delays, or own if the delays
// are not known.
func newPlanner(
	queue string, delays, own []time.Duration, kind QueueType,
) (*planner, []time.Duration) {
	if delays == nil {
		delays = own
		if len(delays) == 0 {
			delays = defaultWaitSteps()
		}
	}
	steps, err := planSteps(delays)
	p := &planner{plan: Plan{Queue: queue}, taken: map[string]string{queue: "the queue itself"}}
	p.problem(checkName("queue", queue))
	p.problem(kind.check())
	p.problem(err)
	return p, steps
}

func (p *planner) problem(err error) {
	if err != nil {
		p.problems = append(p.problems, err)
	}
}

// queue adds a queue, whose name must be different from all others.
func (p *planner) queue(q Queue, role string, extra amqp.Table) {
	p.problem(checkName(role, q.Name))
	if other, taken := p.taken[q.Name]; taken {
		p.problem(fmt.Errorf("the %s and %s have the same name %q: use different names", role, other,
			q.Name))
	}
	p.taken[q.Name] = "the " + role
	var err error
	q.Arguments, err = merge(q.Arguments, extra, role)
	p.problem(err)
	p.plan.Queues = append(p.plan.Queues, q)
}

// exchange adds an exchange. An exchange without an alternate exchange names itself as its
// alternate exchange, so that a message that it cannot route goes back to its publisher or stays
// in its wait queue. Without the argument a policy could name an alternate exchange that takes
// the message (F36).
func (p *planner) exchange(e Exchange, role string) {
	p.problem(checkName(role, e.Name))
	if e.Arguments == nil {
		e.Arguments = amqp.Table{"alternate-exchange": e.Name}
	}
	p.plan.Exchanges = append(p.plan.Exchanges, e)
}

func (p *planner) bind(exchange, key, queue string) {
	p.plan.Bindings = append(p.plan.Bindings, Binding{
		Exchange: exchange, RoutingKey: key,
		Queue: queue,
	})
}

func (p *planner) bindExchange(exchange, key, to string) {
	p.plan.Bindings = append(p.plan.Bindings, Binding{
		Exchange: exchange, RoutingKey: key,
		ToExchange: to,
	})
}

// strandedQueue adds the queue behind the stranded exchange.
func (p *planner) strandedQueue(name string, kind QueueType) {
	p.queue(Queue{Name: name, Arguments: kind.keepArguments(), Adopt: true}, "stranded queue", nil)
	p.bind(name, "", name)
}

// step adds a delay and the wait queue for it.
func (p *planner) step(q Queue, route Route, extra amqp.Table) {
	p.queue(q, "wait queue of "+delayName(q.Delay), extra)
	route.Delay, route.Hops = q.Delay, 1
	p.plan.WaitSteps = append(p.plan.WaitSteps, route)
}

// waitExchange adds an exchange for one wait queue, through which a message keeps its routing
// key, and returns the route.
func (p *planner) waitExchange(q Queue) Route {
	p.exchange(Exchange{Name: q.Name, Kind: "fanout"}, "wait exchange of "+delayName(q.Delay))
	p.bind(q.Name, "", q.Name)
	return Route{Exchange: q.Name, RoutingKey: p.plan.Queue}
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
	p.queue(Queue{Name: name, Arguments: kind.keepArguments(), Adopt: true}, "dead-letter queue",
		dead.Arguments)
	p.plan.Dead = Route{RoutingKey: name}
}

func (p *planner) finish() (Plan, error) {
	if len(p.problems) > 0 {
		return Plan{}, fmt.Errorf("plan for queue %q: %w", p.plan.Queue, errors.Join(p.problems...))
	}
	return p.plan, nil
}
