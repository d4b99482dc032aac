package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// HarmlessLimit is the delivery limit from which looking at messages counts as harmless.
const HarmlessLimit = 1 << 20

// Hazard is one way in which the consumed queue may lose messages.
type Hazard struct {
	Argument, Text string
	// Refused says that messages vanish without a trace, so that the queue is not consumed.
	Refused bool
}

func (h Hazard) String() string { return h.Argument + " " + h.Text }

// Hazards lists the arguments of the queue that may lose messages, of all arguments that RabbitMQ
// 3.10 to 4.3 know (F31). An argument that only bounds the queue is refused where the broker drops
// the surplus. Where the surplus is dead-lettered it is named only, because the user has chosen so.
func (f *Facts) Hazards() []Hazard {
	var list []Hazard
	add := func(refused bool, argument, format string, args ...any) {
		list = append(list, Hazard{argument, fmt.Sprintf(format, args...), refused})
	}
	kind := f.Kind
	if kind == "" {
		kind, _ = f.Arguments["x-queue-type"].(string)
	}
	if kind == Stream {
		add(true, "x-queue-type", "is stream: a stream skips messages that were published before its "+
			"consumer, and delivers nothing again, "+
			"so that retries and interrupted messages are lost: use quorum")
	}
	if f.Transient {
		add(true, "durable", "is false, or auto-delete is true: the queue is gone with a restart "+
			"or its last consumer: declare it durable and neither")
	}
	if value, set := f.Arguments["x-expires"]; set {
		add(true, "x-expires", "is %v: the queue is deleted with all its messages "+
			"after so many milliseconds without a consumer: remove it", value)
	}
	bounded := func(argument, text string) {
		value, set := f.Arguments[argument]
		switch {
		case !set:
		case f.DeadLetters:
			add(false, argument, "is %v: %s go to the queue's dead-letter exchange, past this library",
				value, text)
		case f.PolicyPending:
			add(false, argument, "is %v: %s are dropped, unless a policy names a dead-letter exchange, "+
				"which could not be seen", value, text)
		default:
			add(true, argument, "is %v: %s are dropped, because the queue has no dead-letter exchange: "+
				"remove the argument, or add x-dead-letter-exchange", value, text)
		}
	}
	bounded("x-message-ttl", "messages that are not handled within so many milliseconds")
	overflow, _ := f.Arguments["x-overflow"].(string)
	if strings.HasPrefix(overflow, "reject-publish") {
		add(true, "x-overflow", "%q refuses messages that return from waiting, which stops quorum wait "+
			"queues, with Shared and Levels for every queue: remove it", overflow)
	} else {
		bounded("x-max-length", "the oldest messages of a full queue")
		bounded("x-max-length-bytes", "the oldest messages of a full queue")
	}
	limit, set := WholeNumber(f.Arguments["x-"+LimitKey])
	effective, _ := f.DeliveryLimit()
	if kind == Quorum && set && limit <= 0 && effective == 0 && !f.DeadLetters && !f.PolicyPending {
		add(true, "x-"+LimitKey, "is %d: the broker drops a message that is given back once: "+
			"set a large one, such as %d", limit, LargeLimit)
	}
	return list
}

// Refuse returns the hazards that lose messages without a trace as an error that names them all,
// each behind what; nil where there is none.
func (f *Facts) Refuse(what string) error {
	var problems []error
	for _, h := range f.Hazards() {
		if h.Refused {
			problems = append(problems, fmt.Errorf("%s %s", what, h))
		}
	}
	return errors.Join(problems...)
}

// RefuseArguments refuses the arguments of a configuration, before the queue is known. policies
// says that a management API is configured: a policy may name a dead-letter exchange.
func RefuseArguments(args amqp.Table, policies bool) error {
	_, dead := args["x-dead-letter-exchange"]
	f := &Facts{
		Arguments: args, Version: Version{Major: 4}, DeadLetters: dead, PolicyPending: policies,
	}
	return f.Refuse("Queue.Arguments")
}

// LosesInRestarts reports whether messages that wait in classic queues are lost where their wait
// ends while the broker restarts, because their quorum queue is up later (F23).
func (f *Facts) LosesInRestarts(p Plan) bool { return f.Kind == Quorum && p.WaitsInClassic() }

// LosesDelayed reports the same for messages that wait in a delayed-message exchange (F49).
func (f *Facts) LosesDelayed(p Plan) bool { return f.Kind == Quorum && p.DelayedExchange() != "" }

// Drop is a delivery limit at which the broker drops a message silently.
type Drop struct {
	Limit int
	// Unless names the settings that may say otherwise and could not be seen; empty where none may.
	Unless string
	// Command removes the drop. It is empty where the user must create Missing first.
	Command, Missing string
	// Endures is how long messages may be impossible to store before a message was given back so
	// often, for any number of processes; 0 where a message that is given back does not count.
	Endures time.Duration
}

// Drops returns the limit at which the broker drops messages of the plan's queue; nil where it
// drops none. A policy raises the default and the limit of another policy, but not the limit of an
// argument or an operator policy, because the smallest counts (F30): there the command sends the
// message to the plan's dead letters. A delivery is held for hold before it is given back.
func (f *Facts) Drops(p Plan, vhost string, hold time.Duration) *Drop {
	limit, certain := f.DeliveryLimit()
	if f.Kind != Quorum || limit >= HarmlessLimit || f.DeadLetters || f.deadLettersWith(p) {
		return nil
	}
	d := &Drop{Limit: limit, Missing: f.Missing}
	if !f.Version.AtLeast(4, 3) { // a nack does not count from there on (F2)
		d.Endures = Times(limit+1, hold)
	}
	switch {
	case certain:
	case f.Known:
		d.Unless = "a policy"
	default:
		d.Unless = "an argument of the queue or a policy"
	}
	purpose, definition := "limit", map[string]any{LimitKey: LargeLimit}
	argument, set := WholeNumber(f.Arguments["x-"+LimitKey])
	if set && argument < HarmlessLimit || f.Operator {
		if f.Missing != "" {
			return d
		}
		purpose = "dead-letters"
		definition = map[string]any{
			"dead-letter-exchange": p.DeadExchange, "dead-letter-routing-key": p.DeadKey,
		}
	}
	d.Command = SetPolicy(vhost, "queue", p.Queue, purpose, 0, definition)
	return d
}

// String says what happens and what to do.
func (d *Drop) String() string {
	text := fmt.Sprintf("the broker drops a message silently that was given back more than %d times, "+
		"because the queue has no dead-letter target", d.Limit)
	if d.Unless != "" {
		text += ", unless " + d.Unless + " says otherwise"
	}
	if d.Endures > 0 {
		text += fmt.Sprintf("; while messages cannot be stored that takes at least %v", d.Endures)
	}
	if d.Missing != "" {
		text += "; the target needs " + d.Missing + ", which is missing: create it"
	}
	if d.Command != "" {
		text += "; one policy applies to a queue: where there is one, add the definition to it, " +
			"else run: " + d.Command
	}
	return text
}

// SetPolicy is the rabbitmqctl command that sets a policy on one queue or exchange alone.
func SetPolicy(
	vhost, kind, name, purpose string, priority int, definition map[string]any,
) string {
	words := []string{
		"rabbitmqctl", "set_policy", "--vhost", ShellWord(vhost), "--apply-to", kind + "s",
	}
	if priority != 0 {
		words = append(words, "--priority", strconv.Itoa(priority))
	}
	value, _ := json.Marshal(definition) // never fails: it came as JSON
	return strings.Join(append(words, ShellWord("millpond-"+purpose+"-"+name),
		ShellWord("^"+regexp.QuoteMeta(name)+"$"), ShellWord(string(value))), " ")
}

// ShellWord quotes a word for a shell.
func ShellWord(word string) string {
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
