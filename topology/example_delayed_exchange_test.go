package topology_test

import (
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/topology"
)

// InExchange is a strategy of a user: messages wait in an exchange of RabbitMQ's delayed-message
// plugin. It has no field and no helper of the library.
type InExchange struct{}

// Plan uses nothing but the exported fields of a plan.
func (InExchange) Plan(queue string, delays []time.Duration) (topology.Plan, error) {
	const delayed, due, lost = "later", "later.due", "later.lost"
	plan := topology.Plan{
		Queue: queue,
		Exchanges: []topology.Exchange{
			{Name: lost, Kind: "fanout", Arguments: amqp.Table{"alternate-exchange": lost}},
			// A message whose queue is gone when it is due goes to the alternate exchange.
			{Name: due, Kind: "direct", Arguments: amqp.Table{"alternate-exchange": lost}},
			// Another alternate exchange would get every message at once.
			{Name: delayed, Kind: "x-delayed-message", Arguments: amqp.Table{
				"x-delayed-type": "fanout", "alternate-exchange": delayed,
			}},
		},
		Queues: []topology.Queue{keeps(lost), keeps(queue + ".dead")},
		Bindings: []topology.Binding{
			{Exchange: delayed, ToExchange: due},
			{Exchange: due, RoutingKey: queue, Queue: queue},
			{Exchange: lost, Queue: lost},
		},
		Dead: topology.Route{RoutingKey: queue + ".dead"},
	}
	if delays == nil { // not known beforehand
		delays = []time.Duration{10 * time.Second, time.Minute, time.Hour}
	}
	delays = append(slices.Clone(delays), time.Second) // for messages that are snoozed
	slices.Sort(delays)
	for _, delay := range slices.Compact(delays) {
		plan.WaitSteps = append(plan.WaitSteps, topology.Route{
			Exchange: delayed, RoutingKey: queue, Delay: delay,
			Headers: amqp.Table{"x-delay": delay.Milliseconds()},
		})
	}
	return plan, nil
}

// keeps returns a queue that keeps messages and may exist already.
func keeps(name string) topology.Queue {
	return topology.Queue{Name: name, Adopt: true, Arguments: amqp.Table{
		"x-queue-type": "quorum", "x-delivery-limit": int64(2147483647),
	}}
}

// A strategy of a user that delays in an exchange: a route, and the plan.
func ExampleRoute_delayedExchange() {
	plan, err := topology.PlanFor(InExchange{}, "orders")
	if err != nil {
		fmt.Println(err)
		return
	}
	route, _ := plan.Route(topology.Retry{Delay: 10 * time.Second})
	fmt.Printf("waits in exchange %s: x-delay %d\n", route.Exchange, route.Headers["x-delay"])
	fmt.Print(plan)
	// Output:
	// waits in exchange later: x-delay 10000
	// plan for queue "orders"
	// queue        delay              arguments
	// later.lost   -                  x-delivery-limit=2147483647 x-queue-type=quorum
	// orders.dead  -                  x-delivery-limit=2147483647 x-queue-type=quorum
	// exchange     kind               arguments
	// later.lost   fanout             alternate-exchange=later.lost
	// later.due    direct             alternate-exchange=later.lost
	// later        x-delayed-message  alternate-exchange=later x-delayed-type=fanout
	// binding      routing key        to
	// later                           exchange later.due
	// later.due    orders             queue orders
	// later.lost                      queue later.lost
	// 4 delays from 1s to 1h without a queue, in exchange later
}
