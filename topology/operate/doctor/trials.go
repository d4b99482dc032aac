package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/topology"
)

// trials are the checks in the order of the report. The slow ones begin first, because few run at
// once.
func (e *examiner) trials(product string) []trial {
	quorum, classic := e.uses(topology.Quorum) || len(e.plans) == 0, e.uses(topology.Classic)
	list := []trial{
		{Check{
			Name: "scratch queues", Needed: true, Fact: "F24",
			Expected: "the user may configure, write and read " + scratch + "*",
			Meaning: "Without all three rights most checks cannot be made. Give the user the patterns " +
				`^(millpond\.doctor\..*|amq\.default)$ for this run.`,
		}, scratchRights},
		{Check{
			Name: "kept, quorum", Needed: quorum, Fact: "F39",
			Expected: "messages stay in a queue like a dead-letter queue",
			Meaning: "The broker deletes messages that are to be kept, or refuses them: look for a policy " +
				"with message-ttl, max-length or expires.",
		}, keeps(topology.Quorum)},
		{Check{
			Name: "kept, classic", Needed: classic, Fact: "F39",
			Expected: "messages stay in a classic queue like a dead-letter queue",
			Meaning: "The broker deletes messages that are to be kept, or refuses them. " +
				"Only services with classic queues need it.",
		}, keeps(topology.Classic)},
		{Check{
			Name: "consumer timeout", Needed: true, Fact: "F33",
			Expected: "a delivery may stay unacked for 30 minutes",
			Meaning: "A shorter timeout hands a message over again while its handler works or while the " +
				"message cannot be stored, and before 4.3 it counts against the delivery limit: raise it, " +
				"or tell the service with WithConsumerTimeout.",
		}, consumerTimeout},
		{Check{
			Name: "held, then sent", Fact: "F5",
			Expected: "a held message arrives when its target appears",
			Meaning: "Messages whose wait ended while their queue was missing arrive late. The wait queue " +
				"holds them until then: see at-least-once.",
		}, heldAgain},
		{Check{
			Name: "at-least-once", Needed: quorum, Fact: "F5",
			Expected: "a wait queue holds messages whose target is missing",
			Meaning: "Messages whose wait ends while their queue is missing or restarts are lost: do not " +
				"delete queues while messages wait, and expect losses when the broker restarts.",
		}, atLeastOnce},
		{Check{
			Name: "wait, quorum", Needed: quorum, Fact: "F6",
			Expected: "a message returns after its TTL of a second",
			Meaning: "Retries come early, late or never. Early: a policy has a shorter message-ttl. " +
				"Never: this broker has no quorum queues, or no dead-lettering in them.",
		}, waits(topology.Quorum)},
		{Check{
			Name: "wait, classic", Needed: classic, Fact: "F6",
			Expected: "in a classic queue, too, a message returns after a second",
			Meaning:  "Retries come early, late or never. Only services with classic queues need it.",
		}, waits(topology.Classic)},
		{Check{
			Name: "returns", Needed: true, Fact: "F4",
			Expected: "an unroutable message is returned before its confirm",
			Meaning: "A retry or a dead letter without a queue counts as stored, and is lost: " +
				"do not use millpond on this broker.",
		}, returned},
		{Check{
			Name: "delivery limit", Needed: quorum, Fact: "F21",
			Expected: fmt.Sprintf("under a large limit a message outlives %d deliveries", deliveries),
			Meaning: "The broker deletes messages that are looked at or whose handlers die: look for a " +
				"policy with delivery-limit.",
		}, deliveryLimit},
		{Check{
			Name: "alternate exchange", Needed: true, Fact: "F19",
			Expected: "a message without a queue is stranded and blocks no other",
			Meaning: "With Shared or Levels one missing queue stops the retries of all services. " +
				"PerQueue does not need it.",
		}, alternateExchange},
		{Check{
			Name: "due at once", Fact: "F5",
			Expected: "messages that are due at the same time do not wait for each other",
			Meaning: "By default only 32 are on their way from a wait queue to their queue. With " +
				"dead_letter_worker_consumer_prefetch = 128 in advanced.config many that are due at once " +
				"return sooner.",
		}, dueAtOnce},
		{Check{
			Name: "header types", Needed: true, Fact: "F15",
			Expected: "headers keep their types while they wait",
			Meaning:  "Handlers and consumers in other languages see other headers after a retry.",
		}, headerTypes},
		{Check{
			Name: "priorities", Fact: "F32",
			Expected: "a waiting message is not held up by one of priority 4",
			Meaning: "Retries are late while messages of a higher priority enter the same wait queue. " +
				"None is lost.",
		}, priorities},
		{Check{
			Name: "frame size", Fact: "F16",
			Expected: fmt.Sprintf("frame_max is at least %d bytes", frame),
			Meaning: "Headers have less room: a message with large headers becomes a dead letter instead " +
				"of a retry. Raise frame_max of the broker.",
		}, frameSize},
		{Check{
			Name: "version", Fact: "F42",
			Expected: "RabbitMQ 3.10, 4.0 or 4.3, which all tests run on",
			Meaning:  "millpond was not tested on this broker: the other lines are all that is known.",
		}, version},
		{Check{
			Name: "policies", Needed: true, Fact: "F39",
			Expected: "no policy, no feature flag and no alarm harms " + e.subjects(),
			Meaning: "Policies change the queues of a service afterwards: messages may be lost, " +
				"misdirected or late. `millpond verify` prints all of it with the way out.",
		}, policies},
	}
	for _, plan := range e.plans {
		list = append(list, trial{Check{
			Name: "rights of " + plan.Queue, Needed: true, Fact: "F24",
			Expected: "the user may do all that the plan needs",
			Meaning: "The service cannot consume, declare or store: failed messages are held unacked. " +
				"`millpond plan --permissions` prints the patterns.",
		}, planRights(plan, product)})
	}
	return list
}

const (
	// frame is frame_max by default, leastFrame the smallest that a Subscriber takes.
	frame      = 131072
	leastFrame = 16384
)

func frameSize(b *bench) {
	size := b.conn.Config.FrameSize
	seen := fmt.Sprintf("frames of %d bytes, %d channels", size, b.conn.Config.ChannelMax)
	if size > 0 && size < leastFrame {
		seen += fmt.Sprintf("; a service needs frames of %d bytes", leastFrame)
	}
	b.require(size <= 0 || size >= frame, "%s", seen)
}

// rabbitMQ is the product that the facts are about.
const rabbitMQ = "RabbitMQ"

func version(b *bench) {
	product, _ := b.conn.Properties["product"].(string)
	text, _ := b.conn.Properties["version"].(string)
	known := slices.Contains(
		[]audit.Version{{Major: 3, Minor: 10}, {Major: 4}, {Major: 4, Minor: 3}},
		audit.VersionOf(b.conn.Properties))
	b.Logf("%s", strings.TrimSpace(product+" "+text))
	b.Skipped = product != rabbitMQ || !known
}

// uses reports whether a plan has a queue of this type.
func (e *examiner) uses(kind topology.QueueType) bool {
	return slices.ContainsFunc(e.plans, func(p topology.Plan) bool {
		return slices.ContainsFunc(p.Queues, func(q topology.Queue) bool {
			return q.Arguments["x-queue-type"] == string(kind)
		})
	})
}

// subjects names the queues that policies are judged for.
func (e *examiner) subjects() string {
	if len(e.plans) == 0 {
		return "the queues of services"
	}
	names := make([]string, len(e.plans))
	for i, p := range e.plans {
		names[i] = fmt.Sprintf("%q", p.Queue)
	}
	return strings.Join(names, ", ")
}
