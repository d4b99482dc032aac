package topology

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/management"
)

// safeLimit is the least delivery limit that leaves the guard against crash loops
// room to tell a culprit from those beside it.
const safeLimit = 8

// settings looks at what only the management API shows of a queue.
func (v *verifier) settings(q member, info management.Queue, compare bool) {
	if compare {
		if conflict := differing(q.Queue, info.Arguments); conflict != nil {
			v.conflict(conflict, q.Adopt)
		}
	}
	if !info.Durable || info.AutoDelete || info.Exclusive {
		v.find(Critical, Dropping, "queue", q.Name, "is not durable, is auto-delete or exclusive, and is gone with a restart, a consumer or a connection: declare it durable and neither")
	}
	if q.role == RoleMain {
		v.mainSettings(q.Name, info)
	}
	v.policies(q, info)
}

func (v *verifier) mainSettings(name string, info management.Queue) {
	if overflow, _ := info.Arguments["x-overflow"].(string); strings.HasPrefix(overflow, "reject-publish") {
		v.find(Critical, Dropping, "queue", name, "x-overflow %q refuses messages that return from waiting: remove it", overflow)
	}
	limit, counts := deliveryLimitOf(info, v.version)
	if !counts || limit >= harmlessLimit {
		return
	}
	if limit < safeLimit {
		v.find(Warning, Dropping, "queue", name, "its delivery limit is %d: under %d leaves little room to tell a message that kills the process from those beside it; raise it", limit, safeLimit)
	}
	_, argument := info.Arguments["x-dead-letter-exchange"]
	_, policy := info.EffectivePolicy["dead-letter-exchange"]
	if !argument && !policy {
		v.find(Warning, Dropping, "queue", name, "the broker drops a message silently when it was given back more than %d times, by consumers that end or, before 4.3, that nack; a Subscriber of this library does not let it come so far, others may: give the queue a dead-letter exchange, or a large delivery limit, by a policy", limit)
	}
}

// policies names what a policy changes for the worse. Of an argument and a
// policy, the broker takes the smaller number and the argument's overflow.
func (v *verifier) policies(q member, info management.Queue) {
	for _, key := range slices.Sorted(maps.Keys(info.EffectivePolicy)) {
		value := info.EffectivePolicy[key]
		severity, text := harm(q, key, value, info)
		if text != "" {
			v.find(severity, Overruled, "queue", q.Name, "%s sets %s to %v: %s; exempt this queue from it", policyNames(info), key, value, text)
		}
	}
}

// harm says what a policy's key does to a queue, "" if nothing that matters.
func harm(q member, key string, value any, info management.Queue) (Severity, string) {
	n, _ := wholeNumber(value)
	switch key {
	case "expires":
		return Critical, "the queue is deleted with all that is in it when nobody consumes it for so many milliseconds; publishing to it does not count"
	case "message-ttl":
		switch {
		case q.role == RoleWait && n < q.Delay.Milliseconds():
			return Critical, fmt.Sprintf("messages return before their delay of %s is over", delayName(q.Delay))
		case q.role == RoleMain:
			return Critical, "messages that are not handled by then are dropped, or dead-lettered past this library"
		case q.role != RoleWait:
			return Warning, "what it keeps is deleted after so many milliseconds"
		}
	case "max-length", "max-length-bytes":
		switch {
		case q.role == RoleWait && info.Type == string(Quorum):
			return Warning, "a full wait queue refuses, and what failed is held unacked until there is room"
		case q.role == RoleDead || q.role == RoleStranded:
			return Warning, "a full queue drops its oldest messages, or refuses new ones"
		}
		return Critical, "a full queue drops its oldest messages, or refuses those that return"
	case "overflow":
		overflow, _ := value.(string)
		if q.role == RoleMain && info.Arguments["x-overflow"] == nil && strings.HasPrefix(overflow, "reject-publish") {
			return Critical, "a full queue refuses messages that return from waiting"
		}
	case "delivery-limit":
		if (q.role == RoleDead || q.role == RoleStranded) && info.Type == string(Quorum) && n < harmlessLimit {
			return Warning, "before 4.3 every look at a message counts, and the broker deletes it in the end"
		}
	}
	return "", ""
}

func policyNames(info management.Queue) string {
	var names []string
	if info.Policy != "" {
		names = append(names, fmt.Sprintf("policy %q", info.Policy))
	}
	if info.OperatorPolicy != "" {
		names = append(names, fmt.Sprintf("operator policy %q", info.OperatorPolicy))
	}
	return strings.Join(names, " or ")
}

// bindings looks for those of the plan, and for one at a dead-letter target.
func (v *verifier) bindings() {
	asked := map[string][]management.Binding{} // Levels has several of each exchange
	for _, b := range v.plan.Bindings {
		list, ok := asked[b.Exchange]
		if !ok {
			if list, ok = v.manager.bindings(b.Exchange); ok {
				asked[b.Exchange] = list
			}
		}
		kind, name := b.to()
		if ok && !slices.Contains(list, management.Binding{Destination: name, DestinationType: kind, RoutingKey: b.RoutingKey}) {
			v.find(Critical, Missing, "binding", fmt.Sprintf("%s → %s", b.Exchange, name), "does not exist with the routing key %q: %s", b.RoutingKey, v.wayToDeclare())
		}
	}
	if target := v.plan.Dead.Exchange; target != "" {
		if list, ok := v.manager.bindings(target); ok && len(list) == 0 {
			v.find(Critical, Missing, "binding", target, "no queue is bound to the dead-letter target, so that what failed is held unacked: bind one")
		}
	}
}

// featureFlags: without stream_queue at-least-once dead-lettering falls back to
// at-most-once, silently.
func (v *verifier) featureFlags() {
	quorum := slices.ContainsFunc(v.plan.Queues, func(q Queue) bool { return q.Arguments["x-queue-type"] == string(Quorum) })
	states, ok := v.manager.featureFlags()
	if !quorum || !ok {
		return
	}
	v.featureFlag(states, "quorum_queue", "no quorum queue can be declared")
	v.featureFlag(states, "stream_queue", "quorum wait queues fall back to at-most-once dead-lettering, silently, and lose what they cannot place")
}

func (v *verifier) featureFlag(states map[string]string, name, text string) {
	if state, listed := states[name]; listed && state != "enabled" {
		v.find(Critical, Disabled, "broker", name, "the feature flag is %s, so that %s: rabbitmqctl enable_feature_flag %s", state, text, name)
	}
}

// deliveryLimitOf returns after how many deliveries that came back a queue drops
// a message; false where it does not count.
func deliveryLimitOf(info management.Queue, version brokerVersion) (int64, bool) {
	if info.Type != string(Quorum) {
		return 0, false
	}
	limit, set := wholeNumber(info.Arguments["x-delivery-limit"])
	if n, ok := wholeNumber(info.EffectivePolicy["delivery-limit"]); ok && (!set || n < limit) {
		limit, set = n, true
	}
	switch {
	case !set && version.atLeast(4, 0):
		return defaultDeliveryLimit, true
	case !set:
		return 0, false
	case limit < 0 && version.atLeast(4, 0):
		return 0, false
	}
	return max(limit, 0), true // before 4.0 a negative one acts like 0 (F2)
}

func wholeNumber(value any) (int64, bool) {
	text, ok := value.(json.Number)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(text.String(), 10, 64)
	return n, err == nil
}

// differing returns the first argument in which a queue differs from the plan.
func differing(q Queue, found map[string]any) *ConflictError {
	keys := slices.AppendSeq(slices.Collect(maps.Keys(q.Arguments)), maps.Keys(found))
	slices.Sort(keys)
	for _, key := range slices.Compact(keys) {
		wanted, got := argumentValue(q.Arguments, key), argumentValue(found, key)
		if wanted != got {
			return &ConflictError{Kind: "queue", Name: q.Name, Argument: key, Wanted: wanted, Found: got}
		}
	}
	return nil
}

func argumentValue(args amqp.Table, key string) string {
	value, ok := args[key]
	if !ok {
		return "none"
	}
	if text, ok := value.(string); ok {
		return "'" + text + "'"
	}
	return fmt.Sprint(value)
}
