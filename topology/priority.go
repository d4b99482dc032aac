package topology

import (
	"slices"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
)

// normalPriority is the highest priority of the class in which a quorum queue of
// RabbitMQ 4.0 keeps messages without a priority. Above it is a class of its own,
// whose first message holds up the normal ones until it expires (F32).
const normalPriority = 4

// lowersPriority reports whether a message of this priority enters the wait queues
// of the plan with normalPriority, and its own in a note. Classic wait queues
// ignore priorities, so the message keeps its own there.
func (p *Plan) lowersPriority(priority uint8) bool {
	return priority > normalPriority && slices.ContainsFunc(p.Queues, func(q Queue) bool {
		return q.Delay > 0 && q.Arguments["x-queue-type"] != string(Classic)
	})
}

// passedBy reports whether the delivery came through the return exchange, so from a
// wait queue: the note of its priority holds for the siblings of its queue as well.
func (r *Via) passedBy(raw *amqp.Delivery) bool {
	return r != nil && raw.Exchange == r.Through
}

// sayLowered says once that a message waits with a lower priority than its own.
func (s *subscription) sayLowered(priority uint8) {
	s.lowered.Do(func() {
		s.logger.Info("A message of a priority above 4 waits with priority 4, because RabbitMQ 4.0 lets higher ones hold up "+
			"all others in a quorum wait queue: its handler sees its own priority, but it joins its queue again with priority 4; "+
			"where that place matters use topology.Classic wait queues",
			watermill.LogFields{"priority": priority})
	})
}
