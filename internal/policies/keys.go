package policies

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millpond-go/millpond/internal/audit"
)

// policyKey is the effect of one key of a policy on each part of a plan. A nil judgement stands for
// "no harm": no message is lost, misdirected or made late.
type policyKey struct {
	main     judgement // on the queue that is consumed
	wait     judgement // on a wait queue
	keep     judgement // on a dead-letter or stranded queue
	exchange judgement // on an exchange of the plan

	// not are the types of queue to which the broker applies no policy with the key. For the types
	// in sometimes that depends on the version (F39).
	not, sometimes []string
}

var (
	classic    = []string{audit.Classic}
	replicated = []string{audit.Quorum, audit.Stream}
	noStream   = []string{audit.Classic, audit.Quorum}
)

// judgement is the effect of the key on one queue or exchange of a plan; "" for no harm.
type judgement func(s *subject, r Rule) (Severity, string)

// MayHarm reports whether a key of a policy can harm messages of some queue, or is not known.
func MayHarm(key string) bool {
	k, known := policyKeys[key]
	return !known || k.main != nil || k.wait != nil || k.keep != nil || k.exchange != nil
}

// policyKeys are all keys that RabbitMQ 3.10, 4.0 and 4.3 know, as policies and as operator
// policies. Judge names a key that is missing here.
var policyKeys = map[string]policyKey{
	// These take messages out of a queue, or refuse them.
	"message-ttl": {
		main: shorterTTL("messages that are not handled within %s %s"), wait: waitTTL,
		keep: shorterTTL("after %s the messages that it keeps %s"),
	},
	"expires":          {main: expires, wait: expires, keep: expires},
	"max-length":       {main: bounded(fullMain), wait: waitLength, keep: bounded(fullKeep)},
	"max-length-bytes": {main: bounded(fullMain), wait: waitLength, keep: bounded(fullKeep)},
	"overflow":         {main: overflowing(fullMain), wait: waitOverflow, keep: overflowing(fullKeep)},
	"delivery-limit":   {main: mainLimit, wait: waitLimit, keep: keepLimit, not: classic},

	// These say where dead-lettered messages go. Each wait queue has the exchange and the strategy
	// as arguments, which go before a policy. Where a queue that keeps messages drops some, the
	// findings of the keys above say so.
	"dead-letter-exchange":    {},
	"dead-letter-routing-key": {main: mainDeadKey, wait: waitDeadKey},
	"dead-letter-strategy":    {not: classic},

	// On a queue it does nothing. The default exchange has none (F39).
	"alternate-exchange": {exchange: alternate},

	// These hold messages back that were delivered and not acked.
	"consumer-timeout":              {main: mainTimeout},
	"consumer-disconnected-timeout": {main: mainDisconnected},
	"delayed-retry-type": {
		main: delayed(mainDelayed, "all", "returned", "failed"),
		wait: delayed(waitDelayed, "all", "returned"), keep: delayed(keepDelayed, "all", "returned"),
	},
	"delayed-retry-min": {}, // see delayed-retry-type
	"delayed-retry-max": {},

	// Mirrors of classic queues, up to 3.13.
	"ha-mode":                {main: mirrored, wait: mirrored, keep: mirrored, not: replicated},
	"ha-params":              {not: replicated}, // see ha-mode
	"ha-promote-on-failure":  {not: replicated},
	"ha-promote-on-shutdown": {not: replicated},
	"ha-sync-batch-size":     {},
	"ha-sync-mode":           {not: replicated},

	// These say where messages lie: in memory or on disk, and on which nodes. The broker only ever
	// adds replicas for target-group-size.
	"max-in-memory-bytes":  {sometimes: classic},
	"max-in-memory-length": {sometimes: classic},
	"queue-mode":           {not: replicated},
	"queue-version":        {},
	"queue-leader-locator": {sometimes: classic},
	"queue-master-locator": {not: replicated},
	"target-group-size":    {not: classic},

	// Streams, which a Subscriber refuses.
	"initial-cluster-size":          {not: noStream},
	"max-age":                       {not: noStream},
	"stream-filter-size-bytes":      {},
	"stream-max-segment-size-bytes": {not: noStream},
}

// fits says whether the broker applies a policy with this key to a type of queue.
func (k policyKey) fits(kind string) reach {
	switch {
	case kind == "" && len(k.not)+len(k.sometimes) > 0:
		return mayApply
	case slices.Contains(k.not, kind):
		return appliesNot
	case slices.Contains(k.sometimes, kind):
		return mayApply
	}
	return applies
}

// text returns a setting of which the broker takes the argument before the policy.
func (s *subject) text(key string) string {
	value, set := s.arguments["x-"+key]
	if !set {
		value = s.policy[key]
	}
	text, _ := value.(string)
	return text
}

// overflow returns the overflow behaviour of a full queue. A quorum queue takes the policy before
// its argument, knows no reject-publish-dlx and then drops (F39).
func (s *subject) overflow() string {
	found := s.text("overflow")
	if ruled, _ := s.policy["overflow"].(string); ruled != "" && s.queueType != audit.Classic {
		found = ruled
	}
	if found == "" || found == "reject-publish-dlx" && s.queueType == audit.Quorum {
		return "drop-head"
	}
	return found
}

// tighter reads the rule's number, and reports whether it is smaller than the argument's.
func (s *subject) tighter(r Rule) (int64, bool) {
	n, ok := audit.WholeNumber(r.Value)
	own, set := audit.WholeNumber(s.arguments["x-"+r.Key])
	return n, ok && (!set || own < 0 || n < own)
}

// gone says where messages go that the broker takes out of the queue.
func (s *subject) gone() string {
	exchange, key := s.text("dead-letter-exchange"), s.text("dead-letter-routing-key")
	switch {
	case exchange != "":
		return fmt.Sprintf("go to exchange %q, past this library", exchange)
	case key != "":
		return fmt.Sprintf("go to queue %q, past this library", key)
	}
	return deleted
}

const deleted = "are deleted"

// milliseconds writes a number of them as a duration.
func milliseconds(n int64) string {
	return audit.DelayText(time.Duration(min(n, audit.MaxHold.Milliseconds())) * time.Millisecond)
}

// found returns a finding where there is harm, and none otherwise.
func found(harm bool, severity Severity, format string, args ...any) (Severity, string) {
	if !harm {
		return "", ""
	}
	return severity, fmt.Sprintf(format, args...)
}

func critical(format string, args ...any) (Severity, string) {
	return found(true, Critical, format, args...)
}

func warning(format string, args ...any) (Severity, string) {
	return found(true, Warning, format, args...)
}

// shorterTTL judges a TTL below the queue's own. The text takes the TTL and the fate of messages.
func shorterTTL(text string) judgement {
	return func(s *subject, r Rule) (Severity, string) {
		n, tighter := s.tighter(r)
		return found(tighter, Critical, text, milliseconds(n), s.gone())
	}
}

func waitTTL(s *subject, r Rule) (Severity, string) {
	n, _ := audit.WholeNumber(r.Value)
	return found(n < s.delay.Milliseconds(), Critical,
		"messages return after %s, before their delay of %s is over",
		milliseconds(n), audit.DelayText(s.delay))
}

func expires(_ *subject, r Rule) (Severity, string) {
	n, _ := audit.WholeNumber(r.Value)
	return critical("the queue is deleted with all its messages when it had no consumer for %s, "+
		"also while messages are published to it", milliseconds(n))
}

// harmlessLength is a number of messages that no queue reaches; see exemption.
const harmlessLength = 2147483647

// bounds reports whether the rule bounds the queue more tightly than its argument.
func (s *subject) bounds(r Rule) bool {
	n, tighter := s.tighter(r)
	return tighter && (r.Key != "max-length" || n < harmlessLength)
}

// bounded judges a rule that bounds the queue, by the harm of a full queue.
func bounded(full func(*subject) (Severity, string)) judgement {
	return func(s *subject, r Rule) (Severity, string) {
		if !s.bounds(r) {
			return "", ""
		}
		return full(s)
	}
}

const dropsOldest = "the oldest messages of a full queue %s"

// fullMain says what happens when the consumed queue is full.
func fullMain(s *subject) (Severity, string) {
	if s.overflow() != "drop-head" {
		return critical("a full queue refuses messages that return from waiting, " +
			"which stops quorum wait queues, with Shared and Levels for every queue, and loses the " +
			"messages of classic wait queues")
	}
	return critical(dropsOldest, s.gone())
}

func waitLength(s *subject, r Rule) (Severity, string) {
	switch {
	case !s.bounds(r):
		return "", ""
	case s.overflow() == "reject-publish":
		return warning("a full wait queue refuses messages, " +
			"and failed messages are held unacked until there is room")
	}
	return critical("messages of a full wait queue return before their delay is over")
}

// fullKeep says what happens when a queue that keeps messages is full.
func fullKeep(s *subject) (Severity, string) {
	switch {
	case s.overflow() == "drop-head":
		return critical(dropsOldest, s.gone())
	case s.role == audit.RoleStranded:
		return critical("a full queue refuses stranded messages, " +
			"which stops quorum wait queues for all and loses the messages of classic wait queues")
	case s.role == audit.RoleLine:
		return warning("a full queue refuses failed messages, which are held unacked until there is " +
			"room: the later messages of their keys wait, too")
	}
	return warning("a full queue refuses dead letters, " +
		"and failed messages are held unacked until there is room")
}

// overflows reports whether an overflow by policy matters: arguments bound the queue, and the
// policy changes the overflow of the queue's argument.
func (s *subject) overflows() bool {
	_, length := s.arguments["x-max-length"]
	_, bytes := s.arguments["x-max-length-bytes"]
	own, _ := s.arguments["x-overflow"].(string)
	return (length || bytes) && own != s.overflow() && (own != "" || s.overflow() != "drop-head")
}

// overflowing judges a rule that changes the overflow of a queue that its arguments bound.
func overflowing(full func(*subject) (Severity, string)) judgement {
	return func(s *subject, _ Rule) (Severity, string) {
		if !s.overflows() {
			return "", ""
		}
		return full(s)
	}
}

func waitOverflow(s *subject, _ Rule) (Severity, string) {
	atLeastOnce := s.arguments["x-dead-letter-strategy"] == "at-least-once"
	return found(atLeastOnce && s.overflow() != "reject-publish", Critical,
		"it goes before the queue's own reject-publish, without which the queue falls "+
			"back to at-most-once dead-lettering, silently: messages whose wait is over are lost while "+
			"their queue is missing or a node dies")
}

// counted says which looks count, by the version (F34).
func (s *subject) counted() string {
	if s.version.AtLeast(4, 3) {
		return "a look that is killed counts, a look that ends by itself does not"
	}
	return "every look at a message counts"
}

// limited reads a delivery limit that is in reach and that the policy alone sets.
func (s *subject) limited(r Rule) (int64, bool) {
	n, tighter := s.tighter(r)
	return n, tighter && n >= 0 && n < audit.HarmlessLimit && s.queueType != audit.Classic
}

// mainLimit judges only a queue that does not exist yet. Facts.Drops names the limit of a queue
// that exists.
func mainLimit(s *subject, r Rule) (Severity, string) {
	n, limited := s.limited(r)
	return found(limited && s.missing && s.gone() == deleted, Critical,
		"a quorum queue drops a message silently that was given back more than %d times, "+
			"because the queue has no dead-letter target", n)
}

func waitLimit(s *subject, r Rule) (Severity, string) {
	n, limited := s.limited(r)
	return found(limited, Warning,
		"a message that was looked at more than %d times returns before its delay is "+
			"over: %s", n, s.counted())
}

func keepLimit(s *subject, r Rule) (Severity, string) {
	n, limited := s.limited(r)
	return found(limited, Critical,
		"messages that were looked at more than %d times %s: %s", n, s.gone(), s.counted())
}

func mainDeadKey(s *subject, r Rule) (Severity, string) {
	_, keyed := s.arguments["x-dead-letter-routing-key"]
	_, set := s.arguments["x-dead-letter-exchange"]
	return found(set && !keyed, Warning,
		"messages that the broker drops from the queue go to the queue's dead-letter "+
			"exchange %q with the routing key %s in place of their own",
		s.text("dead-letter-exchange"), valueText(r.Value))
}

func waitDeadKey(s *subject, r Rule) (Severity, string) {
	_, set := s.arguments["x-dead-letter-routing-key"]
	return found(!set, Critical,
		"messages whose wait is over leave with the routing key %s in place of their "+
			"own, and are stranded or go to the queue of that name", valueText(r.Value))
}

func alternate(s *subject, r Rule) (Severity, string) {
	if _, set := s.arguments["alternate-exchange"]; set {
		return "", ""
	}
	if s.role == audit.RoleDead {
		return warning("dead letters for which this dead-letter target finds no queue go to exchange %s "+
			"in place of being held, unless the target names another alternate exchange itself",
			valueText(r.Value))
	}
	return critical("messages for which the exchange finds no queue go to exchange %s, where they "+
		"count as handed over: once a queue of the plan has vanished, failed messages are misdirected "+
		"or lost", valueText(r.Value))
}

func mainTimeout(s *subject, r Rule) (Severity, string) {
	n, _ := audit.WholeNumber(r.Value)
	latest := s.version.AtLeast(4, 3)
	if n >= audit.DefaultConsumerTimeout.Milliseconds() || s.queueType == audit.Classic && latest {
		return "", ""
	}
	text := "a message that is handled for longer than %s is delivered again meanwhile, " +
		"and failed messages are held for less"
	if !latest {
		text += "; each time counts against the delivery limit"
	}
	return warning(text, milliseconds(n))
}

// defaultDisconnected is the broker's own.
const defaultDisconnected = time.Minute

func mainDisconnected(s *subject, r Rule) (Severity, string) {
	n, _ := audit.WholeNumber(r.Value)
	tardy := n > defaultDisconnected.Milliseconds() && s.queueType != audit.Classic
	return found(tardy, Warning,
		"messages in the hands of a consumer whose node cannot be reached are delivered "+
			"again only after %s", milliseconds(n))
}

// delayed judges a quorum queue of 4.3 that holds a message back that was given back to it (F14),
// where delayed-retry-type is one of ends. The text takes the delay.
func delayed(text string, ends ...string) judgement {
	return func(s *subject, _ Rule) (Severity, string) {
		how, _ := s.policy["delayed-retry-type"].(string)
		var bounds []string
		for _, key := range []string{"delayed-retry-min", "delayed-retry-max"} {
			if n, ok := audit.WholeNumber(s.policy[key]); ok {
				bounds = append(bounds, milliseconds(n))
			}
		}
		delay := cmp.Or(strings.Join(slices.Compact(bounds), " to "), "the broker's delay")
		holds := s.queueType != audit.Classic && slices.Contains(ends, how)
		return found(holds && !s.rejects, Warning, text, delay)
	}
}

const (
	mainDelayed = "a message that is given back, at a shutdown or by a crash for example, comes " +
		"again only after %s; retries wait in their wait queues all the same"
	waitDelayed = "a waiting message that is looked at is held back for %s, " +
		"also when its own delay is over before"
	keepDelayed = "messages that were looked at cannot be seen or moved for %s, " +
		"though the queue counts them"
)

func mirrored(s *subject, _ Rule) (Severity, string) {
	safe := s.queueType == audit.Quorum || s.policy["ha-promote-on-failure"] == "when-synced"
	return found(!safe, Warning,
		"where a node dies, a mirror that is not synchronised may take its place, and "+
			"the messages that this mirror does not have are lost: quorum queues keep them, and with "+
			"ha-promote-on-failure when-synced the queue waits for its node")
}
