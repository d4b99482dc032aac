package topology

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/consumer"
	"github.com/millpond-go/millpond/internal/management"
)

// settings looks at what only the management API shows of a queue.
func (v *verifier) settings(q member, info management.Queue, compare bool) {
	if compare {
		if conflict := differing(q.Queue, info.Arguments); conflict != nil {
			v.conflict(conflict, q.Adopt)
		}
	}
	if q.role != RoleMain && (!info.Durable || info.AutoDelete || info.Exclusive) {
		v.find(Critical, Dropping, "queue", q.Name, "is not durable, is auto-delete or exclusive, and is gone with a restart, a consumer or a connection: declare it durable and neither")
	}
	v.known[q.Name] = knownQueue{QueueType(info.Type), info.Arguments}
	v.replicas[q.Name] = info.Members
}

// main names what the queue itself may lose: by its type, its arguments, and with
// the management API by its policies.
func (v *verifier) main(name string) error {
	f, err := learn(v.ctx, v.run, name, nil, v.version, v.manager)
	if err != nil {
		return err
	}
	for _, h := range f.hazards() {
		severity := Warning
		if h.refused {
			severity = Critical
		}
		v.find(severity, Dropping, "queue", name, "%s", h)
	}
	switch {
	case f.kind == "":
		v.find(Warning, Unchecked, "queue", name, "neither its type nor its arguments could be seen: grant the read and the configure permission, or configure WithManagement")
	case !f.known && f.kind != stream:
		v.find(Warning, Unchecked, "queue", name, "its arguments could not be seen: grant the configure permission, or configure WithManagement")
	}
	if f.losesInRestarts(v.plan) {
		v.find(Critical, Dropping, "queue", name, "is a quorum queue, and messages that wait in a classic queue before it are lost if their wait ends while the broker restarts: use quorum wait queues")
	}
	if f.kind != "" {
		v.known[name] = knownQueue{f.kind, f.arguments}
	}
	hold := consumer.HoldFor(f.consumerTimeout(0, nil), v.confirmTimeout)
	if d := f.drops(v.plan, v.vhost, hold); d != nil {
		severity := Critical
		if d.unless != "" {
			severity = Warning
		}
		v.find(severity, Dropping, "queue", name, "%s", d)
	}
	return nil
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

// featureFlags looks for two of them, which cannot be off from 4.0 on. Without
// stream_queue at-least-once dead-lettering falls back to at-most-once, silently.
func (v *verifier) featureFlags() {
	quorum := slices.ContainsFunc(v.plan.Queues, func(q Queue) bool { return q.Arguments["x-queue-type"] == string(Quorum) })
	if !quorum || v.version.atLeast(4, 0) {
		return
	}
	states, ok := v.manager.featureFlags()
	if !ok {
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

// wholeNumber reads a number of an argument or a policy.
func wholeNumber(value any) (int64, bool) {
	switch n := value.(type) {
	case json.Number:
		whole, err := strconv.ParseInt(n.String(), 10, 64)
		return whole, err == nil
	case int:
		return int64(n), true
	case int8:
		return int64(n), true
	case int16:
		return int64(n), true
	case int32:
		return int64(n), true
	case int64:
		return n, true
	case uint8:
		return int64(n), true
	case uint16:
		return int64(n), true
	case uint32:
		return int64(n), true
	}
	return 0, false
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
