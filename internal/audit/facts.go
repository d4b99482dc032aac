package audit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
)

const (
	// NoLimit is the delivery limit of a queue that has none.
	NoLimit = 1 << 30
	// DefaultDeliveryLimit is the limit of a quorum queue from RabbitMQ 4.0 on (F2).
	DefaultDeliveryLimit = 20
	// LargeLimit is the limit that stands for "none" in arguments and policies, because RabbitMQ
	// before 4.0 knows no negative one.
	LargeLimit = 2147483647
	// LimitKey is the delivery limit in a policy.
	LimitKey = "delivery-limit"

	// DefaultConsumerTimeout is how long RabbitMQ lets a consumer keep a delivery by default (F16).
	DefaultConsumerTimeout = 30 * time.Minute
	// MaxHold stands for no consumer timeout.
	MaxHold = 100 * 365 * 24 * time.Hour
)

// Facts are the broker's statements about the consumed queue. They may differ from the
// configuration of the Subscriber: the vhost has a default type, another program has declared the
// queue, and a broker can be told to overlook the difference.
type Facts struct {
	// Kind is the type of the queue, empty where not known.
	Kind string
	// Arguments are those the queue was declared with. Where Known is false the broker has not said
	// them, and they come from the configuration.
	Arguments amqp.Table
	Known     bool
	// Transient says that the queue is not durable or is auto-delete.
	Transient bool
	// Policy merges all policies that apply; nil where not known, or not completely.
	Policy map[string]any
	// LimitInDoubt says that the broker may not apply the policy which sets delivery-limit:
	// another of the same priority does not set it.
	LimitInDoubt bool
	// Operator says that an operator policy is part of Policy, PolicyPending that a management API
	// is configured and has not shown the policies.
	Operator, PolicyPending bool
	// PolicyErr says why it has not, if it has answered an error.
	PolicyErr error
	Version   Version
	// DeadLetters says that the broker dead-letters dropped messages, as far as that can be seen.
	// Missing names the part of the way there that does not exist.
	DeadLetters bool
	Missing     string
}

// DeliveryLimit returns how often the broker takes a message back before it drops or dead-letters
// the message: NoLimit where it always does. certain is false where an argument or a policy may say
// otherwise that could not be seen. A queue of unknown type is taken for a quorum queue, the only
// type that counts.
func (f *Facts) DeliveryLimit() (limit int, certain bool) {
	if f.Kind != "" && f.Kind != Quorum {
		return NoLimit, true
	}
	certain = f.Kind != "" && f.Known && f.Policy != nil && !f.LimitInDoubt
	argument, set := WholeNumber(f.Arguments["x-"+LimitKey])
	policy, ruled := WholeNumber(f.Policy[LimitKey])
	limit = NoLimit
	for _, n := range []struct {
		value int64
		given bool
	}{{argument, set}, {policy, ruled}} {
		switch {
		case !n.given, n.value >= NoLimit:
		case n.value >= 0:
			limit = min(limit, int(n.value))
		case !f.Version.AtLeast(4, 0): // acts like 0 (F2); no policy can be negative there (F30)
			limit = 0
		}
	}
	if !set && (!ruled || f.LimitInDoubt) && f.Version.AtLeast(4, 0) {
		limit = min(limit, DefaultDeliveryLimit)
	}
	return limit, certain
}

// ConsumerTimeout returns the broker's consumer timeout as far as it is known. said is the user's
// word, 0 for none; consume are the arguments of the consumer. A queue has its own timeout
// from 4.0 on, a consumer from 4.3 on (F33). The timeout of the node cannot be seen.
func (f *Facts) ConsumerTimeout(said time.Duration, consume amqp.Table) time.Duration {
	if said > 0 {
		return said
	}
	timeout := MaxHold
	consider := func(value any) {
		if ms, ok := WholeNumber(value); ok && ms > 0 {
			timeout = min(timeout, time.Duration(min(ms, MaxHold.Milliseconds()))*time.Millisecond)
		}
	}
	if f.Version.AtLeast(4, 0) {
		consider(f.Arguments["x-consumer-timeout"])
		consider(f.Policy["consumer-timeout"])
	}
	if f.Version.AtLeast(4, 3) {
		consider(consume["x-consumer-timeout"])
	}
	if timeout == MaxHold {
		return DefaultConsumerTimeout
	}
	return timeout
}

// HoldFor returns how long a delivery may be held, from its arrival: three more tries, and some
// time for the way to the broker, fit between that and the consumer timeout.
func HoldFor(consumerTimeout, confirmTimeout time.Duration) time.Duration {
	margin := 3*confirmTimeout + min(time.Minute, consumerTimeout/10)
	return max(consumerTimeout-margin, consumerTimeout/2)
}

// Times returns n times d, or the longest duration there is.
func Times(n int, d time.Duration) time.Duration {
	if d > 0 && time.Duration(n) > math.MaxInt64/d {
		return math.MaxInt64
	}
	return time.Duration(n) * d
}

// Management is RabbitMQ's management API. Package topology/management has the only one, so that a
// program which names none links none of it.
type Management struct {
	Err error // the address is wrong
	// Ask begins one look at the vhost of a connection.
	Ask func(ctx context.Context, of link.Config) Manager
}

// Manager shows what AMQP cannot about one vhost.
type Manager interface {
	// Declared returns the type and the arguments of a queue; nil where they cannot be seen.
	Declared(queue string, version Version) *Facts
	// Rule adds to the facts about a queue what policies say.
	Rule(f *Facts, queue string)
	// Harm names what policies lose or misdirect of a plan; f are the facts about its queue. seen is
	// false where they cannot be seen.
	Harm(plan Plan, f *Facts) (harm []Harm, seen bool)
}

// Harm is a critical effect of a policy. Group is the same for the same key of the same policy on
// queues of the same role.
type Harm struct{ Text, Group string }

// Learn asks the broker about a queue that exists. It changes nothing and creates nothing, also
// where the queue is deleted in that moment. It asks the management API first, if there is one.
// Without it, two questions that the broker refuses tell the same except for policies (F31): the
// first takes the read permission, the second the configure permission. What stays open is not an
// error.
func Learn(
	ctx context.Context, run Runner, queue string, configured amqp.Table, version Version, m Manager,
) (*Facts, error) {
	f, err := LearnDeclared(ctx, run, queue, configured, version, m)
	if err != nil {
		return nil, err
	}
	if m != nil {
		m.Rule(f, queue)
	}
	return f, f.learnDeadLetters(ctx, run)
}

// LearnDeclared is Learn for the type and the arguments alone.
func LearnDeclared(
	ctx context.Context, run Runner, queue string, configured amqp.Table, version Version, m Manager,
) (*Facts, error) {
	if m != nil {
		if f := m.Declared(queue, version); f != nil {
			return f, nil
		}
	}
	f := &Facts{Arguments: configured, Version: version}
	var err error
	if f.Kind, err = kindOf(ctx, run, queue); err != nil {
		return nil, err
	}
	return f, f.learnArguments(ctx, run, queue)
}

// notOfKind is how the broker refuses an argument of a consumer (F31). A long name leaves no room
// for the type, because the broker cuts its text at 255 bytes.
var notOfKind = regexp.MustCompile(
	`invalid arg '([^']*)' for queue '(?:.* of queue type rabbit_(\w+)_queue$)?`)

// kindOf asks for a consumer with two arguments of which every type of queue refuses one. The
// broker names the type. kindOf returns "" where the user may not read, or where a long name hides
// whether the queue is a classic or a quorum queue.
func kindOf(ctx context.Context, run Runner, queue string) (string, error) {
	const ofStreams, ofOthers = "x-stream-offset", "x-priority"
	err := run(ctx, func(ch *amqp.Channel) error {
		if err := ch.Qos(1, 0, false); err != nil {
			return err
		}
		_, err := ch.Consume(queue, "", false, false, false, false,
			amqp.Table{ofStreams: "next", ofOthers: int32(0)})
		return err
	})
	var refused *amqp.Error
	switch {
	case err == nil, IsCode(err, amqp.AccessRefused):
		return "", nil
	case IsCode(err, amqp.PreconditionFailed) && errors.As(err, &refused):
		m := notOfKind.FindStringSubmatch(refused.Reason)
		switch {
		case m == nil:
			return "", nil
		case m[2] == "" && m[1] == ofOthers:
			return Stream, nil
		}
		return m[2], nil
	}
	return "", fmt.Errorf("ask for the type of queue %q: %w", queue, err)
}

// mostArguments bounds the questions for the arguments of one queue.
const mostArguments = 40

// learnArguments declares the queue as it is configured, and corrects each argument that the broker
// names until the broker agrees. With x-max-age, an argument that only streams take and that is not
// compared on other types, no queue can be created (F31).
func (f *Facts) learnArguments(ctx context.Context, run Runner, queue string) error {
	if f.Kind != Classic && f.Kind != Quorum {
		return nil
	}
	args := maps.Clone(f.Arguments)
	if args == nil {
		args = amqp.Table{}
	}
	args["x-queue-type"], args["x-max-age"] = f.Kind, "never"
	durable, autoDelete := true, false
	for range mostArguments {
		err := run(ctx, func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(queue, durable, autoDelete, false, false, args)
			return err
		})
		if err == nil {
			delete(args, "x-max-age")
			f.Arguments, f.Known, f.Transient = args, true, !durable || autoDelete
			return nil
		}
		found := ReadConflict("queue", queue, args, err)
		switch {
		case found == nil && refuses(err):
			return nil
		case found == nil:
			return fmt.Errorf("ask for the arguments of queue %q: %w", queue, err)
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

// refuses reports whether the broker refuses a declare for a reason that leaves the arguments
// unknown.
func refuses(err error) bool {
	return IsCode(err, amqp.PreconditionFailed) || IsCode(err, amqp.AccessRefused) ||
		IsCode(err, amqp.ResourceLocked)
}

// typed is how the broker writes a value where none was sent (F31).
var typed = regexp.MustCompile(`^the value '(.*)' of type '(\w+)'$`)

// correct takes over the value that the broker has named. Where the broker named no type, or its
// text is cut, correct removes the argument, so that the next answer names the value. It returns
// false where that was done already.
func correct(args amqp.Table, found *Conflict) bool {
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

// learnDeadLetters asks for the target of the messages that the broker drops from the queue. A
// target that the user may not look at is taken to exist.
func (f *Facts) learnDeadLetters(ctx context.Context, run Runner) error {
	setting := func(name string) (string, bool) { // of both, the broker takes the argument
		value, set := f.Arguments["x-"+name]
		if !set {
			value, set = f.Policy[name]
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
		f.Missing = fmt.Sprintf("exchange %q", exchange)
		err = run(ctx, func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(exchange, "direct", true, false, false, false, nil)
		})
	case keyed: // by the default exchange to the queue of that name
		f.Missing = fmt.Sprintf("queue %q", key)
		_, err = Passive(ctx, run, key)
	default: // by the default exchange with the message's own key, which is a cycle
		f.Missing = "x-dead-letter-routing-key"
		return nil
	}
	if IsCode(err, amqp.NotFound) {
		return nil
	}
	f.Missing, f.DeadLetters = "", true
	if IsCode(err, amqp.AccessRefused) || IsCode(err, amqp.ResourceLocked) {
		return nil
	}
	return err
}
