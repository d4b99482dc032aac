package topology_test

import (
	"fmt"
	"slices"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/topology"
)

// Later is a strategy of a user: a wait queue for each queue and delay, with the delay in front.
type Later struct{}

// Plan makes the wait queues with WaitQueue, which sets the arguments by which no message is lost.
func (Later) Plan(queue string, delays []time.Duration) (topology.Plan, error) {
	if delays == nil { // not known beforehand
		delays = []time.Duration{10 * time.Second, time.Minute}
	}
	delays = append(slices.Clone(delays), time.Second) // for messages that are snoozed
	slices.Sort(delays)
	plan := topology.Plan{Queue: queue}
	for _, delay := range slices.Compact(delays) {
		name := fmt.Sprintf("later.%v.%s", delay, queue)
		wait := topology.WaitQueue(name, delay, topology.Route{RoutingKey: queue})
		plan.Queues = append(plan.Queues, wait)
		step := topology.Route{RoutingKey: name, Delay: delay, Hops: 1}
		plan.WaitSteps = append(plan.WaitSteps, step)
	}
	dead := topology.Queue{Name: "dead." + queue, Adopt: true, Arguments: amqp091.Table{
		"x-queue-type": "quorum", "x-delivery-limit": int64(2147483647),
	}}
	plan.Queues = append(plan.Queues, dead)
	plan.Dead = topology.Route{RoutingKey: dead.Name}
	return plan, nil
}
