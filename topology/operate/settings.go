package operate

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/management"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

const (
	// enoughReplicas outlive the loss of a node with a majority.
	enoughReplicas = 3
	// littleDisk is a limit under which a burst fills the disk before the alarm has stopped the
	// publishers. The broker's default is 50 MB.
	littleDisk = 1 << 30
)

// settings looks at what only the management API shows of a queue.
func (v *verifier) settings(q audit.Member, info management.Queue, compare bool) {
	if compare {
		if conflict := differing(q.Queue, info.Arguments); conflict != nil {
			v.conflict(conflict, q.Adopt)
		}
	}
	if q.Role != audit.RoleMain && (!info.Durable || info.AutoDelete || info.Exclusive) {
		v.critical(Dropping, "queue", q.Name, "is not durable, is auto-delete or exclusive, and is gone "+
			"with a restart, a consumer or a connection: declare it durable and neither")
	}
	v.known[q.Name] = audit.Facts{Kind: info.Type, Arguments: amqp.Table(info.Arguments)}
	v.replicas[q.Name] = info.Members
	if q.Role == audit.RoleWait && info.Held != nil && *info.Held > 0 && !v.mainMissing {
		v.warning(Exposed, "queue", q.Name, "holds %d messages whose wait is over, because a queue is "+
			"full, out of reach or without a majority; 32 of them stop the wait queue for every queue "+
			"whose messages wait there. If the number stays, find that queue with rabbitmqctl list_queues "+
			"name messages policy state, and make room or bring its nodes back; the messages come within "+
			"the dead-letter timer after that, three minutes unless set", *info.Held)
	}
}

// differing returns the first argument in which a queue differs from the plan.
func differing(q audit.Queue, found map[string]any) *topology.ConflictError {
	keys := slices.AppendSeq(slices.Collect(maps.Keys(q.Arguments)), maps.Keys(found))
	slices.Sort(keys)
	for _, key := range slices.Compact(keys) {
		wanted, got := argumentValue(q.Arguments, key), argumentValue(found, key)
		if wanted != got {
			return &topology.ConflictError{
				Kind: "queue", Name: q.Name, Argument: key, Wanted: wanted, Found: got,
			}
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

// policies names the harm that policies do, also to queues that do not exist yet.
func (v *verifier) policies() {
	list := v.manager.Policies()
	if list == nil {
		return
	}
	findings, unreadable := list.Judge(v.audited, v.known, v.version, v.operator.vhost)
	for _, f := range findings {
		v.find(Severity(f.Severity), Overruled, f.Kind, f.Name, "%s", f.Text)
	}
	if len(unreadable) > 0 {
		v.warning(Unchecked, "broker", "", "cannot tell whether these apply, because their patterns "+
			"mean nothing to Go's regexp: %s; compare the patterns with the names of the plan",
			strings.Join(unreadable, ", "))
	}
}

// bindings looks for the bindings of the plan, for others that take its messages, and for one at a
// dead-letter target.
func (v *verifier) bindings() {
	planned := map[string][]management.Binding{}
	for _, b := range v.plan.Bindings {
		list, ok := v.manager.Bindings(b.Exchange)
		want := management.Binding{
			Destination: b.Queue, DestinationType: "queue", RoutingKey: b.RoutingKey,
		}
		if b.ToExchange != "" {
			want.Destination, want.DestinationType = b.ToExchange, "exchange"
		}
		planned[b.Exchange] = append(planned[b.Exchange], want)
		if ok && !slices.ContainsFunc(list, func(b management.Bound) bool { return b.Binding == want }) {
			v.critical(Missing, "binding", fmt.Sprintf("%s → %s", b.Exchange, want.Destination),
				"does not exist with the routing key %q: %s", b.RoutingKey, v.wayToDeclare())
		}
	}
	for _, e := range v.plan.Exchanges {
		if e.Kind == audit.DelayedKind {
			continue // it confirms every message, also without a binding (F49)
		}
		list, _ := v.manager.Bindings(e.Name)
		v.strangers(e.Name, slices.DeleteFunc(slices.Clone(list), func(b management.Bound) bool {
			return slices.Contains(planned[e.Name], b.Binding)
		}))
	}
	if target := v.plan.Dead.Exchange; target != "" {
		if list, ok := v.manager.Bindings(target); ok && len(list) == 0 {
			v.critical(Missing, "binding", target, "no queue is bound to the dead-letter target, "+
				"so that failed messages are held unacked: bind one")
		}
	}
}

// strangers names those bindings of an exchange, of bindings that are not of the plan, that take
// messages of the plan. A queue that has vanished is noticed only because no queue takes a message
// (F4, F27). Services that share the exchange have bindings there that take other messages.
func (v *verifier) strangers(exchange string, others []management.Bound) {
	if len(others) == 0 || !v.takes(exchange, others) {
		return
	}
	if half := len(others) / 2; half > 0 {
		v.strangers(exchange, others[:half])
		v.strangers(exchange, others[half:])
		return
	}
	b := others[0]
	v.critical(Exposed, "binding", fmt.Sprintf("%s → %s", exchange, b.Destination),
		"is not of the plan and takes messages of the plan, with the routing key %q: if the queue that "+
			"they are for has vanished, the broker does not say so, and they are lost except for copies "+
			"behind %s %q: remove the binding, and watch retries with an observer of the middleware",
		b.RoutingKey, b.DestinationType, b.Destination)
}

// takes reports whether one of the bindings takes a message of the plan. If such a binding led to
// the queue or to a wait queue, ValidatePlan would refuse the plan, because the message came early
// or waited twice.
func (v *verifier) takes(exchange string, others []management.Bound) bool {
	plan := v.plan
	plan.Bindings = slices.Clip(plan.Bindings)
	for _, b := range others {
		to := topology.Binding{Exchange: exchange, RoutingKey: b.RoutingKey, Queue: plan.Queue}
		for key, value := range b.Arguments { // any other header may be a header of a message
			if text, ok := value.(string); ok && (key == header.Queue || key == keys.Via) {
				to.Header, to.Value = key, text
			}
		}
		plan.Bindings = append(plan.Bindings, to)
		if wait := plan.Queues[0]; wait.Delay > 0 && b.Destination != plan.Queue {
			to.Queue = wait.Name
			plan.Bindings = append(plan.Bindings, to)
		}
	}
	return topology.ValidatePlan(plan) != nil
}

// featureFlags looks for two flags, which cannot be off from 4.0 on. Without stream_queue
// at-least-once dead-lettering falls back to at-most-once, silently.
func (v *verifier) featureFlags() {
	quorum := slices.ContainsFunc(v.plan.Queues, func(q topology.Queue) bool {
		return q.Arguments["x-queue-type"] == audit.Quorum
	})
	if !quorum || v.version.AtLeast(4, 0) {
		return
	}
	states, _ := v.manager.FeatureFlags()
	for _, flag := range []struct{ name, text string }{
		{"quorum_queue", "no quorum queue can be declared"},
		{"stream_queue", "quorum wait queues fall back to at-most-once dead-lettering, silently, " +
			"and lose messages that they cannot place"},
	} {
		if state, listed := states[flag.name]; listed && state != "enabled" {
			v.critical(Disabled, "broker", flag.name, "the feature flag is %s, so that %s: "+
				"rabbitmqctl enable_feature_flag %s", state, flag.text, flag.name)
		}
	}
}

// nodes names alarms and settings of the nodes that weaken the promise. A setting that only matters
// to several nodes is not named on a single one.
func (v *verifier) nodes() {
	nodes, ok := v.manager.Nodes()
	if !ok {
		return
	}
	const alarm = "its %s alarm stops all publishing, so that failed messages are held unacked: %s"
	for _, n := range nodes {
		if n.MemoryAlarm {
			v.warning(Exposed, "broker", n.Name, alarm, "memory",
				"free memory, or raise vm_memory_high_watermark")
		}
		if n.DiskAlarm {
			v.warning(Exposed, "broker", n.Name, alarm, "disk",
				"free disk space, or lower disk_free_limit")
		}
	}
	if len(nodes) < 2 {
		return
	}
	for _, n := range nodes {
		if limit, known := n.DiskFreeLimit.(float64); known && limit < littleDisk {
			v.warning(Exposed, "broker", n.Name, "publishing is stopped only when %.0f MB of its disk are "+
				"left, and a disk that is full ends the node: "+
				"set disk_free_limit.absolute = 2GB or more in rabbitmq.conf", limit/1e6)
		}
	}
	v.fewReplicas(nodes)
}

// fewReplicas names queues of the plan that are on fewer nodes than they could be, in one finding
// for each type, because Levels has 32 wait queues.
func (v *verifier) fewReplicas(nodes []management.Node) {
	want := min(enoughReplicas, len(nodes))
	var classic, quorum []string
	missing := ""
	for _, q := range v.audited.Members() {
		switch kind, members := v.known[q.Name].Kind, v.replicas[q.Name]; {
		case kind == audit.Classic:
			classic = append(classic, q.Name)
		case kind == audit.Quorum && len(members) > 0 && len(members) < want:
			quorum = append(quorum, q.Name)
			for _, n := range nodes {
				if missing == "" && !slices.Contains(members, n.Name) {
					missing = n.Name
				}
			}
		}
	}
	if len(classic) > 0 {
		v.warning(Exposed, "broker", "replicas", "each of these classic queues is on one node of %d, "+
			"and out of reach while that node is away: %s; a quorum queue is on several",
			len(nodes), several(classic))
	}
	if len(quorum) > 0 {
		v.warning(Exposed, "broker", "replicas", "each of these quorum queues is on fewer than %d nodes "+
			"of %d, and loses its majority sooner: %s; for each node that is missing run: "+
			"rabbitmq-queues grow %s all --vhost-pattern %s --queue-pattern %s",
			want, len(nodes), several(quorum), audit.ShellWord(missing),
			audit.ShellWord("^"+regexp.QuoteMeta(v.operator.vhost)+"$"),
			audit.ShellWord(namesPattern(quorum)))
	}
}

// several names at most three of the names.
func several(names []string) string {
	const most = 3
	text := ""
	if len(names) > most {
		text = fmt.Sprintf(" and %d more", len(names)-most)
		names = names[:most]
	}
	return `"` + strings.Join(names, `", "`) + `"` + text
}

// namesPattern matches these names and no other.
func namesPattern(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = regexp.QuoteMeta(name)
	}
	return "^(" + strings.Join(quoted, "|") + ")$"
}

// unchecked names the checks that were not possible, because AMQP does not show their facts.
func (v *verifier) unchecked() {
	const all = "policies, bindings, feature flags, alarms and replicas were not looked at"
	switch m := v.manager; {
	case m == nil:
		v.warning(Unchecked, "broker", "", all+", because only the management API shows them: "+
			"name it with WithManagement, or with millpond --management")
	case m.Err != nil:
		v.warning(Unchecked, "broker", "", all+", or not all: %v", m.Err)
	default:
		if m.PolicyErr != nil {
			v.warning(Unchecked, "broker", "", "policies were not looked at: %v", m.PolicyErr)
		}
		for _, err := range m.Unseen {
			v.warning(Unchecked, "broker", "", "%v", err)
		}
	}
}
