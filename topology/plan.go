package topology

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
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
	// WaitSteps are the delays that have a wait queue, ascending, with their routes; of
	// the same delay, the earlier attempt first.
	WaitSteps []Route
	// Return is the exchange that messages return through, where a strategy's Via
	// names one; nil where they go straight to the queue.
	Via *Via
	// Levels makes the routes of all delays, those between the wait steps as well; nil
	// where only the wait steps are waited for.
	Levels *LevelRoutes
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

// Exchange is an exchange to declare, durable.
type Exchange struct {
	Name string
	// Kind is AMQP's type: "direct", "fanout", "topic", "headers".
	Kind string
	// AutoDelete says that it is gone with the last binding from it.
	AutoDelete bool
	// Arguments as they are declared.
	Arguments amqp.Table
}

func (e Exchange) declare(ch *amqp.Channel, noWait bool) error {
	return ch.ExchangeDeclare(e.Name, e.Kind, true, e.AutoDelete, false, noWait, e.Arguments)
}

// Binding leads from an exchange to a queue, or to another exchange.
type Binding struct {
	Exchange, RoutingKey string
	// Queue is empty where the binding leads to ToExchange.
	Queue, ToExchange string
	// Header must have the Value, at a headers exchange; empty elsewhere.
	Header, Value string
}

// to returns where the binding leads: AMQP's name for what it is, and its own.
func (b Binding) to() (kind, name string) {
	if b.ToExchange != "" {
		return "exchange", b.ToExchange
	}
	return "queue", b.Queue
}

// arguments of the binding, as they are declared.
func (b Binding) arguments() amqp.Table {
	if b.Header == "" {
		return nil
	}
	return amqp.Table{"x-match": "all", b.Header: b.Value}
}

const (
	// minSetAside is the shortest wait of a message that the router has nacked or
	// that may have killed the process, so that nothing spins.
	minSetAside = time.Second
	// maxSetAside is the longest such wait. A step of a policy that is no longer
	// spares each plan a wait queue of its own for these messages.
	maxSetAside = 5 * time.Second
)

// isShort reports whether a message that is set aside may wait for d.
func isShort(d time.Duration) bool { return d >= minSetAside && d <= maxSetAside }

// Route returns where a message waits: on the shortest wait step that is no shorter
// than the delay asked for, else on the longest; with Levels as long as asked,
// but for its resolution and tolerance. Of several wait steps that are as long, it is
// that of the attempt, else of the last attempt before it, else the first.
//
// Where the plan has a Return, a delivery that came by its exchange keeps its
// routing key; any other waits with the queue's name.
func (p Plan) Route(r Retry) (Route, error) {
	if l := p.Levels; l != nil && l.Levels > 0 && l.Resolution > 0 {
		return l.route(r.Delay), nil
	}
	if len(p.WaitSteps) == 0 {
		return Route{}, errors.New("plan has no wait queue")
	}
	delay := min(r.Delay, p.WaitSteps[len(p.WaitSteps)-1].Delay)
	i, _ := slices.BinarySearchFunc(p.WaitSteps, delay, func(rung Route, d time.Duration) int {
		return cmp.Compare(rung.Delay, d)
	})
	for i+1 < len(p.WaitSteps) && p.WaitSteps[i+1].Delay == p.WaitSteps[i].Delay && p.WaitSteps[i+1].Attempt <= r.Attempt {
		i++
	}
	route := p.WaitSteps[i]
	if p.Via.brought(r) {
		route.RoutingKey = r.RoutingKey
	}
	return route, nil
}

// waits returns how long a message waits if it asks for a delay, in all rounds
// together.
func (p Plan) waits(asked time.Duration) time.Duration {
	round := p.round(asked)
	if round <= 0 || round >= asked {
		return max(round, asked)
	}
	waits, rest := asked.Truncate(round), asked%round
	if rest > negligible(asked) {
		waits += p.round(rest)
	}
	return max(waits, asked)
}

// round returns the Delay of the Route for a delay; 0 where there is none.
func (p Plan) round(asked time.Duration) time.Duration {
	if l := p.Levels; l != nil && l.Levels > 0 && l.Resolution > 0 {
		return time.Duration(l.steps(asked)) * l.Resolution // without the routing key
	}
	route, _ := p.Route(Retry{Delay: asked})
	return route.Delay
}

// negligible is what of a delay is not worth another round.
func negligible(asked time.Duration) time.Duration { return max(50*time.Millisecond, asked/100) }

// String returns the plan as a table; what cannot be printed is quoted.
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
		fmt.Fprintf(w, "%s\t%s\t%s\n", printable(q.Name), delay, printable(argumentText(q.Arguments)))
	}
	if len(p.Exchanges) > 0 {
		fmt.Fprintln(w, "exchange\tkind\targuments")
	}
	for _, e := range p.Exchanges {
		text := argumentText(e.Arguments)
		if e.AutoDelete {
			text += " auto-delete"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", printable(e.Name), e.Kind, printable(text))
	}
	if len(p.Bindings) > 0 {
		fmt.Fprintln(w, "binding\trouting key\tto")
	}
	for _, x := range p.Bindings {
		kind, name := x.to()
		key := x.RoutingKey
		if x.Header != "" {
			key = x.Header + "=" + x.Value
		}
		fmt.Fprintf(w, "%s\t%s\t%s %s\n", printable(x.Exchange), printable(key), kind, printable(name))
	}
	_ = w.Flush() // a strings.Builder does not fail
	if p.Levels != nil {
		fmt.Fprintln(&b, p.Levels)
	}
	return b.String()
}

// printable quotes text that would change the table, or the terminal.
func printable(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return text
	}
	return strconv.Quote(text)
}

func argumentText(args amqp.Table) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(args)) {
		parts = append(parts, fmt.Sprintf("%s=%v", key, args[key]))
	}
	return strings.Join(parts, " ")
}

// delayName writes a delay as names carry it: 5s, 1m30s, 2m, 6h, 100ms.
func delayName(d time.Duration) string { return audit.DelayText(d) }
