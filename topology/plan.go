package topology

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Plan is what one queue needs to wait and to give up: plain data, printable,
// computed without a broker.
type Plan struct {
	// Queue is the queue whose messages wait. It is the user's: never declared here.
	Queue string
	// Queues to declare, the wait queues by ascending delay, then the dead-letter queue.
	Queues []Queue
	// Dead is where a dead letter is published.
	Dead Route
	// Rungs are the delays that have a wait queue, ascending, with their routes.
	Rungs []Route
}

// Queue is a queue to declare: durable, neither exclusive nor auto-delete.
type Queue struct {
	Name string
	// Delay a message waits in it; zero for a dead-letter queue.
	Delay time.Duration
	// Arguments as they are declared.
	Arguments amqp.Table
	// Adopt says that a queue of this name with other arguments is used as it is.
	Adopt bool
}

// minSetAside is the shortest wait of a message that is set aside without a
// failure, so that whatever made the router nack cannot spin.
const minSetAside = time.Second

// Route returns where a message waits: on the shortest rung that is no shorter
// than the delay asked for, else on the longest.
func (p Plan) Route(r Retry) (Route, error) {
	if len(p.Rungs) == 0 {
		return Route{}, errors.New("plan has no wait queue")
	}
	i, _ := slices.BinarySearchFunc(p.Rungs, r.Delay, func(rung Route, d time.Duration) int {
		return int(max(-1, min(1, rung.Delay-d)))
	})
	return p.Rungs[min(i, len(p.Rungs)-1)], nil
}

// String returns the plan as a table.
func (p Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "plan for queue %q\n", p.Queue)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "queue\tdelay\targuments")
	for _, q := range p.Queues {
		delay := "-"
		if q.Delay > 0 {
			delay = delayName(q.Delay)
		}
		var args []string
		for _, key := range slices.Sorted(maps.Keys(q.Arguments)) {
			args = append(args, fmt.Sprintf("%s=%v", key, q.Arguments[key]))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", q.Name, delay, strings.Join(args, " "))
	}
	_ = w.Flush() // a strings.Builder does not fail
	return b.String()
}

// delayName writes a delay as names carry it: 5s, 1m30s, 2m, 6h, 100ms.
func delayName(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
