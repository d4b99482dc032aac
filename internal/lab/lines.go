package main

import (
	"fmt"
	"slices"
	"strings"
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

// dlqLimit is small enough to be filled.
const dlqLimit = 150

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
		if name == keyStrategy {
			l.arguments["x-single-active-consumer"] = true
		}
		if l.strategy, err = newStrategy(name, s); err != nil {
			return nil, err
		}
		l.plan, err = topology.PlanFor(l.strategy, l.queue, backoff.List(s.Delays))
		if err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	return all, nil
}

// newStrategy returns a strategy by its name. Those of copies have a dead-letter queue that can be
// filled.
func newStrategy(name string, s settings) (topology.Strategy, error) {
	dead := topology.DeadLetters{Arguments: amqp.Table{
		"x-max-length": int64(dlqLimit), "x-overflow": "reject-publish",
	}}
	switch name {
	case "perqueue":
		return topology.PerQueue{Dead: dead}, nil
	case "shared":
		return topology.Shared{Dead: dead}, nil
	case "levels": // every delay passes two of them
		return topology.Levels{
			Resolution: 200 * time.Millisecond, Max: 10 * time.Second, Dead: dead,
		}, nil
	case "perattempt":
		return topology.PerAttempt{Delays: s.Delays, Dead: dead}, nil
	case keyStrategy:
		keyBy := func(msg *message.Message) string { return msg.Metadata.Get(keyHeader) }
		return inorder.Strategy{KeyBy: keyBy, Block: s.Block}, nil
	}
	return nil, fmt.Errorf("strategy %q is unknown: use %s, %s or one of %s", name, allStrategies,
		keyStrategy, strings.Join(copying, ", "))
}

// of returns the line of a message.
func (all lines) of(m id) line { return all[(m.Key+m.N)%len(all)] }

// parts returns the exchanges and bindings of all plans, and the queues for messages whose way back
// is gone, each once.
func (all lines) parts() (exchanges []string, bindings []topology.Binding, stranded []string) {
	for _, l := range all {
		for _, e := range l.plan.Exchanges {
			if !slices.Contains(exchanges, e.Name) {
				exchanges = append(exchanges, e.Name)
			}
		}
		for _, b := range l.plan.Bindings {
			if !slices.ContainsFunc(bindings, func(o topology.Binding) bool {
				return fmt.Sprintf("%+v", o) == fmt.Sprintf("%+v", b)
			}) {
				bindings = append(bindings, b)
			}
		}
		for _, q := range l.plan.Queues {
			if strings.HasSuffix(q.Name, ".stranded") && !slices.Contains(stranded, q.Name) {
				stranded = append(stranded, q.Name)
			}
		}
	}
	return exchanges, bindings, stranded
}

// last returns the wait queue of a line that only the last delay needs: the queue with the longest
// delay up to that one. It is empty without one.
func (l line) last(delays []time.Duration) (name string) {
	longest := time.Duration(0)
	for _, q := range l.plan.Queues {
		if q.Delay > 0 && q.Delay <= delays[len(delays)-1] && q.Delay >= longest {
			longest, name = q.Delay, q.Name
		}
	}
	return name
}

// identity names the part of an instance that works on a line. Each has its connections, so that
// the loss of one explains no copy on another line.
func identity(instance, line string) string { return instance + "/" + line }
