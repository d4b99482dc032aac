// Package native has the strategy that lets failed messages wait in their own queue, on RabbitMQ
// 4.3. It is a package of its own, so that programs without it link none of its machinery.
package native

import (
	"errors"
	"slices"
	"time"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/consumer"
	"github.com/millpond-go/millpond/internal/ladder"
	"github.com/millpond-go/millpond/internal/native"
	"github.com/millpond-go/millpond/internal/seam"
	"github.com/millpond-go/millpond/topology"
)

// Strategy lets a failed message wait in its own queue, by the delayed retry of RabbitMQ 4.3:
//
//	orders ── fails: basic.reject ──► orders, not delivered for Min, 2 Min, 3 Min … Max
//	       ── any other delay ──► orders.wait.5s ── TTL ──► orders
//	       ── gives up ──► orders.dlq
//
// A failure costs no publish and no wait queue. The queue must be a quorum queue with these
// arguments, or a policy with the same keys without x-:
//
//	x-delayed-retry-type: failed
//	x-delayed-retry-min:  Min in milliseconds
//	x-delayed-retry-max:  Max in milliseconds
//	x-dead-letter-exchange and x-dead-letter-routing-key: "" and orders.dlq, or another target
//
// Subscribe refuses any other queue: the type all would also hold the messages that a process gives
// back at its end. It refuses any broker before 4.3, which accepts these arguments and ignores
// them: there a rejected message comes back at once (F14). It refuses a queue without a dead-letter
// target, because the delivery limit counts failures, and a queue with a message TTL.
// Prefer the arguments: under a policy that is removed, or replaced by another one, rejected
// messages come back at once. A process that notices it uses the wait queues of Else. It knows a
// message by its message-id, or by Watermill's UUID if there is none.
//
// The queue holds a message for Min times its delivery count, at most for Max. A message waits so
// if that is the delay of its policy: Constant if Min is Max, or the first nine delays of
// Linear{Initial: Min, Step: Min, Max: Max}. After nine rejects, or at half of the delivery limit,
// a copy begins a new count. A message with any other delay (RetryAfter, Snooze, a jitter), with
// an expiration, without an id, or with kept metadata that its handler has changed, waits in a
// queue of Else.
//
// The broker counts the attempts, and nothing is written to the message. So there are limits:
//
//   - A process that ends counts as a failed attempt of each message that it had. So a Subscriber
//     whose prefetch is not set takes no messages ahead. A message that ends the process again and
//     again can take the messages beside it to the dead-letter queue: use WithConcurrency(1), or
//     another strategy, if a handler may end the process.
//   - The history of a dead letter has its last attempt, and the attempts that were followed by a
//     copy. The first failure is taken to be as long ago as the delays that followed.
//   - The same is true for a consumer of the queue with another strategy, as during a rollout: the
//     attempts of both are counted together.
//   - A message that waits cannot be seen, released or cancelled, and no count of the broker has it
//     as ready.
type Strategy struct {
	// Min and Max are x-delayed-retry-min and -max of the queue, whole milliseconds. Required, and
	// Max is not less than Min.
	Min, Max time.Duration
	// Else keeps the messages that the queue cannot hold for their delay. It has a wait queue for
	// each delay of the policies that the queue cannot express. If there is none, it has its own
	// wait steps. A delay that the queue can express waits there in rounds where the delivery count
	// is another one. It has its own wait queue if the rounds would be too late. Default:
	// topology.PerQueue{}.
	Else topology.PerQueue
}

var errVia = errors.New("Else.Via: a rejected message stays in its queue, so it passes no " +
	"exchange on its way back: leave Via out, or use another strategy")

// Validate returns an error that lists every invalid field. Open calls it.
func (s Strategy) Validate() error {
	var via error
	if len(s.Else.Via) > 0 {
		via = errVia
	}
	return errors.Join(audit.CheckHeld(s.Min, s.Max), s.Else.Validate(), via)
}

// Plan implements topology.Strategy.
func (s Strategy) Plan(queue string, delays []time.Duration) (topology.Plan, error) {
	if err := audit.CheckHeld(s.Min, s.Max); err != nil {
		return topology.Plan{}, err
	}
	var held, others []time.Duration
	for _, delay := range delays {
		if audit.Holds(s.Min, s.Max, delay) {
			held = append(held, delay)
		} else {
			others = append(others, delay)
		}
	}
	plan, err := s.Else.Plan(queue, others)
	own := stepsOf(plan)
	if steps := stepsFor(held, own); err == nil && len(steps) > len(own) {
		plan, err = s.Else.Plan(queue, steps)
	}
	plan.RejectMin, plan.RejectMax = s.Min, s.Max
	return plan, err
}

// stepsOf are the delays that have a wait queue, ascending.
func stepsOf(plan topology.Plan) (steps []time.Duration) {
	for _, step := range plan.WaitSteps {
		steps = append(steps, step.Delay)
	}
	return steps
}

// stepsFor adds to the wait steps of a plan the delays that would come later on them than is
// allowed. The queue can hold a message for these delays, but not one with another delivery count.
func stepsFor(delays, steps []time.Duration) []time.Duration {
	for _, delay := range slices.Sorted(slices.Values(delays)) {
		if ladder.Total(steps, delay)-delay > ladder.Allowed(delay) {
			at, _ := slices.BinarySearch(steps, delay)
			steps = slices.Insert(steps, at, delay)
		}
	}
	return steps
}

// Seam plugs the machinery into a subscription. The package topology calls it. A plan without a
// RejectMin, of a strategy that embeds this one, needs none.
func (s Strategy) Seam(plan topology.Plan, _ seam.Host, cfg *consumer.Config) error {
	if plan.RejectMin == 0 {
		return nil
	}
	if cfg.Consume.PrefetchBy == consumer.ByLibrary {
		// Each message that a process has when it ends spends an attempt.
		cfg.Consume.Prefetch = cfg.Consume.Concurrency
	}
	cfg.Keeper = native.New(audit.Held(plan.RejectMin, plan.RejectMax), cfg.Logger)
	return nil
}
