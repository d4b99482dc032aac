package chaos

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/topology"
)

// queueName is the source queue of a run with one strategy. A run with all strategies has a queue
// for each, such as orders.shared.
const queueName = "orders"

// Strategies are the names that [NewStrategy] knows.
var Strategies = []string{"perqueue", "shared", "levels", "perattempt"}

// AllStrategies is the name of a run with every strategy at once.
const AllStrategies = "all"

// NewStrategy returns a strategy by its name, with a dead-letter queue that can be filled.
func NewStrategy(name string, bug Bug) (topology.Strategy, error) {
	dead := topology.DeadLetters{Arguments: amqp.Table{
		"x-max-length": int64(dlqLimit), "x-overflow": "reject-publish",
	}}
	var strategy topology.Strategy
	switch name {
	case "perqueue":
		strategy = topology.PerQueue{Dead: dead}
	case "shared":
		strategy = topology.Shared{Dead: dead}
	case "levels": // every delay passes two of them
		strategy = topology.Levels{Resolution: 200 * time.Millisecond, Max: 10 * time.Second, Dead: dead}
	case "perattempt":
		strategy = topology.PerAttempt{Delays: Delays, Dead: dead}
	default:
		return nil, fmt.Errorf("strategy %q is unknown: use %s, or one of %s", name, AllStrategies,
			strings.Join(Strategies, ", "))
	}
	if bug == AtMostOnce {
		return atMostOnce{strategy}, nil
	}
	return strategy, nil
}

// line is a source queue with its strategy and plan. The messages are dealt to the lines of a run
// by their numbers.
type line struct {
	name     string // of the strategy
	queue    string
	strategy topology.Strategy
	plan     topology.Plan
}

// lines are the lines of a run.
type lines []line

// newLines returns the lines of a run: one for a strategy, or one for each with [AllStrategies].
func newLines(strategy string, bug Bug) (lines, error) {
	names := []string{strategy}
	if strategy == AllStrategies {
		names = Strategies
	}
	var all lines
	for _, name := range names {
		l := line{name: name, queue: queueName}
		if len(names) > 1 {
			l.queue += "." + name
		}
		var err error
		if l.strategy, err = NewStrategy(name, bug); err != nil {
			return nil, err
		}
		if l.plan, err = l.strategy.Plan(l.queue, Delays); err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	return all, nil
}

// CheckStrategy returns an error if there is no run with a strategy of that name.
func CheckStrategy(name string) error {
	_, err := newLines(name, "")
	return err
}

// of returns the line of message n.
func (all lines) of(n int) line { return all[n%len(all)] }

// queueOf returns the source queue of a message by its body.
func (all lines) queueOf(body string) (string, error) {
	n, err := strconv.Atoi(body)
	if err != nil {
		return "", err
	}
	return all.of(n).queue, nil
}

// parts returns all queues, exchanges and bindings of the plans, each once.
func (all lines) parts() (parts topology.Plan) {
	seen := map[string]bool{}
	first := func(key string) bool {
		defer func() { seen[key] = true }()
		return !seen[key]
	}
	for _, l := range all {
		for _, e := range l.plan.Exchanges {
			if first("exchange " + e.Name) {
				parts.Exchanges = append(parts.Exchanges, e)
			}
		}
		for _, q := range l.plan.Queues {
			if first("queue " + q.Name) {
				parts.Queues = append(parts.Queues, q)
			}
		}
		for _, b := range l.plan.Bindings {
			if first(fmt.Sprintf("binding %+v", b)) {
				parts.Bindings = append(parts.Bindings, b)
			}
		}
	}
	return parts
}

// stranded returns the queues of messages whose way back is gone.
func (all lines) stranded() (names []string) {
	dead := map[string]bool{}
	for _, l := range all {
		dead[l.plan.Dead.RoutingKey] = true
	}
	for _, q := range all.parts().Queues {
		if q.Delay == 0 && !dead[q.Name] {
			names = append(names, q.Name)
		}
	}
	return names
}

// identity names the part of a consumer process that works on a line. Each has its connections, so
// that the loss of one explains no copy on another line.
func identity(consumer, line string) string { return consumer + "/" + line }

// last returns the wait queue of a line that only the last delay needs: the queue with the longest
// delay up to that one.
func (l line) last() (name string) {
	longest := -1
	for i, q := range l.plan.Queues {
		if q.Delay > 0 && q.Delay <= Delays[len(Delays)-1] &&
			(longest < 0 || q.Delay >= l.plan.Queues[longest].Delay) {
			longest = i
		}
	}
	return l.plan.Queues[longest].Name
}
