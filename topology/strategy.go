package topology

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/topology/wait"
)

// Strategy decides in which queues a message waits. It is a pure value: it needs no broker and
// is safe for concurrent use. PerQueue is the default choice; the others are PerAttempt, Shared,
// Levels, DelayedExchange, and those of the packages inorder and native.
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

type (
	// Retry has the facts that a Plan needs to route a message.
	Retry = wait.Retry
	// Route is where a message is published to wait.
	Route = wait.Route
)

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
