package topology_test

import (
	"errors"
	"fmt"
	"reflect"
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

// checkStrategy returns the rules of the contract that a strategy breaks. It asks no broker.
func checkStrategy(strategy topology.Strategy) error {
	var broken error
	declared := map[string]any{}
	for _, delays := range [][]time.Duration{
		nil,
		{},
		{time.Millisecond},
		{6 * time.Hour, 48 * time.Hour},
		{200 * time.Millisecond, 5 * time.Second, time.Minute},
	} {
		for _, queue := range []string{"orders", "mail"} {
			plan, err := strategy.Plan(queue, delays)
			if err != nil {
				return err
			}
			broken = errors.Join(broken, topology.ValidatePlan(plan), checkRoutes(plan, delays))
			if plan.Queue != queue {
				broken = errors.Join(broken, fmt.Errorf("the plan of %s is for %s", queue, plan.Queue))
			}
			again, err := strategy.Plan(queue, delays)
			if !reflect.DeepEqual(plan, again) {
				broken = errors.Join(broken, err, errors.New("a second call makes another plan"))
			}
			for _, q := range plan.Queues {
				if other, is := declared[q.Name]; is && !reflect.DeepEqual(other, q.Arguments) {
					broken = errors.Join(broken, fmt.Errorf("%s has two sets of arguments", q.Name))
				}
				declared[q.Name] = q.Arguments
			}
		}
	}
	return broken
}

// checkRoutes returns a delay that is cut short, or a snooze that takes too long.
func checkRoutes(plan topology.Plan, delays []time.Duration) error {
	for _, asked := range append(slices.Clone(delays), time.Second) {
		route, err := plan.Route(topology.Retry{Delay: asked})
		if err != nil {
			return err
		}
		if route.Delay < asked || asked == time.Second && route.Delay > 5*time.Second {
			return fmt.Errorf("a message that asks for %v waits %v", asked, route.Delay)
		}
	}
	return nil
}

// Careless is a strategy with a mistake: its first wait queue leads nowhere.
type Careless struct{ Later }

func (s Careless) Plan(queue string, delays []time.Duration) (topology.Plan, error) {
	plan, err := s.Later.Plan(queue, delays)
	delete(plan.Queues[0].Arguments, "x-dead-letter-exchange")
	return plan, err
}

// The contract of a strategy, for three of a user and for the five of this package.
func ExampleStrategy_contract() {
	for _, strategy := range []topology.Strategy{
		Later{},
		topology.PerQueue{},
		topology.PerAttempt{},
		topology.Shared{},
		topology.Levels{},
		topology.DelayedExchange{},
		InExchange{},
		Careless{},
	} {
		fmt.Printf("%T keeps the contract: %t\n", strategy, checkStrategy(strategy) == nil)
	}
	// Output:
	// topology_test.Later keeps the contract: true
	// topology.PerQueue keeps the contract: true
	// topology.PerAttempt keeps the contract: true
	// topology.Shared keeps the contract: true
	// topology.Levels keeps the contract: true
	// topology.DelayedExchange keeps the contract: true
	// topology_test.InExchange keeps the contract: true
	// topology_test.Careless keeps the contract: false
}
