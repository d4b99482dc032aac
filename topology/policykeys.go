package topology

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millpond-go/millpond/internal/consumer"
)

// policyKey says what one key of a policy does to each part of a plan. A judgement that
// is nil stands for "no harm": no message is lost, misdirected or made late.
type policyKey struct {
	main     judgement // on the queue that is consumed
	wait     judgement // on a wait queue
	keep     judgement // on a dead-letter or stranded queue
	exchange judgement // on an exchange of the plan

	// not are the types of queue to which the broker applies no policy that has the key,
	// sometimes those of which that depends on the version (F39).
	not, sometimes []QueueType
}

// judgement says what the key does to one queue or exchange of a plan; "" for no harm.
type judgement func(s *subject, r policyRule) (Severity, string)

// policyKeys are all keys that RabbitMQ 3.10, 4.0 and 4.3 know, as policies and as
// operator policies. A key that is missing here is named by Verify.
var policyKeys = map[string]policyKey{
	// These take messages out of a queue, or refuse them.
	"message-ttl":      {main: mainTTL, wait: waitTTL, keep: keepTTL},
	"expires":          {main: expires, wait: expires, keep: expires},
	"max-length":       {main: mainLength, wait: waitLength, keep: keepLength},
	"max-length-bytes": {main: mainLength, wait: waitLength, keep: keepLength},
	"overflow":         {main: mainOverflow, wait: waitOverflow, keep: keepOverflow},
	"delivery-limit":   {main: mainLimit, wait: waitLimit, keep: keepLimit, not: []QueueType{Classic}},

	// These say where dead-lettered messages go. Each wait queue has the exchange and the
	// strategy as arguments, which go before a policy. Messages that are dropped from a
	// queue that keeps them are named by the keys above.
	"dead-letter-exchange":    {},
	"dead-letter-routing-key": {main: mainDeadKey, wait: waitDeadKey},
	"dead-letter-strategy":    {not: []QueueType{Classic}},

	// On a queue it does nothing. The default exchange has none (F39).
	"alternate-exchange": {exchange: alternate},

	// These hold messages back that were delivered and not acked.
	"consumer-timeout":              {main: mainTimeout},
	"consumer-disconnected-timeout": {main: mainDisconnected},
	"delayed-retry-type":            {main: mainDelayed, wait: waitDelayed, keep: keepDelayed},
	"delayed-retry-min":             {}, // delayed-retry-type says what it does
	"delayed-retry-max":             {},

	// Mirrors of classic queues, up to 3.13.
	"ha-mode":                {main: mirrored, wait: mirrored, keep: mirrored, not: []QueueType{Quorum, stream}},
	"ha-params":              {not: []QueueType{Quorum, stream}}, // ha-mode says what these do
	"ha-promote-on-failure":  {not: []QueueType{Quorum, stream}},
	"ha-promote-on-shutdown": {not: []QueueType{Quorum, stream}},
	"ha-sync-batch-size":     {},
	"ha-sync-mode":           {not: []QueueType{Quorum, stream}},

	// These say where messages lie: in memory or on disk, and on which nodes. The broker
	// only ever adds replicas for target-group-size.
	"max-in-memory-bytes":  {sometimes: []QueueType{Classic}},
	"max-in-memory-length": {sometimes: []QueueType{Classic}},
	"queue-mode":           {not: []QueueType{Quorum, stream}},
	"queue-version":        {},
	"queue-leader-locator": {sometimes: []QueueType{Classic}},
	"queue-master-locator": {not: []QueueType{Quorum, stream}},
	"target-group-size":    {not: []QueueType{Classic}},

	// Of streams, which are never consumed here.
	"initial-cluster-size":          {not: []QueueType{Classic, Quorum}},
	"max-age":                       {not: []QueueType{Classic, Quorum}},
	"stream-filter-size-bytes":      {},
	"stream-max-segment-size-bytes": {not: []QueueType{Classic, Quorum}},
}

// fits says whether the broker applies a policy with this key to a type of queue.
func (k policyKey) fits(kind QueueType) reach {
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

// subject is one queue or exchange of a plan, as policies find it.
type subject struct {
	kind, name string // "queue" or "exchange"
	role       Role   // of a queue
	delay      time.Duration
	queueType  QueueType      // "" where it is not known
	arguments  map[string]any // as they are, else as planned
	missing    bool
	version    brokerVersion
	applied    appliedPolicies
	policy     map[string]any // all that applies together
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

// overflow is what becomes of a full queue. A quorum queue takes the policy before its
// argument, knows no reject-publish-dlx and then drops (F39).
func (s *subject) overflow() string {
	found := s.text("overflow")
	if ruled, _ := s.policy["overflow"].(string); ruled != "" && s.queueType != Classic {
		found = ruled
	}
	if found == "" || found == "reject-publish-dlx" && s.queueType == Quorum {
		return "drop-head"
	}
	return found
}

// tighter reads the rule's number, and reports whether it is smaller than the argument's.
func (s *subject) tighter(r policyRule) (int64, bool) {
	n, ok := wholeNumber(r.value)
	own, set := wholeNumber(s.arguments["x-"+r.key])
	return n, ok && (!set || own < 0 || n < own)
}

// gone says where messages go that the broker takes out of the queue.
func (s *subject) gone() string {
	exchange := s.text("dead-letter-exchange")
	if key := s.text("dead-letter-routing-key"); exchange == "" && key != "" {
		return fmt.Sprintf("go to queue %q, past this library", key)
	}
	if exchange == "" {
		return "are deleted"
	}
	return fmt.Sprintf("go to exchange %q, past this library", exchange)
}

// milliseconds writes a number of them as a duration.
func milliseconds(n int64) string {
	return delayName(time.Duration(min(n, consumer.MaxHold.Milliseconds())) * time.Millisecond)
}

func mainTTL(s *subject, r policyRule) (Severity, string) {
	n, tighter := s.tighter(r)
	if !tighter {
		return "", ""
	}
	return Critical, fmt.Sprintf("messages that are not handled within %s %s", milliseconds(n), s.gone())
}

func waitTTL(s *subject, r policyRule) (Severity, string) {
	n, _ := wholeNumber(r.value)
	if n >= s.delay.Milliseconds() {
		return "", ""
	}
	return Critical, fmt.Sprintf("messages return after %s, before their delay of %s is over", milliseconds(n), delayName(s.delay))
}

func keepTTL(s *subject, r policyRule) (Severity, string) {
	n, tighter := s.tighter(r)
	if !tighter {
		return "", ""
	}
	return Critical, fmt.Sprintf("after %s the messages that it keeps %s", milliseconds(n), s.gone())
}

func expires(_ *subject, r policyRule) (Severity, string) {
	n, _ := wholeNumber(r.value)
	return Critical, fmt.Sprintf("the queue is deleted with all its messages when it had no consumer for %s, also while messages are published to it", milliseconds(n))
}

// harmlessLength is a number of messages that no queue reaches; see exemption.
const harmlessLength = 2147483647

// bounds reports whether the rule bounds the queue more tightly than its argument.
func (s *subject) bounds(r policyRule) bool {
	n, tighter := s.tighter(r)
	return tighter && (r.key != "max-length" || n < harmlessLength)
}

func mainLength(s *subject, r policyRule) (Severity, string) {
	if !s.bounds(r) {
		return "", ""
	}
	return s.fullMain()
}

// fullMain says what becomes of the queue that is consumed when it is full.
func (s *subject) fullMain() (Severity, string) {
	if s.overflow() != "drop-head" {
		return Critical, "a full queue refuses messages that return from waiting, which stops quorum wait queues and loses those of classic ones"
	}
	return Critical, "the oldest messages of a full queue " + s.gone()
}

func waitLength(s *subject, r policyRule) (Severity, string) {
	switch {
	case !s.bounds(r):
		return "", ""
	case s.overflow() == "reject-publish":
		return Warning, "a full wait queue refuses messages, and failed messages are held unacked until there is room"
	}
	return Critical, "messages of a full wait queue return before their delay is over"
}

func keepLength(s *subject, r policyRule) (Severity, string) {
	if !s.bounds(r) {
		return "", ""
	}
	return s.full()
}

// full says what becomes of a full queue that keeps messages.
func (s *subject) full() (Severity, string) {
	switch {
	case s.overflow() == "drop-head":
		return Critical, "the oldest messages of a full queue " + s.gone()
	case s.role == RoleStranded:
		return Critical, "a full queue refuses stranded messages, which stops quorum wait queues for all and loses those of classic ones"
	}
	return Warning, "a full queue refuses dead letters, and failed messages are held unacked until there is room"
}

// bounded reports whether arguments of the queue bound it: then overflow matters.
func (s *subject) bounded() bool {
	_, length := s.arguments["x-max-length"]
	_, bytes := s.arguments["x-max-length-bytes"]
	return length || bytes
}

// overrules reports whether an overflow by policy changes that of the queue's argument.
func (s *subject) overrules() bool {
	own, _ := s.arguments["x-overflow"].(string)
	return own != s.overflow() && (own != "" || s.overflow() != "drop-head")
}

func mainOverflow(s *subject, _ policyRule) (Severity, string) {
	if !s.bounded() || !s.overrules() {
		return "", ""
	}
	return s.fullMain()
}

func waitOverflow(s *subject, _ policyRule) (Severity, string) {
	if s.arguments["x-dead-letter-strategy"] != "at-least-once" || s.overflow() == "reject-publish" {
		return "", ""
	}
	return Critical, "it goes before the queue's own reject-publish, without which the queue falls back to at-most-once dead-lettering, silently: " +
		"messages whose wait is over are lost while their queue is missing or a node dies"
}

func keepOverflow(s *subject, _ policyRule) (Severity, string) {
	if !s.bounded() || !s.overrules() {
		return "", ""
	}
	return s.full()
}

// counted says which ends of a delivery count, by the version (F34).
func (s *subject) counted() string {
	if s.version.atLeast(4, 3) {
		return "a look that is killed counts, one that ends by itself does not"
	}
	return "every look at a message counts"
}

// limited reads a delivery limit that is in reach and that the policy alone sets.
func (s *subject) limited(r policyRule) (int64, bool) {
	n, tighter := s.tighter(r)
	return n, tighter && n >= 0 && n < harmlessLimit && s.queueType != Classic
}

// mainLimit judges only a queue that does not exist yet. Of one that exists, verifier.main
// knows the limit and names it.
func mainLimit(s *subject, r policyRule) (Severity, string) {
	n, limited := s.limited(r)
	if !limited || !s.missing || s.gone() != "are deleted" {
		return "", ""
	}
	return Critical, fmt.Sprintf("a quorum queue drops a message silently that was given back more than %d times, because the queue has no dead-letter target", n)
}

func waitLimit(s *subject, r policyRule) (Severity, string) {
	n, limited := s.limited(r)
	if !limited {
		return "", ""
	}
	return Warning, fmt.Sprintf("a message that was looked at more than %d times returns before its delay is over: %s", n, s.counted())
}

func keepLimit(s *subject, r policyRule) (Severity, string) {
	n, limited := s.limited(r)
	if !limited {
		return "", ""
	}
	return Critical, fmt.Sprintf("messages that were looked at more than %d times %s: %s", n, s.gone(), s.counted())
}

func mainDeadKey(s *subject, r policyRule) (Severity, string) {
	_, keyed := s.arguments["x-dead-letter-routing-key"]
	if _, set := s.arguments["x-dead-letter-exchange"]; !set || keyed {
		return "", ""
	}
	return Warning, fmt.Sprintf("what the broker drops from the queue goes to the queue's dead-letter exchange %q with the routing key %s in place of its own",
		s.text("dead-letter-exchange"), valueText(r.value))
}

func waitDeadKey(s *subject, r policyRule) (Severity, string) {
	if _, set := s.arguments["x-dead-letter-routing-key"]; set {
		return "", ""
	}
	return Critical, fmt.Sprintf("messages whose wait is over leave with the routing key %s in place of their own, and are stranded or go to the queue of that name", valueText(r.value))
}

func alternate(s *subject, r policyRule) (Severity, string) {
	if _, set := s.arguments["alternate-exchange"]; set {
		return "", ""
	}
	if s.role == RoleDead {
		return Warning, fmt.Sprintf("dead letters for which this dead-letter target finds no queue go to exchange %s in place of being held, unless the target has an alternate exchange of its own", valueText(r.value))
	}
	return Critical, fmt.Sprintf("messages for which the exchange finds no queue go to exchange %s, where they count as handed over: once a queue of the plan has vanished, failed messages are misdirected or lost", valueText(r.value))
}

func mainTimeout(s *subject, r policyRule) (Severity, string) {
	n, _ := wholeNumber(r.value)
	if n >= defaultConsumerTimeout.Milliseconds() || s.queueType == Classic && s.version.atLeast(4, 3) {
		return "", ""
	}
	text := "a message that is handled for longer than %s is delivered again meanwhile, and failed messages are held for less"
	if !s.version.atLeast(4, 3) {
		text += "; each time counts against the delivery limit"
	}
	return Warning, fmt.Sprintf(text, milliseconds(n))
}

// defaultDisconnected is the broker's own.
const defaultDisconnected = time.Minute

func mainDisconnected(s *subject, r policyRule) (Severity, string) {
	n, _ := wholeNumber(r.value)
	if n <= defaultDisconnected.Milliseconds() || s.queueType == Classic {
		return "", ""
	}
	return Warning, fmt.Sprintf("messages in the hands of a consumer whose node cannot be reached are delivered again only after %s", milliseconds(n))
}

// delayed returns how long a quorum queue of 4.3 holds a message back that was given
// back to it (F14); "" where it does not.
func (s *subject) delayed(ends ...string) string {
	how, _ := s.policy["delayed-retry-type"].(string)
	if s.queueType == Classic || !slices.Contains(ends, how) {
		return ""
	}
	var bounds []string
	for _, key := range []string{"delayed-retry-min", "delayed-retry-max"} {
		if n, ok := wholeNumber(s.policy[key]); ok {
			bounds = append(bounds, milliseconds(n))
		}
	}
	if len(bounds) == 0 {
		return "the broker's delay"
	}
	return strings.Join(slices.Compact(bounds), " to ")
}

func mainDelayed(s *subject, _ policyRule) (Severity, string) {
	delay := s.delayed("all", "returned", "failed")
	if delay == "" {
		return "", ""
	}
	return Warning, fmt.Sprintf("a message that is given back, at a shutdown or by a crash for example, comes again only after %s; retries wait in their wait queues all the same", delay)
}

func waitDelayed(s *subject, _ policyRule) (Severity, string) {
	delay := s.delayed("all", "returned")
	if delay == "" {
		return "", ""
	}
	return Warning, fmt.Sprintf("a waiting message that is looked at is held back for %s, also when its own delay is over before", delay)
}

func keepDelayed(s *subject, _ policyRule) (Severity, string) {
	delay := s.delayed("all", "returned")
	if delay == "" {
		return "", ""
	}
	return Warning, fmt.Sprintf("messages that were looked at cannot be seen or moved for %s, though the queue counts them", delay)
}

func mirrored(s *subject, _ policyRule) (Severity, string) {
	if s.queueType == Quorum || s.policy["ha-promote-on-failure"] == "when-synced" {
		return "", ""
	}
	return Warning, "where a node dies, a mirror that is not synchronised may take its place, and what that mirror does not have is lost: quorum queues keep it, and with ha-promote-on-failure when-synced the queue waits for its node"
}

// valueText writes the value of a policy's key.
func valueText(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprintf("%q", fmt.Sprint(value))
	}
	return string(text)
}
