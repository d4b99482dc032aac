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
// computed without a broker. Everything in it is durable.
type Plan struct {
	// Queue is the queue whose messages wait. It is the user's: never declared here.
	Queue string
	// Exchanges to declare, before the queues.
	Exchanges []Exchange
	// Queues to declare: the wait queues by ascending delay, then those that keep
	// messages.
	Queues []Queue
	// Bindings to declare, last of all.
	Bindings []Binding
	// Dead is where a dead letter is published.
	Dead Route
	// Rungs are the delays that have a wait queue, ascending, with their routes.
	Rungs []Route
}

// Queue is a queue to declare: durable, neither exclusive nor auto-delete.
type Queue struct {
	Name string
	// Delay a message waits in it; zero for a queue that keeps messages.
	Delay time.Duration
	// Arguments as they are declared.
	Arguments amqp.Table
	// Adopt says that a queue of this name with other arguments is used as it is.
	Adopt bool
}

// Exchange is an exchange to declare: durable, not auto-delete.
type Exchange struct {
	Name string
	// Kind is AMQP's type: "direct", "fanout".
	Kind string
	// Arguments as they are declared.
	Arguments amqp.Table
}

// Binding leads from an exchange to a queue.
type Binding struct {
	Exchange, RoutingKey, Queue string
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
		fmt.Fprintf(w, "%s\t%s\t%s\n", q.Name, delay, argumentText(q.Arguments))
	}
	if len(p.Exchanges) > 0 {
		fmt.Fprintln(w, "exchange\tkind\targuments")
	}
	for _, e := range p.Exchanges {
		fmt.Fprintf(w, "%s\t%s\t%s\n", e.Name, e.Kind, argumentText(e.Arguments))
	}
	if len(p.Bindings) > 0 {
		fmt.Fprintln(w, "binding\trouting key\tqueue")
	}
	for _, x := range p.Bindings {
		fmt.Fprintf(w, "%s\t%s\t%s\n", x.Exchange, x.RoutingKey, x.Queue)
	}
	_ = w.Flush() // a strings.Builder does not fail
	return b.String()
}

func argumentText(args amqp.Table) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(args)) {
		parts = append(parts, fmt.Sprintf("%s=%v", key, args[key]))
	}
	return strings.Join(parts, " ")
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
