package topology

import (
	"fmt"
	"slices"
	"time"

	"github.com/millpond-go/millpond/backoff"
)

// Strategy says which queues a message waits in. It is a value: pure, without a
// broker, safe for concurrent use. PerQueue is the default choice; the others are
// PerAttempt, Shared and Levels.
//
// A strategy may also have the method Validate() error, which checks its fields before a queue
// is known: Open calls the method and returns its error.
type Strategy interface {
	// Plan returns what queue needs for the given delays. Nil delays mean that
	// they are not known beforehand; the strategy then plans its own default wait steps. Levels
	// plans the same for all delays.
	//
	// The plan must pass ValidatePlan, or Subscribe fails and declares nothing.
	// A strategy of your own is asked for the first time at Subscribe.
	Plan(queue string, delays []time.Duration) (Plan, error)
}

// PlanFor returns the plan of a strategy for a queue whose failures the policies decide
// on. It needs no broker. Without a policy, or where none of them can list its delays, the
// plan has the strategy's own wait steps. An invalid policy and a plan that ValidatePlan
// refuses are errors.
func PlanFor(strategy Strategy, queue string, policies ...backoff.Policy) (Plan, error) {
	var opts subscriberOptions
	if err := ForPolicy(policies...)(&opts); err != nil {
		return Plan{}, fmt.Errorf("plan for queue %q: %w", queue, err)
	}
	return planWith(strategy, queue, opts)
}

// planWith plans the delays of the policies. Where one of them cannot list its delays, the
// plan also has the strategy's own wait steps.
func planWith(strategy Strategy, queue string, opts subscriberOptions) (Plan, error) {
	if !opts.unlisted || opts.delays == nil {
		return planFor(strategy, queue, opts.delays)
	}
	own, err := planFor(strategy, queue, nil)
	if err != nil {
		return Plan{}, err
	}
	delays := slices.Clone(opts.delays)
	for _, step := range own.WaitSteps {
		delays = append(delays, step.Delay)
	}
	return planFor(strategy, queue, delays)
}

// Retry is what a Plan must know to route a message.
type Retry struct {
	// Delay asked for; below the shortest wait step it is taken as the shortest.
	Delay time.Duration
	// Attempt that failed, 1-based; 0 for a message that is set aside without one.
	Attempt int
	// Exchange and RoutingKey are those of the delivery as it arrived, never of a
	// header, which anyone may write. They matter where the plan has a Return.
	Exchange, RoutingKey string
}

// Route is where a message is published to wait.
type Route struct {
	Exchange, RoutingKey string
	// Delay it waits there. Shorter than asked where the delay is longer than
	// every wait step: then the message waits in rounds.
	Delay time.Duration
	// Hops is how many wait queues it passes: one, with Levels one or more.
	Hops int
	// Attempt whose failures wait there first of all, where several wait queues have
	// the same delay (PerAttempt); 0 for any.
	Attempt int
}

// QueueType is the kind of the queues that a strategy declares.
type QueueType string

const (
	// Quorum queues replicate, and their at-least-once dead-lettering keeps a
	// waiting message until its queue has confirmed it. The zero QueueType means
	// Quorum.
	Quorum QueueType = "quorum"
	// Classic queues dead-letter at most once: a message whose queue is missing
	// or out of reach when its wait is over is lost (broker facts F5 and F18). Do
	// not let messages of a quorum queue wait in classic ones: those whose wait
	// ends while the broker restarts are lost (F23).
	Classic QueueType = "classic"
)

// defaultWaitSteps are the delays that are planned for a policy that cannot list
// its own.
func defaultWaitSteps() []time.Duration {
	return []time.Duration{
		time.Second, 5 * time.Second, 30 * time.Second,
		2 * time.Minute, 10 * time.Minute, time.Hour,
	}
}
