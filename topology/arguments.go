package topology

import (
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
)

// DeadLetters says where the dead letters of a queue go. The zero value keeps
// them in <queue>.dlq, which nothing bounds.
type DeadLetters struct {
	// Suffix is what the name of the dead-letter queue adds to the name of its queue.
	// Default: ".dlq".
	Suffix string
	// Name names the dead-letter queue, in place of Suffix. Default: the name of the queue
	// with Suffix.
	Name func(queue string) string
	// Arguments are declared beside ours, x-max-length or x-message-ttl for
	// example. What they make the broker drop is gone; with x-overflow
	// reject-publish a full queue refuses dead letters, and what failed is held
	// until there is room. x-expires is refused. Default: none.
	Arguments amqp.Table
	// Target sends dead letters to an exchange that exists, in place of a queue
	// of ours; for a queue that exists use Name. Where the exchange has no queue
	// for a dead letter, what failed is held. Default: a dead-letter queue of ours.
	Target func(queue string) Route
}

// check says what is wrong with the fields, as far as no queue is known.
func (d DeadLetters) check(kind QueueType) error {
	_, err := merge(kind.keepArguments(), d.Arguments, "dead-letter queue")
	return errors.Join(d.checkNames(), err)
}

// checkNames refuses fields of which only one can count.
func (d DeadLetters) checkNames() error {
	switch own := d.Name != nil || d.Suffix != "" || len(d.Arguments) > 0; {
	case d.Target != nil && own:
		return errors.New("dead letters have both a Target and a queue of ours: set one")
	case d.Name != nil && d.Suffix != "":
		return errors.New("dead letters have both a Name and a Suffix: set one")
	}
	return nil
}

const (
	// maxName is AMQP's limit for a name, in bytes.
	maxName = 255
	// deliveryLimit stands for "none": by default a quorum queue of 4.0 deletes
	// what was looked at twenty times, and -1 means one delivery on 3.10 (F21).
	deliveryLimit = 2147483647
)

// keepArguments are those of a queue that keeps messages until someone takes
// them. Lazy mode is ignored from 3.12, but compared on redeclare, so it is
// always sent (F20).
func (t QueueType) keepArguments() amqp.Table {
	if t == Classic {
		return amqp.Table{"x-queue-type": "classic", "x-queue-mode": "lazy"}
	}
	return amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(deliveryLimit)}
}

// waitArguments are those of a wait queue, without where it leads. The TTL is
// the queue's, never the message's, for a message expires only at the head of
// its queue (F7).
func (t QueueType) waitArguments(delay time.Duration) amqp.Table {
	args := t.keepArguments()
	args["x-message-ttl"] = delay.Milliseconds()
	if t != Classic {
		// At-least-once falls back to at-most-once, silently, unless overflow
		// is reject-publish (F5).
		args["x-dead-letter-strategy"] = "at-least-once"
		args["x-overflow"] = "reject-publish"
	}
	return args
}

// WaitQueue returns a queue for the plan of a strategy of your own: a quorum queue
// in which a message waits for delay, rounded up to a millisecond, and which keeps
// the message until the target has confirmed it. The target is where the message
// goes then: a Route{RoutingKey: queue} leads straight back to the queue, through
// the default exchange. With an empty RoutingKey the message keeps its own.
func WaitQueue(name string, delay time.Duration, target Route) Queue {
	return Quorum.waitQueue(name, delay, target)
}

func (t QueueType) waitQueue(name string, delay time.Duration, target Route) Queue {
	delay = wholeMilliseconds(delay)
	args := t.waitArguments(delay)
	args["x-dead-letter-exchange"] = target.Exchange
	if target.RoutingKey != "" {
		args["x-dead-letter-routing-key"] = target.RoutingKey
	}
	return Queue{Name: name, Delay: delay, Arguments: args}
}

// wholeMilliseconds rounds a delay up to what a TTL can say.
func wholeMilliseconds(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}

// checkFields says what is wrong with the fields that all strategies have, without
// asking the functions among them about a queue that does not exist.
func checkFields(kind QueueType, ladder []time.Duration, extra amqp.Table, dead DeadLetters) error {
	_, ladderErr := planRungs(ladder)
	_, extraErr := merge(kind.waitQueue("", minSnooze, Route{RoutingKey: "queue"}).Arguments, extra, "wait queues")
	return errors.Join(kind.check(), ladderErr, extraErr, dead.check(kind))
}

func (t QueueType) check() error {
	switch t {
	case "", Quorum, Classic:
		return nil
	}
	return fmt.Errorf("queue type %q is unknown: use topology.Quorum or topology.Classic", t)
}

// suffix is what the name of a wait queue must carry beside its delay.
func (t QueueType) suffix(extra amqp.Table) string {
	suffix := ""
	if t == Classic {
		suffix = ".classic"
	}
	if len(extra) > 0 {
		suffix += fmt.Sprintf(".x%08x", crc32.ChecksumIEEE([]byte(argumentText(extra))))
	}
	return suffix
}

// merge adds the user's arguments to ours, which they may not replace.
func merge(ours, extra amqp.Table, role string) (amqp.Table, error) {
	var problems []error
	for _, key := range slices.Sorted(maps.Keys(extra)) {
		if _, taken := ours[key]; taken {
			problems = append(problems, fmt.Errorf("argument %s of the %s cannot be changed: it is %v", key, role, ours[key]))
		}
		ours[key] = extra[key]
	}
	if err := extra.Validate(); err != nil {
		problems = append(problems, fmt.Errorf("arguments of the %s: %w", role, err))
	}
	return ours, errors.Join(problems...)
}

// planRungs returns the delays as whole milliseconds, rounded up, sorted and
// distinct. minSnooze is added where none of them is from minSnooze to
// maxSnooze.
func planRungs(delays []time.Duration) ([]time.Duration, error) {
	var problems []error
	rungs := make([]time.Duration, 0, len(delays)+1)
	for _, d := range delays {
		switch {
		case d <= 0:
			problems = append(problems, fmt.Errorf("delay %v is not positive", d))
		case d > backoff.MaxDelay:
			problems = append(problems, fmt.Errorf("delay %v is longer than a queue can hold a message: at most %d ms", d, backoff.MaxDelay.Milliseconds()))
		default:
			rungs = append(rungs, wholeMilliseconds(d))
		}
	}
	if !slices.ContainsFunc(rungs, isShort) {
		rungs = append(rungs, minSnooze)
	}
	slices.Sort(rungs)
	return slices.Compact(rungs), errors.Join(problems...)
}

// prefixOr returns what the names begin with that queues share.
func prefixOr(prefix string) string {
	if prefix == "" {
		return "millpond"
	}
	return prefix
}

func checkName(role, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("the name of the %s is empty", role)
	case len(name) > maxName:
		return fmt.Errorf("the name of the %s has %d bytes, AMQP allows %d: %.40s…", role, len(name), maxName, name)
	}
	return nil
}
