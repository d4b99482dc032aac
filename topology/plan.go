package topology

import (
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
	"github.com/millpond-go/millpond/internal/consumer"
	"github.com/millpond-go/millpond/internal/ladder"
)

// Plan holds everything that one queue needs to wait and to give up. It is plain data that can
// be printed, and is computed without a broker. Everything in it is durable.
type Plan struct {
	// Queue is the queue whose messages wait. It is the user's and is not declared here.
	Queue string
	// Exchanges to declare, before the queues.
	Exchanges []Exchange
	// Queues to declare: the wait queues by ascending delay, then the queues that keep
	// messages.
	Queues []Queue
	// Bindings to declare, after exchanges and queues.
	Bindings []Binding
	// Dead is where a dead letter is published.
	Dead Route
	// WaitSteps are the delays that have a wait queue, ascending, with their routes. Of
	// several with the same delay, the earlier attempt is first.
	WaitSteps []Route
	// Via has the exchanges that messages pass on their way back, if the strategy names any.
	// Nil means that they go straight to the queue.
	Via *Via
	// Levels makes the routes of all delays, also of those between the wait steps. Nil means
	// that messages wait for the wait steps alone.
	Levels *LevelRoutes
	// RejectMin and RejectMax say that the queue itself holds a message that is rejected: for
	// RejectMin times its delivery count, at most for RejectMax. See package native. Zero means that
	// it holds none.
	RejectMin, RejectMax time.Duration
	// Line is the queue of the plan in which messages wait that are handled in order. See package
	// inorder. Empty means that there is no order.
	Line string
}

// Queue is a queue to declare: durable, not exclusive and not auto-delete.
type Queue struct {
	Name string
	// Delay is how long a message waits in the queue; zero for a queue that keeps messages.
	Delay time.Duration
	// Arguments of the declaration.
	Arguments amqp.Table
	// Adopt allows a queue of this name with other arguments: the plan uses it.
	Adopt bool
}

// Exchange is an exchange to declare, durable.
type Exchange struct {
	Name string
	// Kind is AMQP's type: "direct", "fanout", "topic", "headers". With "x-delayed-message", the
	// type of RabbitMQ's delayed-message plugin, a wait step needs no queue: see DelayedExchange.
	Kind string
	// AutoDelete deletes the exchange with the last binding from it.
	AutoDelete bool
	// Arguments of the declaration.
	Arguments amqp.Table
}

func (e Exchange) declare(ch *amqp.Channel, noWait bool) error {
	return ch.ExchangeDeclare(e.Name, e.Kind, true, e.AutoDelete, false, noWait, e.Arguments)
}

// Binding leads from an exchange to a queue, or to another exchange.
type Binding struct {
	Exchange, RoutingKey string
	// Queue is empty if the binding leads to ToExchange.
	Queue, ToExchange string
	// Header must have the Value, at a headers exchange; empty for other exchanges.
	Header, Value string
}

// to returns AMQP's word for the target of the binding, and the target's name.
func (b Binding) to() (kind, name string) {
	if b.ToExchange != "" {
		return "exchange", b.ToExchange
	}
	return "queue", b.Queue
}

// arguments of the binding's declaration.
func (b Binding) arguments() amqp.Table {
	if b.Header == "" {
		return nil
	}
	return amqp.Table{"x-match": "all", b.Header: b.Value}
}

func (b Binding) declare(ch *amqp.Channel, noWait bool) error {
	if b.ToExchange != "" {
		return ch.ExchangeBind(b.ToExchange, b.RoutingKey, b.Exchange, noWait, b.arguments())
	}
	return ch.QueueBind(b.Queue, b.RoutingKey, b.Exchange, noWait, b.arguments())
}

const (
	// minSnooze is the shortest wait of a message that the Subscriber snoozes.
	minSnooze = consumer.MinSnooze
	// maxSnooze is the longest such wait. A policy's step that is not longer spares the plan
	// another wait queue for these messages.
	maxSnooze = 5 * time.Second
)

// isShort reports whether a message that is snoozed may wait for d.
func isShort(d time.Duration) bool { return d >= minSnooze && d <= maxSnooze }

// Route returns where a message waits next. That is the shortest wait step that is not shorter
// than the delay, unless the message would come more than a quarter of the whole delay and more
// than a second late. Then it is the longest step that is shorter: the message waits in rounds,
// and the Subscriber asks again for the rest. A step takes at most ten rounds for a longer one. A
// delay beyond all steps begins with the longest.
//
// With Levels the message waits as long as asked, within its resolution and tolerance. Of several
// wait steps with the same delay, Route takes the step of the attempt, else of the last attempt
// before it, else the first.
//
// If the plan has a Via, a delivery that came by one of its exchanges keeps its routing key. Any
// other delivery waits with the name of the queue as its key.
func (p Plan) Route(r Retry) (Route, error) {
	route, err := p.wayIn(r)
	if err == nil && p.keepsKey(r.Exchange) {
		route.RoutingKey = r.RoutingKey
	}
	route.Kept = len(route.Headers) > 0 && slices.Contains(p.delayingExchanges(), route.Exchange)
	return route, err
}

// wayIn is the route without the message's own key.
func (p Plan) wayIn(r Retry) (Route, error) {
	if l := p.Levels; l != nil && l.Levels > 0 && l.Resolution > 0 {
		return l.route(r.Delay), nil
	}
	var room stepRoom
	steps := p.appendSteps(room[:0])
	if len(steps) == 0 {
		return Route{}, errors.New("plan has no wait queue")
	}
	delay := ladder.Next(steps, r.Delay, r.Asked)
	i := slices.IndexFunc(p.WaitSteps, func(step Route) bool { return step.Delay == delay })
	for i+1 < len(p.WaitSteps) && p.WaitSteps[i+1].Delay == p.WaitSteps[i].Delay &&
		p.WaitSteps[i+1].Attempt <= r.Attempt {
		i++
	}
	return p.WaitSteps[i], nil
}

// waits returns how long a message waits if it asks for a delay, in all rounds together. The
// first retry may ask for none, except with a Via.
func (p Plan) waits(asked time.Duration) time.Duration {
	if asked == 0 && p.Via == nil {
		return 0
	}
	if l := p.Levels; l != nil && l.Levels > 0 && l.Resolution > 0 {
		return l.waits(asked)
	}
	var room stepRoom
	return ladder.Total(p.appendSteps(room[:0]), asked)
}

// stepRoom is memory on the stack for the usual number of steps.
type stepRoom [16]time.Duration

// steps are the delays that have a wait queue, ascending, each once.
func (p Plan) steps() []time.Duration { return p.appendSteps(nil) }

// appendSteps appends the steps to an empty slice.
func (p Plan) appendSteps(steps []time.Duration) []time.Duration {
	for _, step := range p.WaitSteps {
		if step.Delay > 0 {
			steps = append(steps, step.Delay)
		}
	}
	slices.Sort(steps) // ValidatePlan may not have seen the plan
	return slices.Compact(steps)
}

// gaps names the delays that come later than promised, because they lie between two wait steps
// that are too far apart. With Levels there are none.
func (p Plan) gaps() []string {
	if p.Levels != nil {
		return nil
	}
	var texts []string
	for _, gap := range ladder.Gaps(p.steps()) {
		texts = append(texts, fmt.Sprintf("%s to %s wait %s", delayName(gap.From), delayName(gap.To),
			delayName(gap.Wait)))
	}
	return texts
}

// sortsPriorities reports whether messages of the plan wait in quorum queues, which sort by
// priority. Classic wait queues are declared without priorities and ignore them.
func (p Plan) sortsPriorities() bool {
	return slices.ContainsFunc(p.Queues, func(q Queue) bool {
		return q.Delay > 0 && q.Arguments["x-queue-type"] != string(Classic)
	})
}

// toConsumer returns the part of the plan that a subscription needs.
func (p Plan) toConsumer() consumer.Waits {
	w := consumer.Waits{
		Route: p.Route, Given: p.given, Copied: p.waits, Dead: p.Dead,
		SortsPriorities: p.sortsPriorities(), Steps: p.steps(),
		KeyKept: p.delayingExchanges(), RouteHeaders: p.routeHeaders(),
	}
	if p.Levels != nil {
		w.Resolution = p.Levels.Resolution
	}
	for _, q := range p.Queues {
		if q.Delay > 0 {
			w.Queues = append(w.Queues, q.Name)
		}
		_, fixed := q.Arguments["x-dead-letter-routing-key"]
		to, _ := q.Arguments["x-dead-letter-exchange"].(string)
		if q.Delay > 0 && !fixed && to != "" && !slices.Contains(w.KeyKept, to) {
			w.KeyKept = append(w.KeyKept, to)
		}
	}
	if p.Via != nil {
		w.Via = consumer.Via{
			Exchanges: p.Via.Exchanges, Through: w.KeyKept, Older: p.Via.older(),
		}
	}
	return w
}

// rejects reports whether failed messages wait in the queue itself.
func (p *Plan) rejects() bool { return p.RejectMin > 0 }

// holds reports whether the queue holds a rejected message for the delay at some delivery count.
func (p *Plan) holds(delay time.Duration) bool {
	return p.rejects() && audit.Holds(p.RejectMin, p.RejectMax, delay)
}

// given returns how long a message waits at least that asks for a delay: the queue may hold it for
// exactly that, if its delivery count fits.
func (p Plan) given(asked time.Duration) time.Duration {
	if p.holds(asked) {
		return asked
	}
	return p.waits(asked)
}

// String returns the plan as a table. Text that cannot be printed is quoted.
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
	if p.rejects() {
		fmt.Fprintf(&b, "queue %s itself holds rejected messages: x-delayed-retry-type=failed "+
			"x-delayed-retry-min=%d x-delayed-retry-max=%d\n", printable(p.Queue),
			p.RejectMin.Milliseconds(), p.RejectMax.Milliseconds())
	}
	if p.Line != "" {
		fmt.Fprintf(&b, "queue %s is handled in order, with x-single-active-consumer=true: its messages "+
			"wait in %s\n", printable(p.Queue), printable(p.Line))
	}
	if names, n := p.delayingExchanges(), len(p.WaitSteps); len(names) > 0 && n > 0 {
		fmt.Fprintf(&b, "%d delays from %s to %s without a queue, in exchange %s\n", n,
			delayName(p.WaitSteps[0].Delay), delayName(p.WaitSteps[n-1].Delay),
			printable(strings.Join(names, ", ")))
	}
	return b.String()
}

// printable quotes text that would change the table, or the terminal.
func printable(text string) string {
	unprintable := func(r rune) bool { return !unicode.IsPrint(r) }
	if !utf8.ValidString(text) || strings.ContainsFunc(text, unprintable) {
		return strconv.Quote(text)
	}
	return text
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
