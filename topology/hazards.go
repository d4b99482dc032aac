package topology

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// hazard is one way in which the user's queue may lose messages.
type hazard struct {
	argument string
	text     string
	// refused says that messages vanish without a trace, so that the queue is not
	// consumed.
	refused bool
}

func (h hazard) String() string { return h.argument + " " + h.text }

// hazards lists what the arguments of the user's queue may lose, of all arguments
// that RabbitMQ 3.10 to 4.3 know (F31). Those that only bound what a queue keeps
// are refused where the broker drops what is above, and named where it is
// dead-lettered, which the user has chosen.
func (f *queueFacts) hazards() []hazard {
	var list []hazard
	add := func(refused bool, argument, format string, args ...any) {
		list = append(list, hazard{argument, fmt.Sprintf(format, args...), refused})
	}
	kind := f.kind
	if kind == "" {
		text, _ := f.arguments["x-queue-type"].(string)
		kind = QueueType(text)
	}
	if kind == stream {
		add(true, "x-queue-type", "is stream: a stream skips what was published before its consumer, and delivers nothing again, so that retries and interrupted messages are lost: use quorum")
	}
	if f.transient {
		add(true, "durable", "is false, or auto-delete is true: the queue is gone with a restart or its last consumer: declare it durable and neither")
	}
	if value, set := f.arguments["x-expires"]; set {
		add(true, "x-expires", "is %v: the queue is deleted with all its messages after so many milliseconds without a consumer: remove it", value)
	}
	bounded := func(argument, text string) {
		value, set := f.arguments[argument]
		switch {
		case !set:
		case f.deadLetters:
			add(false, argument, "is %v: %s go to the queue's dead-letter exchange, past this library", value, text)
		case f.policyPending:
			add(false, argument, "is %v: %s are dropped, unless a policy names a dead-letter exchange, which could not be seen", value, text)
		default:
			add(true, argument, "is %v: %s are dropped, because the queue has no dead-letter exchange: remove the argument, or add x-dead-letter-exchange", value, text)
		}
	}
	bounded("x-message-ttl", "messages that are not handled within so many milliseconds")
	if overflow, _ := f.arguments["x-overflow"].(string); strings.HasPrefix(overflow, "reject-publish") {
		add(true, "x-overflow", "%q refuses messages that return from waiting: remove it", overflow)
	} else {
		bounded("x-max-length", "the oldest messages of a full queue")
		bounded("x-max-length-bytes", "the oldest messages of a full queue")
	}
	limit, set := wholeNumber(f.arguments["x-delivery-limit"])
	if effective, _ := f.deliveryLimit(); kind == Quorum && set && limit <= 0 && effective == 0 && !f.deadLetters && !f.policyPending {
		add(true, "x-delivery-limit", "is %d: the broker drops a message that is given back once: set a large one, such as %d", limit, deliveryLimit)
	}
	return list
}

// refuse returns the hazards that lose messages without a trace as an error that
// names them all; nil where there is none.
func (f *queueFacts) refuse(what string) error {
	var problems []error
	for _, h := range f.hazards() {
		if h.refused {
			problems = append(problems, fmt.Errorf("%s %s", what, h))
		}
	}
	return errors.Join(problems...)
}

// checkArguments refuses what a configuration says of the queue, before any queue
// is known. With the management API a policy may name a dead-letter exchange.
func (c *Client) checkArguments(args amqp.Table) error {
	_, dead := args["x-dead-letter-exchange"]
	f := &queueFacts{arguments: args, version: brokerVersion{major: 4}, deadLetters: dead, policyPending: c.opts.management != ""}
	return f.refuse("Queue.Arguments")
}

// drop is a delivery limit at which the broker drops a message silently.
type drop struct {
	limit int
	// unless names what may say otherwise and was not to be seen; empty where nothing
	// may.
	unless string
	// command removes the drop. It is empty where only what is missing does, which is
	// to be created.
	command, missing string
	// endures is how long messages may be impossible to store before a message was
	// given back so often, whatever the number of processes; 0 where that does not
	// count.
	endures time.Duration
}

// drops returns the limit at which the broker drops messages of the queue; nil where
// it drops none. A policy raises the default and the limit of another policy, but
// neither an argument nor an operator policy, because the smallest counts (F30).
// There the command sends the message to the plan's dead letters. A delivery is held
// for hold before it is given back.
func (f *queueFacts) drops(plan Plan, vhost string, hold time.Duration) *drop {
	limit, certain := f.deliveryLimit()
	if f.kind != Quorum || limit >= harmlessLimit || f.deadLetters {
		return nil
	}
	d := &drop{limit: limit, missing: f.missing}
	if !f.version.atLeast(4, 3) { // a nack does not count from there on (F2)
		d.endures = times(limit+1, hold)
	}
	switch {
	case certain:
	case f.known:
		d.unless = "a policy"
	default:
		d.unless = "an argument of the queue or a policy"
	}
	name, definition := "limit", map[string]any{"delivery-limit": deliveryLimit}
	if argument, set := wholeNumber(f.arguments["x-delivery-limit"]); set && argument < harmlessLimit || f.operator {
		if f.missing != "" {
			return d
		}
		name = "dead-letters"
		definition = map[string]any{"dead-letter-exchange": plan.Dead.Exchange, "dead-letter-routing-key": plan.Dead.RoutingKey}
	}
	value, _ := json.Marshal(definition) // never fails
	d.command = strings.Join([]string{
		"rabbitmqctl set_policy --vhost", shellWord(vhost), "--apply-to queues",
		shellWord("millpond-" + name + "-" + plan.Queue), shellWord("^" + regexp.QuoteMeta(plan.Queue) + "$"), shellWord(string(value)),
	}, " ")
	return d
}

// String says what happens and what to do.
func (d *drop) String() string {
	text := fmt.Sprintf("the broker drops a message silently that was given back more than %d times, because the queue has no dead-letter target", d.limit)
	if d.unless != "" {
		text += ", unless " + d.unless + " says otherwise"
	}
	if d.endures > 0 {
		text += fmt.Sprintf("; while messages cannot be stored that takes at least %v", d.endures)
	}
	if d.missing != "" {
		text += "; " + d.missing + " is missing for it: create that"
	}
	if d.command != "" {
		text += "; one policy applies to a queue: where there is one, add the definition to it, else run: " + d.command
	}
	return text
}

// shellWord quotes a word for a shell.
func shellWord(word string) string {
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// losesInRestarts says that messages which wait in classic queues are lost where
// their wait ends while the broker restarts: their quorum queue is up later (F23).
func (f *queueFacts) losesInRestarts(plan Plan) bool {
	return f.kind == Quorum && waitsInClassic(plan)
}

func waitsInClassic(plan Plan) bool {
	return slices.ContainsFunc(plan.Queues, func(q Queue) bool {
		return q.Delay > 0 && q.Arguments["x-queue-type"] == string(Classic)
	})
}
