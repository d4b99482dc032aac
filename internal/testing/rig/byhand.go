package rig

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/topology"
)

// PerQueueByHand is a strategy as a user writes it, with WaitQueue.
type PerQueueByHand struct{}

// Plan has a wait queue of a second, and one for each delay in the order of the policy.
func (PerQueueByHand) Plan(queue string, delays []time.Duration) (topology.Plan, error) {
	plan := topology.Plan{Queue: queue, Dead: topology.Route{RoutingKey: queue + ".failed"}}
	for _, d := range append([]time.Duration{time.Second}, delays...) {
		wait := topology.WaitQueue(queue+".in."+d.String(), d, topology.Route{RoutingKey: queue})
		plan.Queues = append(plan.Queues, wait)
		plan.WaitSteps = append(plan.WaitSteps, topology.Route{RoutingKey: wait.Name, Delay: d, Hops: 1})
	}
	plan.Queues = append(plan.Queues, topology.Queue{
		Name:      queue + ".failed",
		Arguments: amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(2147483647)},
	})
	return plan, nil
}
