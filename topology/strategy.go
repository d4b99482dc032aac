package topology

import (
	"errors"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
)

// Strategy decides in which queues a message waits. It is a pure value: it needs no broker and
// is safe for concurrent use. PerQueue is the default choice; the others are PerAttempt, Shared,
// Levels, DelayedExchange, Native and InOrder.
//
// A Strategy may also have the method Validate() error, which checks its fields before a queue
// is known: Open calls the method and returns its error.
type Strategy interface {
	// Plan returns the plan of a queue whose messages wait for the delays. Nil delays mean
	// that the delays are not known beforehand: the strategy then plans its own default wait
	// steps. A caller who has policies uses PlanFor.
	//
	// Subscribe refuses a plan that does not pass ValidatePlan, and declares nothing. It is
	// the first call that asks a strategy of your own.
	Plan(queue string, delays []time.Duration) (Plan, error)
}

// PlanFor returns the plan of a strategy for a queue whose failures the policies decide on. It
// needs no broker. Without a policy, or if no policy can list its delays, the plan has the
// strategy's own wait steps. An invalid policy is an error, and so is a plan that ValidatePlan
// refuses.
func PlanFor(strategy Strategy, queue string, policies ...backoff.Policy) (Plan, error) {
	var opts subscriberOptions
	if err := ForPolicy(policies...)(&opts); err != nil {
		return Plan{}, fmt.Errorf("plan for queue %q: %w", queue, err)
	}
	return planWith(strategy, queue, opts)
}

// planWith plans the delays of the policies. If a policy cannot list its delays, the plan also
// has the strategy's own wait steps.
func planWith(strategy Strategy, queue string, opts subscriberOptions) (Plan, error) {
	if !opts.unlisted || opts.delays == nil {
		return planFor(strategy, queue, opts.delays)
	}
	own, err := planFor(strategy, queue, nil)
	if err != nil {
		return Plan{}, err
	}
	return planFor(strategy, queue, append(slices.Clone(opts.delays), own.steps()...))
}

// planFor asks the strategy for a plan, and refuses a plan that may lose messages.
func planFor(strategy Strategy, queue string, delays []time.Duration) (Plan, error) {
	plan, err := strategy.Plan(queue, delays)
	if err != nil {
		return Plan{}, err
	}
	if err = ValidatePlan(plan); plan.Queue != queue {
		err = errors.Join(fmt.Errorf("the plan is for queue %q, but queue %q was asked for: set "+
			"Plan.Queue to the name that Plan is called with", plan.Queue, queue), err)
	}
	if err != nil {
		return Plan{}, fmt.Errorf("strategy %T: %w", strategy, err)
	}
	return plan, nil
}

// Retry has the facts that a Plan needs to route a message.
type Retry struct {
	// Delay is how long the message must still wait. A delay below the shortest wait step takes
	// the shortest.
	Delay time.Duration
	// Asked is the whole delay of a message that waits in rounds: Delay is the rest. It says
	// how late the message may be. Zero means Delay.
	Asked time.Duration
	// Attempt that failed, 1-based; 0 for a message that is snoozed without a failure.
	Attempt int
	// Exchange and RoutingKey belong to the delivery as it arrived. They never come from a
	// header, which any producer may write. They matter if the plan has a Via.
	Exchange, RoutingKey string
}

// Route is where a message is published to wait.
type Route struct {
	Exchange, RoutingKey string
	// Delay is how long the message waits there. It is shorter than asked if the message waits
	// in rounds.
	Delay time.Duration
	// Hops is how many wait queues the message passes: one, with Levels one or more, with
	// DelayedExchange none.
	Hops int
	// Attempt is the attempt whose failures wait there before the failures of other
	// attempts, if several wait queues have the same delay (PerAttempt); 0 for any attempt.
	Attempt int
	// Headers are written to the message while it waits, such as x-delay. They belong to the
	// wait: no handler, no later copy and no dead letter gets a header of these names.
	Headers amqp.Table
}

// QueueType is the type of the queues that a strategy declares.
type QueueType string

const (
	// Quorum queues are replicated, and their at-least-once dead-lettering keeps a waiting
	// message until its queue has confirmed it. The zero QueueType means Quorum.
	Quorum QueueType = "quorum"
	// Classic queues dead-letter at most once: a message whose queue is missing or out of
	// reach when its wait is over is lost (F5, F18). Do not let messages of a quorum queue
	// wait in classic queues: those whose wait ends while the broker restarts are lost (F23).
	Classic QueueType = "classic"
)

// defaultWaitSteps are the delays that are planned for a policy that cannot list its delays.
func defaultWaitSteps() []time.Duration {
	return []time.Duration{
		time.Second, 5 * time.Second, 30 * time.Second,
		2 * time.Minute, 10 * time.Minute, time.Hour,
	}
}
