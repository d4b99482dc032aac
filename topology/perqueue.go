package topology

import (
	"errors"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
)

// PerQueue gives every queue wait queues of its own, one for each delay:
//
//	orders ── fails ──► orders.wait.5s ── TTL ──► default exchange ──► orders
//	       ── gives up ──► orders.dlq
//
// One hop, no exchange, no binding. A message returns to the one queue that
// failed it, and a queue that is missing or full holds up nobody else's retries.
//
// The zero value is ready to use.
type PerQueue struct {
	// Type of the wait queues and the dead-letter queue. Default: Quorum.
	Type QueueType
	// WaitName names the wait queue of a delay. RabbitMQ cannot change a queue's
	// arguments, so a name must carry what differs: the queue and the delay; and
	// the type, where it may change one day. Default: <queue>.wait.<delay>, with
	// the suffix ".classic" for Classic.
	WaitName func(queue string, delay time.Duration) string
	// DeadName names the dead-letter queue. Default: <queue>.dlq.
	DeadName func(queue string) string
	// Ladder are the delays planned for a policy that cannot list its own.
	// Default: DefaultLadder.
	Ladder []time.Duration
}

const (
	// maxName is AMQP's limit for a name, in bytes.
	maxName = 255
	// deliveryLimit stands for "none": by default a quorum queue of 4.0 deletes
	// what was looked at twenty times, and -1 means one delivery on 3.10 (F21).
	deliveryLimit = 2147483647
)

// Plan implements Strategy.
func (s PerQueue) Plan(queue string, delays []time.Duration) (Plan, error) {
	if delays == nil {
		delays = s.Ladder
		if len(delays) == 0 {
			delays = DefaultLadder()
		}
	}
	rungs, err := planRungs(delays)
	err = errors.Join(checkName("queue", queue), s.checkType(), err)
	if err != nil {
		return Plan{}, fmt.Errorf("plan for queue %q: %w", queue, err)
	}

	plan := Plan{Queue: queue}
	seen := map[string]string{queue: "the queue itself"}
	add := func(q Queue, role string) {
		err = errors.Join(err, checkName(role, q.Name))
		if other, taken := seen[q.Name]; taken {
			err = errors.Join(err, fmt.Errorf("the name %q of the %s is also that of %s", q.Name, role, other))
		}
		seen[q.Name] = "the " + role
		plan.Queues = append(plan.Queues, q)
	}
	for _, delay := range rungs {
		name := s.waitName(queue, delay)
		add(Queue{Name: name, Delay: delay, Arguments: s.waitArguments(queue, delay)}, "wait queue of "+delayName(delay))
		plan.Rungs = append(plan.Rungs, Route{RoutingKey: name, Delay: delay})
	}
	plan.Dead = Route{RoutingKey: s.deadName(queue)}
	add(Queue{Name: plan.Dead.RoutingKey, Arguments: s.keepArguments(), Adopt: true}, "dead-letter queue")
	if err != nil {
		return Plan{}, fmt.Errorf("plan for queue %q: %w", queue, err)
	}
	return plan, nil
}

func (s PerQueue) checkType() error {
	switch s.Type {
	case "", Quorum, Classic:
		return nil
	}
	return fmt.Errorf("queue type %q is unknown: use topology.Quorum or topology.Classic", s.Type)
}

func (s PerQueue) waitName(queue string, delay time.Duration) string {
	if s.WaitName != nil {
		return s.WaitName(queue, delay)
	}
	name := queue + ".wait." + delayName(delay)
	if s.Type == Classic {
		name += ".classic"
	}
	return name
}

func (s PerQueue) deadName(queue string) string {
	if s.DeadName != nil {
		return s.DeadName(queue)
	}
	return queue + ".dlq"
}

// waitArguments: the TTL is the queue's, never the message's, for a message
// expires only at the head of its queue (F7).
func (s PerQueue) waitArguments(queue string, delay time.Duration) amqp.Table {
	args := s.keepArguments()
	args["x-message-ttl"] = delay.Milliseconds()
	args["x-dead-letter-exchange"] = ""
	args["x-dead-letter-routing-key"] = queue
	if s.Type != Classic {
		// At-least-once falls back to at-most-once, silently, unless overflow
		// is reject-publish (F5).
		args["x-dead-letter-strategy"] = "at-least-once"
		args["x-overflow"] = "reject-publish"
	}
	return args
}

// keepArguments are those of a queue that keeps messages until someone takes
// them. Lazy mode is ignored from 3.12, but compared on redeclare, so it is
// always sent (F20).
func (s PerQueue) keepArguments() amqp.Table {
	if s.Type == Classic {
		return amqp.Table{"x-queue-type": "classic", "x-queue-mode": "lazy"}
	}
	return amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(deliveryLimit)}
}

// planRungs returns the delays as whole milliseconds, rounded up, sorted and
// distinct, with one of at least minSetAside among them.
func planRungs(delays []time.Duration) ([]time.Duration, error) {
	var problems []error
	rungs := make([]time.Duration, 0, len(delays)+1)
	for _, d := range delays {
		switch {
		case d <= 0:
			problems = append(problems, fmt.Errorf("delay %v is not positive", d))
		case d > backoff.MaxDelay:
			problems = append(problems, fmt.Errorf("delay %v is longer than a queue can hold a message: at most %d ms", d, backoff.MaxDelay.Milliseconds()))
		default:
			rungs = append(rungs, (d + time.Millisecond - 1).Truncate(time.Millisecond))
		}
	}
	slices.Sort(rungs)
	rungs = slices.Compact(rungs)
	if len(rungs) == 0 || rungs[len(rungs)-1] < minSetAside {
		rungs = append(rungs, minSetAside)
	}
	return rungs, errors.Join(problems...)
}

func checkName(role, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("the name of the %s is empty", role)
	case len(name) > maxName:
		return fmt.Errorf("the name of the %s has %d bytes, AMQP allows %d: %.40s…", role, len(name), maxName, name)
	}
	return nil
}
