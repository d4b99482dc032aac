// Package wait has the types that strategies, plans and the hand-over of a failed message share:
// how long a message waits, and where it is published for that. Programs use them by their names in
// package topology.
package wait

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Retry has the facts that a plan needs to route a message.
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
	// Kept says that the exchange itself keeps the message until its wait is over. Plan.Route sets
	// it where the plan declares the exchange as x-delayed-message.
	Kept bool `json:"-"`
}
