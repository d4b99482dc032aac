package topology

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/management"
)

// queueFacts are what the broker says of the user's queue, which may differ from
// what the Subscriber's configuration says: the vhost has a default type, someone
// else has declared the queue, and a broker can be told to overlook the difference.
type queueFacts struct {
	// kind is Classic, Quorum, stream or another; empty where not known.
	kind QueueType
	// arguments are those the queue was declared with. Where known is false the
	// broker has not said, and they are those of the configuration.
	arguments amqp.Table
	known     bool
	// transient says that the queue is not durable or is auto-delete.
	transient bool
	// policy is what all policies say together; nil where not known, or not all of it.
	policy map[string]any
	// limitInDoubt says that a policy which sets delivery-limit may not be the one that
	// the broker applies: another of the same priority does not set it.
	limitInDoubt bool
	// operator says that an operator policy is part of it, policyPending that a
	// management API is configured and has not shown the policies.
	operator      bool
	policyPending bool
	version       brokerVersion
	// deadLetters says that the broker puts what it drops somewhere, as far as can be
	// told; missing names what does not exist of the way there.
	deadLetters bool
	missing     string
}

// stream is the type of queue that is never consumed.
const stream QueueType = "stream"

// noLimit is the delivery limit of a queue that has none.
const noLimit = 1 << 30

// deliveryLimit returns how often the broker takes a message back before it
// drops or dead-letters the message: noLimit where it always does. certain is
// false where an argument or a policy may say otherwise that was not to be seen.
// The limit of a queue whose type is not known is that of a quorum queue, the only
// type that counts.
func (f *queueFacts) deliveryLimit() (limit int, certain bool) {
	certain = f.kind != "" && f.known && f.policy != nil && !f.limitInDoubt
	if f.kind != "" && f.kind != Quorum {
		return noLimit, true
	}
	argument, set := wholeNumber(f.arguments["x-delivery-limit"])
	policy, ruled := wholeNumber(f.policy["delivery-limit"])
	limit = noLimit
	for _, n := range []struct {
		value int64
		given bool
	}{{argument, set}, {policy, ruled}} {
		switch {
		case !n.given, n.value >= noLimit:
		case n.value >= 0:
			limit = min(limit, int(n.value))
		case !f.version.atLeast(4, 0): // acts like 0 (F2); no policy can be negative there (F30)
			limit = 0
		}
	}
	if !set && (!ruled || f.limitInDoubt) && f.version.atLeast(4, 0) {
		limit = min(limit, defaultDeliveryLimit)
	}
	return limit, certain
}

// learn asks the broker what the queue is, which exists. It changes nothing and
// creates nothing, also where the queue is deleted in that moment. The management
// API is asked first, if there is one. Without it, two questions that the broker
// refuses tell the same but for policies (F31): the first takes the read permission,
// the second the configure permission. What stays open is not an error.
func learn(ctx context.Context, run channelRunner, queue string, configured amqp.Table, version brokerVersion, m *manager) (*queueFacts, error) {
	f, err := learnDeclared(ctx, run, queue, configured, version, m)
	if err != nil {
		return nil, err
	}
	f.learnPolicies(queue, m)
	return f, f.learnDeadLetters(ctx, run)
}

// learnDeclared is learn for the type and the arguments alone.
func learnDeclared(ctx context.Context, run channelRunner, queue string, configured amqp.Table, version brokerVersion, m *manager) (*queueFacts, error) {
	if info, ok := m.queue(queue); ok {
		return factsOf(info, version), nil
	}
	f := &queueFacts{arguments: configured, version: version}
	var err error
	if f.kind, err = kindOf(ctx, run, queue); err != nil {
		return nil, err
	}
	return f, f.learnArguments(ctx, run, queue)
}

// factsOf returns what the management API shows of a queue.
func factsOf(info management.Queue, version brokerVersion) *queueFacts {
	return &queueFacts{
		kind: QueueType(info.Type), arguments: amqp.Table(info.Arguments), known: true,
		transient: !info.Durable || info.AutoDelete || info.Exclusive, version: version,
	}
}

// learnPolicies asks the management API which policies apply to the queue.
func (f *queueFacts) learnPolicies(queue string, m *manager) {
	if list := m.policies(); list != nil {
		if applied := list.of(queue, f.kind); len(applied.unreadable) == 0 {
			f.policy, f.operator = applied.definition(), applied.operator
			_, ruled := f.policy[limitKey]
			f.limitInDoubt = ruled && !applied.surely(limitKey)
		}
	}
	f.policyPending = m != nil && f.policy == nil
}

// notOfKind is how the broker refuses an argument of a consumer (F31). A long name
// leaves no room for the type, because the broker cuts its text at 255 bytes.
var notOfKind = regexp.MustCompile(`invalid arg '([^']*)' for queue '(?:.* of queue type rabbit_(\w+)_queue$)?`)

// kindOf asks for a consumer with two arguments of which every type of queue
// refuses one. The broker names the type. It returns "" where the user may not
// read, or where a long name hides whether the queue is a classic or a quorum one.
func kindOf(ctx context.Context, run channelRunner, queue string) (QueueType, error) {
	const ofStreams, ofOthers = "x-stream-offset", "x-priority"
	err := run(ctx, func(ch *amqp.Channel) error {
		if err := ch.Qos(1, 0, false); err != nil {
			return err
		}
		_, err := ch.Consume(queue, "", false, false, false, false, amqp.Table{ofStreams: "next", ofOthers: int32(0)})
		return err
	})
	var refused *amqp.Error
	switch {
	case err == nil, isCode(err, amqp.AccessRefused):
		return "", nil
	case isCode(err, amqp.PreconditionFailed) && errors.As(err, &refused):
		m := notOfKind.FindStringSubmatch(refused.Reason)
		switch {
		case m == nil:
			return "", nil
		case m[2] == "" && m[1] == ofOthers:
			return stream, nil
		}
		return QueueType(m[2]), nil
	}
	return "", fmt.Errorf("ask for the type of queue %q: %w", queue, err)
}

// mostArguments bounds the questions for the arguments of one queue.
const mostArguments = 40

// learnArguments declares the queue, first as it is configured, and corrects each
// argument that the broker names until it agrees. An argument that only streams
// take is not compared on other types, and with it no queue can be created (F31).
func (f *queueFacts) learnArguments(ctx context.Context, run channelRunner, queue string) error {
	if f.kind != Classic && f.kind != Quorum {
		return nil
	}
	args := maps.Clone(f.arguments)
	if args == nil {
		args = amqp.Table{}
	}
	args["x-queue-type"], args["x-max-age"] = string(f.kind), "never"
	durable, autoDelete := true, false
	for range mostArguments {
		err := run(ctx, func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(queue, durable, autoDelete, false, false, args)
			return err
		})
		if err == nil {
			delete(args, "x-max-age")
			f.arguments, f.known, f.transient = args, true, !durable || autoDelete
			return nil
		}
		if !isCode(err, amqp.PreconditionFailed) && !isCode(err, amqp.AccessRefused) && !isCode(err, amqp.ResourceLocked) {
			return fmt.Errorf("ask for the arguments of queue %q: %w", queue, err)
		}
		var found *ConflictError
		switch {
		case !errors.As(declareError("queue", queue, args, err), &found):
			return nil
		case found.Argument == "durable":
			durable = false
		case found.Argument == "auto_delete":
			autoDelete = true
		case !correct(args, found):
			return nil
		}
	}
	return nil
}

// typed is how the broker writes a value where none was sent (F31).
var typed = regexp.MustCompile(`^the value '(.*)' of type '(\w+)'$`)

// correct takes over the value that the broker has named. Without a type, or with
// its text cut, the value is asked for by sending none. It returns false where that
// was done already.
func correct(args amqp.Table, found *ConflictError) bool {
	m := typed.FindStringSubmatch(found.Found)
	if m == nil {
		_, sent := args[found.Argument]
		delete(args, found.Argument)
		return sent
	}
	value, kind := m[1], m[2]
	args[found.Argument] = value
	if n, err := strconv.ParseInt(value, 10, 64); err == nil && kind != "longstr" {
		args[found.Argument] = n
	} else if kind == "bool" {
		args[found.Argument] = value == "true"
	}
	return true
}

// learnDeadLetters looks for the place of what the broker drops from the queue.
// What may not be looked at is taken to exist.
func (f *queueFacts) learnDeadLetters(ctx context.Context, run channelRunner) error {
	setting := func(name string) (string, bool) { // of both, the broker takes the argument
		value, set := f.arguments["x-"+name]
		if !set {
			value, set = f.policy[name]
		}
		text, _ := value.(string)
		return text, set
	}
	exchange, set := setting("dead-letter-exchange")
	key, keyed := setting("dead-letter-routing-key")
	var err error
	switch {
	case !set:
		return nil
	case exchange != "":
		f.missing = fmt.Sprintf("exchange %q", exchange)
		err = run(ctx, func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(exchange, "direct", true, false, false, false, nil)
		})
	case keyed: // by the default exchange to the queue of that name
		f.missing = fmt.Sprintf("queue %q", key)
		_, err = passive(ctx, run, key)
	default: // by the default exchange with the message's own key, which is a cycle
		f.missing = "x-dead-letter-routing-key"
		return nil
	}
	if isCode(err, amqp.NotFound) {
		return nil
	}
	f.missing, f.deadLetters = "", true
	if isCode(err, amqp.AccessRefused) || isCode(err, amqp.ResourceLocked) {
		return nil
	}
	return err
}
