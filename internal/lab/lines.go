package main

import (
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/inorder"
)

// queueName is the source queue of a run with one strategy. A run with all of copies has a queue
// for each, such as orders.shared.
const queueName = "orders"

const (
	allStrategies = "all" // of copies, at once
	keyStrategy   = "inorder"
)

// copying are the strategies of copies in wait queues.
var copying = []string{"perqueue", "shared", "levels", "perattempt"}

// line is a source queue with its strategy and plan. The messages are dealt to the lines of a run
// by their numbers.
type line struct {
	name      string // of the strategy
	queue     string
	arguments amqp.Table // of the queue
	strategy  topology.Strategy
	plan      topology.Plan
}

type lines []line

func (l line) dead() string { return l.plan.Dead.RoutingKey }

// newLines returns the lines of a run: one for a strategy, or one for each.
func newLines(s settings) (all lines, err error) {
	names := []string{s.Strategy}
	if s.Strategy == allStrategies {
		names = copying
	}
	for _, name := range names {
		l := line{name: name, queue: queueName, arguments: amqp.Table{"x-queue-type": "quorum"}}
		if len(names) > 1 {
			l.queue += "." + name
		}
		switch name {
		case "perqueue":
			l.strategy = topology.PerQueue{}
		case "shared":
			l.strategy = topology.Shared{}
		case "levels": // every delay passes two of them
			l.strategy = topology.Levels{Resolution: 200 * time.Millisecond, Max: 10 * time.Second}
		case "perattempt":
			l.strategy = topology.PerAttempt{Delays: s.Delays}
		case keyStrategy:
			l.arguments["x-single-active-consumer"] = true
			l.strategy = inorder.Strategy{Block: s.Block, KeyBy: func(msg *message.Message) string {
				return msg.Metadata.Get(keyHeader)
			}}
		default:
			return nil, fmt.Errorf("strategy %q is unknown: -help lists them", name)
		}
		l.plan, err = topology.PlanFor(l.strategy, l.queue, backoff.List(s.Delays))
		if err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	return all, nil
}

// of returns the line of a message.
func (all lines) of(m id) line { return all[(m.Key+m.N)%len(all)] }

// identity names the part of an instance that works on a line. Each has its connections, so that
// the loss of one explains no copy on another line.
func identity(instance, line string) string { return instance + "/" + line }
