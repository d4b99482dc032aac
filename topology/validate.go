package topology

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millpond-go/millpond/internal/audit"
)

// ValidatePlan returns an error that lists every part of p by which messages could be lost,
// multiplied or delayed wrongly, each with the way out; nil if p is safe to use. Subscribe,
// PlanFor, Client.Declare and Verify refuse a plan that ValidatePlan refuses, and declare
// nothing. It asks no broker.
//
// A plan is safe under these conditions:
//
//   - every queue names its type, quorum or classic, and none has x-expires;
//   - every wait queue has an x-message-ttl that is its Delay, and Adopt is false;
//   - a quorum wait queue has x-dead-letter-strategy at-least-once and x-overflow
//     reject-publish. Weaker guarantees must be chosen by name: the type classic, or the
//     strategy at-most-once. A length limit needs x-overflow reject-publish;
//   - every wait step leads to one wait queue after another, and from the last one back to the
//     Queue. Their delays and their number are the Delay and the Hops of the step. Exchanges,
//     bindings and alternate exchanges of the plan are followed as the broker follows them;
//   - an exchange that wait queues dead-letter to has an alternate exchange with a queue of the
//     plan behind it, which takes messages whose queue is gone (F5, F19);
//   - an auto-delete exchange has a binding to the Queue, so that it exists as long;
//   - one wait step is from one second to five, for messages that are snoozed;
//   - a wait step to an exchange of the type x-delayed-message has a header x-delay that is its
//     Delay, and Hops 0. The exchange names itself as alternate exchange, and leads to the Queue
//     by an exchange that has an alternate exchange with a queue of the plan behind it (F49);
//   - RejectMin and RejectMax are zero, or delays that a queue can have;
//   - Line is empty, or a quorum queue of the plan with x-single-active-consumer that no wait step
//     leads to;
//   - dead letters go to a queue of the plan, or to an exchange of yours that the plan does not
//     declare.
//
// WaitQueue makes a wait queue that is safe.
func ValidatePlan(p Plan) error {
	v := newValidation(p)
	v.check()
	if len(v.problems) > 0 {
		return fmt.Errorf("plan for queue %q: %w", p.Queue, errors.Join(v.problems...))
	}
	return nil
}

// validation is a plan that is being checked.
type validation struct {
	routing
	queues   map[string]Queue
	passed   map[string]bool // wait queues that a wait step leads through
	said     map[string]bool
	problems []error
}

func newValidation(p Plan) *validation {
	v := &validation{
		routing: newRouting(p),
		queues:  map[string]Queue{}, passed: map[string]bool{}, said: map[string]bool{},
	}
	for _, q := range p.Queues {
		v.queues[q.Name] = q
	}
	return v
}

// find adds a problem. It adds the same problem only once.
func (v *validation) find(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	if !v.said[err.Error()] {
		v.said[err.Error()] = true
		v.problems = append(v.problems, err)
	}
}

func (v *validation) check() {
	v.names()
	for _, q := range v.plan.Queues {
		v.queue(q)
		if q.Delay > 0 {
			v.waitQueue(q)
		}
	}
	for _, e := range v.plan.Exchanges {
		v.exchange(e)
	}
	v.steps()
	v.levels()
	v.rejects()
	v.line()
	for _, q := range v.plan.Queues {
		if q.Delay > 0 && !v.passed[q.Name] {
			v.find("wait queue %q: no wait step leads to it: add one to Plan.WaitSteps, or leave the "+
				"queue out", q.Name)
		}
	}
	v.deadLetters()
}

func (v *validation) names() {
	if err := checkName("queue", v.plan.Queue); err != nil {
		v.find("%w: a strategy sets Plan.Queue to the name that Plan is called with; elsewhere use "+
			"topology.PlanFor", err)
	}
	taken := map[string]bool{v.plan.Queue: true}
	for _, q := range v.plan.Queues {
		if err := checkName("queue of the plan", q.Name); err != nil {
			v.find("%w", err)
		} else if taken[q.Name] {
			v.find("queue %q: the name is used twice, or is the name of the queue itself: use another",
				q.Name)
		}
		taken[q.Name] = true
	}
	clear(taken)
	for _, e := range v.plan.Exchanges {
		if err := checkName("exchange of the plan", e.Name); err != nil {
			v.find("%w", err)
		} else if taken[e.Name] {
			v.find("exchange %q: the name is used twice: use another", e.Name)
		}
		taken[e.Name] = true
	}
}

// queue checks the rules for every queue that the plan declares.
func (v *validation) queue(q Queue) {
	if err := q.Arguments.Validate(); err != nil {
		v.find("queue %q: %w", q.Name, err)
	}
	switch kind := q.Arguments["x-queue-type"]; kind {
	case string(Quorum), string(Classic):
	case nil:
		v.find("queue %q names no x-queue-type, so that the virtual host's default decides: set it to "+
			"quorum, or to classic for the weaker guarantee", q.Name)
	default:
		v.find("queue %q is of the type %v: set x-queue-type to quorum, or to classic for the weaker "+
			"guarantee", q.Name, kind)
	}
	if _, expires := q.Arguments["x-expires"]; expires {
		v.find("queue %q has x-expires, which deletes the queue with the messages in it: leave it out",
			q.Name)
	}
	_, limited := q.Arguments["x-delivery-limit"]
	if q.Delay <= 0 && !limited && q.Arguments["x-queue-type"] == string(Quorum) {
		v.find("queue %q names no x-delivery-limit, so that RabbitMQ 4.0 deletes a message after "+
			"twenty looks at it: set it to %d", q.Name, deliveryLimit)
	}
}

// waitQueue checks that a queue keeps its messages for its delay and no longer.
func (v *validation) waitQueue(q Queue) {
	const way = "; topology.WaitQueue sets the safe arguments"
	args := q.Arguments
	ttl, ok := audit.WholeNumber(args["x-message-ttl"])
	if !ok || time.Duration(ttl)*time.Millisecond != q.Delay {
		v.find("wait queue %q: x-message-ttl is %v, its Delay is %v: set both to the same whole "+
			"number of milliseconds"+way, q.Name, args["x-message-ttl"], q.Delay)
	}
	if q.Adopt {
		v.find("wait queue %q is adopted, so that a queue of that name without a way back could be "+
			"used: set Adopt to false", q.Name)
	}
	if _, ok := args["x-dead-letter-exchange"].(string); !ok {
		v.find("wait queue %q has no x-dead-letter-exchange, so that the broker drops a message whose "+
			"wait is over: "+
			`set it to "" and x-dead-letter-routing-key to the queue's name`+way, q.Name)
	}
	if key, set := args["x-dead-letter-routing-key"]; set {
		if _, ok := key.(string); !ok {
			v.find("wait queue %q: x-dead-letter-routing-key is %v: set it to a string, or leave it out",
				q.Name, key)
		}
	}
	refuses := args["x-overflow"] == "reject-publish"
	switch strategy := args["x-dead-letter-strategy"]; {
	case args["x-queue-type"] != string(Quorum):
	case strategy == "at-least-once" && !refuses:
		v.find("wait queue %q: x-dead-letter-strategy at-least-once works only with x-overflow "+
			"reject-publish (F5): set it"+way, q.Name)
	case strategy != "at-least-once" && strategy != "at-most-once":
		v.find("wait queue %q: x-dead-letter-strategy is %v, so that messages are lost where their "+
			"queue is out of reach: set it to at-least-once, with x-overflow reject-publish, or name the "+
			"weaker at-most-once"+way,
			q.Name, strategy)
	}
	for _, limit := range []string{"x-max-length", "x-max-length-bytes"} {
		if _, set := args[limit]; set && !refuses {
			v.find("wait queue %q has %s, so that a full queue drops messages before their wait is over: "+
				"set x-overflow to reject-publish, or leave the limit out", q.Name, limit)
		}
	}
}

func (v *validation) exchange(e Exchange) {
	switch e.Kind {
	case "direct", "fanout", "topic", "headers":
	case delayedKind:
		v.delayedExchange(e)
	default:
		v.find("exchange %q is of the type %q, which ValidatePlan cannot follow: use direct, fanout, "+
			"topic or headers", e.Name, e.Kind)
	}
	anchored := slices.ContainsFunc(v.bindings[e.Name],
		func(b Binding) bool { return b.ToExchange == "" && b.Queue == v.plan.Queue })
	if e.AutoDelete && !anchored {
		v.find("exchange %q is deleted with its last binding, and no binding leads to queue %q, so "+
			"that it may be deleted before the queue: bind the queue to it, or set AutoDelete to false",
			e.Name, v.plan.Queue)
	}
}

// steps checks that each wait step leads to its wait queues and back to the queue.
func (v *validation) steps() {
	p := v.plan
	if len(p.WaitSteps) == 0 {
		v.find("there is no wait step: add a queue of topology.WaitQueue, and its Route to " +
			"Plan.WaitSteps")
		return
	}
	if !slices.IsSortedFunc(p.WaitSteps, func(a, b Route) int {
		return cmp.Or(cmp.Compare(a.Delay, b.Delay), cmp.Compare(a.Attempt, b.Attempt))
	}) {
		v.find("Plan.WaitSteps are not in the order of their delays, and of their attempts where " +
			"these are the same: sort them")
		return
	}
	for _, step := range p.WaitSteps {
		v.step(step)
		if p.Via != nil { // a message keeps the routing key that it came with
			other := step
			other.RoutingKey = "any.other"
			v.step(other)
		}
	}
	if !isShort(p.waits(minSnooze)) {
		v.find("the step for messages that are snoozed waits %v: add a wait step from %v to %v",
			p.waits(minSnooze), minSnooze, maxSnooze)
	}
}

// step checks one route: the wait queues that it passes, and its end in the queue.
func (v *validation) step(r Route) {
	name := fmt.Sprintf("the step of %v by exchange %q, routing key %q", r.Delay, r.Exchange,
		r.RoutingKey)
	if r.Delay <= 0 {
		v.find("%s: its delay is not positive: set it", name)
		return
	}
	v.routeHeaders(name, r)
	if e := v.exchanges[r.Exchange]; e.delaysMessages() {
		v.delayedStep(name, e, r)
		return
	}
	var waited time.Duration
	exchange, key, hops := r.Exchange, r.RoutingKey, 0
	for {
		to := v.reach(exchange, key, v.headers(r, ""))
		waits := v.waitQueuesOf(to)
		switch {
		case len(waits) > 1:
			v.find("%s: it leads to %d wait queues, so that each retry makes as many copies: let it lead "+
				"to one", name, len(waits))
			return
		case len(waits) == 1 && to.queues[v.plan.Queue]:
			v.find("%s: it leads to queue %q before the wait is over: leave that binding out", name,
				v.plan.Queue)
			return
		case len(waits) == 0 && hops == 0:
			v.find("%s: it leads to no wait queue of the plan%s: declare and bind one, or correct the "+
				"wait step", name, to.missingText())
			return
		case len(waits) == 0:
			v.back(name, r, exchange, key)
			v.adds(name, r, waited, hops)
			return
		}
		q := waits[0]
		if hops > 0 {
			v.vanishes(name, q, exchange, key, v.headers(r, ""))
		}
		v.passed[q.Name] = true
		waited += q.Delay
		if hops++; hops > maxHops {
			v.find("%s: it passes wait queues in a circle: let the last wait queue lead to queue %q", name,
				v.plan.Queue)
			return
		}
		var found bool
		if exchange, found = q.Arguments["x-dead-letter-exchange"].(string); !found {
			return // waitQueue has found it
		}
		if k, set := q.Arguments["x-dead-letter-routing-key"].(string); set {
			key = k
		}
		v.catches(exchange)
		if v.exchanges[exchange].delaysMessages() {
			v.find("%s: wait queue %q dead-letters to exchange %q, which may delay the message again: "+
				"use another exchange", name, q.Name, exchange)
			return
		}
	}
}

// vanishes checks that a message that comes to a wait queue by an exchange is kept where the wait
// queue has vanished, and does not go on without its wait.
func (v *validation) vanishes(
	name string, q Queue, exchange, key string, headers map[string]string,
) {
	if exchange == "" {
		return // the wait queue before holds the message (F5)
	}
	without := v.routing
	without.gone = q.Name
	to := without.reach(exchange, key, headers)
	if to.queues[v.plan.Queue] || len(v.waitQueuesOf(to)) > 0 || !v.keeps(to) {
		v.find("%s: if wait queue %q vanishes, a message that comes to it by exchange %q is lost, or "+
			"skips its wait: name an alternate exchange with a queue that keeps messages", name, q.Name,
			exchange)
	}
}

// keeps reports whether one of the queues is a queue of the plan that keeps messages.
func (v *validation) keeps(to reached) bool {
	return slices.ContainsFunc(v.plan.Queues, func(q Queue) bool {
		return q.Delay <= 0 && to.queues[q.Name]
	})
}

const maxHops = 64 // more than any plan has levels

// adds checks that the wait is as long as the Delay of the route.
func (v *validation) adds(name string, r Route, waited time.Duration, hops int) {
	if waited != r.Delay {
		v.find("%s: its wait queues wait %v: set the Delay of the wait step to that", name, waited)
	}
	if hops != r.Hops {
		v.find("%s: it passes %d wait queues, Hops is %d: set it, because the room for the headers of "+
			"a message depends on it", name, hops, r.Hops)
	}
}

// back checks that a message whose wait is over reaches the queue, also if it must pass the
// exchange of a Via.
func (v *validation) back(name string, step Route, exchange, key string) {
	to := v.reach(exchange, key, v.headers(step, ""))
	if !to.queues[v.plan.Queue] {
		v.find("%s: a message whose wait is over does not reach queue %q from exchange %q with "+
			"routing key %q%s: bind the queue, or let the wait queue dead-letter to the default exchange "+
			"with the queue's name",
			name, v.plan.Queue, exchange, key, to.missingText())
	}
	r := v.plan.Via
	if r == nil {
		return
	}
	for _, via := range r.Exchanges {
		to = v.reach(exchange, key, v.headers(step, via))
		if !to.exchanges[via] || !to.exchanges[r.Through] || !to.queues[v.plan.Queue] {
			v.find("%s: a message that returns through exchange %q does not reach it and queue %q by "+
				"exchange %q: correct the bindings, or leave the exchange out of Plan.Via",
				name, via, v.plan.Queue, r.Through)
		}
		for _, other := range r.Exchanges {
			if other != via && to.exchanges[other] {
				v.find("%s: a message that returns through exchange %q reaches exchange %q, too, which it "+
					"did not come by: correct the bindings", name, via, other)
			}
		}
	}
}

// catches checks that an exchange behind a wait queue routes every message.
func (v *validation) catches(exchange string) {
	e, declared := v.exchanges[exchange]
	if !declared {
		return // the default exchange, or none, which back finds
	}
	alternate, _ := e.Arguments["alternate-exchange"].(string)
	for _, key := range []string{v.plan.Queue, "any.other"} {
		to := v.reach(alternate, key, nil)
		if alternate == "" || !v.keeps(to) {
			v.find("exchange %q, which wait queues dead-letter to, has no alternate exchange with a "+
				"queue of the plan behind it, so that a message whose queue is gone is lost or stops the "+
				"wait queue (F5, F19): declare a fanout exchange with a queue that keeps messages, and name "+
				"it in alternate-exchange", exchange)
		}
	}
}

func (v *validation) waitQueuesOf(to reached) []Queue {
	var waits []Queue
	for _, q := range v.plan.Queues {
		if q.Delay > 0 && to.queues[q.Name] {
			waits = append(waits, q)
		}
	}
	return waits
}

func (v *validation) deadLetters() {
	const way = "declare a queue for them in Plan.Queues, with Adopt to use an existing queue, or " +
		"name an exchange of yours in Plan.Dead"
	dead := v.plan.Dead
	if dead.Exchange == "" && dead.RoutingKey == "" {
		v.find("dead letters have no target: " + way)
		return
	}
	if _, declared := v.exchanges[dead.Exchange]; dead.Exchange != "" && !declared {
		return // the user's
	}
	to := v.reach(dead.Exchange, dead.RoutingKey, nil)
	for name := range to.exchanges {
		if v.exchanges[name].delaysMessages() {
			v.find("dead letters lead to exchange %q, by which waiting messages come back: "+way, name)
		}
	}
	kept := false
	for name := range to.queues {
		switch q, declared := v.queues[name]; {
		case name == v.plan.Queue:
			v.find("dead letters lead back to queue %q, whose messages they are: "+way, name)
		case declared && q.Delay > 0:
			v.find("dead letters lead to wait queue %q, from which they come back: "+way, name)
		case declared:
			kept = true
		}
	}
	if !kept {
		v.find("dead letters for exchange %q with routing key %q reach no queue of the plan: "+way,
			dead.Exchange, dead.RoutingKey)
	}
}

// line checks the queue of messages that are handled in order.
func (v *validation) line() {
	if v.plan.Line == "" {
		return
	}
	q, ok := v.queues[v.plan.Line]
	if !ok || q.Delay > 0 || q.Arguments["x-queue-type"] != string(Quorum) ||
		q.Arguments["x-single-active-consumer"] != true {
		v.find("Plan.Line %q: name a quorum queue of the plan with x-single-active-consumer true, "+
			"without a Delay", v.plan.Line)
	}
}

var errRejectsPassNothing = errors.New("a rejected message stays in its queue, so it passes no " +
	"exchange on its way back: leave Via out, or use another strategy")

// rejects checks how long the queue holds rejected messages.
func (v *validation) rejects() {
	if v.plan.RejectMin == 0 && v.plan.RejectMax == 0 {
		return
	}
	if err := audit.CheckHeld(v.plan.RejectMin, v.plan.RejectMax); err != nil {
		v.find("Plan.RejectMin and RejectMax: %w", err)
	}
	if v.plan.Via != nil {
		v.find("Plan.RejectMin and Via: %w", errRejectsPassNothing)
	}
}
