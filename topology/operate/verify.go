package operate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/management"
	"github.com/millpond-go/millpond/internal/policies"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// Finding is one problem that Verify found.
type Finding struct {
	Severity Severity
	Problem  Problem
	// Kind is "queue", "exchange", "binding" or "broker", Name its name.
	Kind, Name string
	// Text says the problem, its consequence, and the way out.
	Text string
}

// String is the finding in one line.
func (f Finding) String() string {
	return policies.Line(string(f.Severity), f.Kind, f.Name, f.Text)
}

// Severity says how much a Finding matters.
type Severity string

const (
	// Critical: messages can be lost, or retries do not work.
	Critical Severity = "critical"
	// Warning: it works, with a limit that should be known.
	Warning Severity = "warning"
)

// Problem is the sort of a Finding, for programs.
type Problem string

const (
	// Missing: it does not exist, or cannot be reached.
	Missing Problem = "missing"
	// Conflicting: it exists with other arguments than the plan has.
	Conflicting Problem = "conflicting"
	// Dropping: the queue's own settings may drop messages.
	Dropping Problem = "dropping"
	// Overruled: a policy of the broker changes the queue or the exchange.
	Overruled Problem = "overruled"
	// Exposed: a setting or the state of the broker weakens the promise.
	Exposed Problem = "exposed"
	// Disabled: a feature flag is off.
	Disabled Problem = "disabled"
	// Consumed: a client consumes a wait queue.
	Consumed Problem = "consumed"
	// Stranded: messages are in the stranded queue of the plan; see Operator.Stranded.
	Stranded Problem = "stranded"
	// Unchecked: it could not be looked at.
	Unchecked Problem = "unchecked"
)

// Verify compares a plan with the queues, exchanges and settings of the broker, and names all that
// is missing, different or dangerous: the critical findings first, else in the order of the plan.
// No findings means that nothing was found, by the sources that were asked:
//
//   - AMQP tells which queues and exchanges are missing, the first argument in which they differ
//     from the plan, whether a wait queue is consumed, whether messages are stranded, and the type
//     and the arguments of the queue itself, which may lose messages.
//   - The management API, where configured (WithManagement), tells missing bindings, other bindings
//     that take messages of the plan, policies that change a queue or an exchange of the plan, also
//     before it exists, a delivery limit that drops for certain, feature flags, alarms and
//     replicas. Without it one finding says that none of that was looked at. A user with the tag
//     monitoring and permissions in the vhost is enough; before RabbitMQ 4.0 feature flags take the
//     tag administrator.
//
// Verify creates nothing: a queue or an exchange is declared with the plan's arguments only after
// it was found to exist, and the broker refuses other arguments without changing anything. Only
// where it is deleted in that very moment, the declare creates it anew, as the next Subscribe
// would. With WithPreProvisioned nothing of the plan is declared, and its arguments are compared
// only where the management API shows them. The queue itself is asked for its type and arguments
// with requests that the broker cannot fulfil.
//
// It ends within ctx, and after 90 s at the latest. A check that is not possible is a finding too;
// the error is for a broker that cannot be asked at all, and for a plan that topology.ValidatePlan
// refuses. The report has the counts of Inspect, too.
func (o *Operator) Verify(ctx context.Context, plan topology.Plan) (Report, error) {
	v := newVerifier(o, plan)
	err := topology.ValidatePlan(plan)
	if err == nil {
		err = o.call(ctx, v.verify)
	}
	if err != nil {
		return Report{}, fmt.Errorf("verify queue %q: %w", plan.Queue, err)
	}
	v.report.Findings = v.findings
	return v.report, nil
}

// verifier collects the findings about one plan.
type verifier struct {
	operator *Operator
	plan     topology.Plan
	audited  audit.Plan
	ctx      context.Context
	run      audit.Runner
	manager  *policies.Manager
	version  audit.Version
	report   Report
	findings []Finding
	known    map[string]audit.Facts
	replicas map[string][]string // the nodes of each queue

	mainMissing bool // which explains the messages that wait queues hold
}

func newVerifier(o *Operator, plan topology.Plan) *verifier {
	return &verifier{
		operator: o, plan: plan, audited: plan.Audited(), report: Report{Queue: plan.Queue},
		known: map[string]audit.Facts{}, replicas: map[string][]string{},
	}
}

func (v *verifier) verify(ctx context.Context, conn *link.Conn) error {
	v.ctx, v.run, v.manager = ctx, conn.Do, v.operator.manager(ctx)
	v.version = audit.VersionOf(conn.Properties)
	if err := v.exchanges(); err != nil {
		return err
	}
	if err := v.report.count(ctx, v.run, v.manager, v.audited, v.member); err != nil {
		return err
	}
	v.delayed()
	v.policies()
	v.bindings()
	v.featureFlags()
	v.nodes()
	v.unchecked()
	slices.SortStableFunc(v.findings, func(a, b Finding) int { return rank(a) - rank(b) })
	return nil
}

// delayed names the limits of a delayed-message exchange.
func (v *verifier) delayed() {
	if name := v.audited.DelayedExchange(); name != "" {
		v.warning(Exposed, "exchange", name, "keeps the waiting messages on one node, in no queue and "+
			"without a copy: a lost node takes its waiting messages along, a killed node the messages of "+
			"its last seconds, and only the management page of the exchange counts them (F49); if that "+
			"is too weak, use another strategy")
	}
}

func rank(f Finding) int {
	if f.Severity == Critical {
		return 0
	}
	return 1
}

func (v *verifier) find(
	severity Severity, problem Problem, kind, name, format string, args ...any,
) {
	text := fmt.Sprintf(format, args...)
	v.findings = append(v.findings, Finding{severity, problem, kind, name, text})
}

func (v *verifier) critical(problem Problem, kind, name, format string, args ...any) {
	v.find(Critical, problem, kind, name, format, args...)
}

func (v *verifier) warning(problem Problem, kind, name, format string, args ...any) {
	v.find(Warning, problem, kind, name, format, args...)
}

// declares says that arguments are compared by declaring.
func (v *verifier) declares() bool { return !v.operator.opts.provisioned }

func (v *verifier) exchanges() error {
	for _, e := range v.plan.Exchanges {
		err := v.passive(e)
		switch {
		case audit.IsCode(err, amqp.NotFound):
			v.critical(Missing, "exchange", e.Name, "does not exist: %s", v.wayToDeclare())
		case err != nil:
			return fmt.Errorf("check exchange %q: %w", e.Name, err)
		case v.declares():
			part := topology.Plan{Exchanges: []topology.Exchange{e}}
			if _, err := v.compared("exchange", e.Name, false, part); err != nil {
				return err
			}
		}
	}
	if err := v.ownExchange(v.plan.Dead.Exchange, Critical, "the dead-letter target does not exist, "+
		"so that failed messages are held unacked: create it"); err != nil || v.plan.Via == nil {
		return err
	}
	for _, exchange := range v.plan.Via.Exchanges {
		err := v.ownExchange(exchange, Warning, "the exchange that retries return through does not "+
			"exist, so that they reach the queue that failed and no other: create it, or leave it out of "+
			"Via")
		if err != nil {
			return err
		}
	}
	return nil
}

// ownExchange looks for an exchange of the user.
func (v *verifier) ownExchange(name string, severity Severity, missing string) error {
	if name == "" {
		return nil
	}
	err := v.passive(topology.Exchange{Name: name, Kind: "direct"}) // the kind is not compared
	if audit.IsCode(err, amqp.NotFound) {
		v.find(severity, Missing, "exchange", name, "%s", missing)
		return nil
	}
	if err != nil {
		return fmt.Errorf("check exchange %q: %w", name, err)
	}
	return nil
}

func (v *verifier) passive(e topology.Exchange) error {
	return v.run(v.ctx, func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(e.Name, e.Kind, true, false, false, false, nil)
	})
}

func (v *verifier) wayToDeclare() string {
	if v.declares() {
		return "Subscribe declares it"
	}
	return "provision it, see Plan.Definitions"
}

// compared declares a part of the plan that exists, turns a refusal into a finding, and reports
// whether the arguments were compared.
func (v *verifier) compared(kind, name string, adopt bool, part topology.Plan) (bool, error) {
	err := part.Declare(v.ctx, v.run, watermill.NopLogger{})
	var conflict *topology.ConflictError
	switch {
	case err == nil:
	case errors.As(err, &conflict):
		v.conflict(conflict, adopt)
	case audit.IsCode(err, amqp.PreconditionFailed):
		v.critical(Conflicting, kind, name, "exists and cannot be used: %v", err)
	case audit.IsCode(err, amqp.AccessRefused):
		return false, nil
	case audit.IsCode(err, amqp.ResourceLocked):
		v.critical(Conflicting, kind, name,
			"is exclusive to another connection: choose another name in the strategy")
	default:
		return false, err
	}
	return true, nil
}

func (v *verifier) conflict(c *topology.ConflictError, adopt bool) {
	if adopt {
		v.warning(Conflicting, c.Kind, c.Name, "exists with other arguments and is used as it is: "+
			"%s is %s, the plan has %s", c.Argument, c.Found, c.Wanted)
		return
	}
	text := strings.TrimPrefix(c.Error(), fmt.Sprintf("%s %q ", c.Kind, c.Name))
	v.critical(Conflicting, c.Kind, c.Name, "%s", text)
}

// member looks at one queue of the plan. shown says that the management API shows it.
func (v *verifier) member(
	q audit.Member, found amqp.Queue, refused error, info management.Queue, shown bool,
) error {
	switch {
	case refused == nil:
		return v.queue(q, found, info, shown)
	case audit.IsCode(refused, amqp.NotFound):
		v.mainMissing = v.mainMissing || q.Role == audit.RoleMain
		v.critical(Missing, "queue", q.Name, "does not exist or cannot be reached%s", v.whileMissing(q))
	default:
		v.critical(Conflicting, "queue", q.Name, "is exclusive to another connection, and gone with "+
			"it: declare it durable and not exclusive")
	}
	return nil
}

// queue looks at one queue of the plan, which exists.
func (v *verifier) queue(
	q audit.Member, found amqp.Queue, info management.Queue, shown bool,
) (err error) {
	v.counts(q, found, info)
	if q.Role == audit.RoleMain {
		if err := v.main(q.Name); err != nil {
			return err
		}
	}
	compared := q.Arguments == nil // the user's own
	if !compared && v.declares() {
		own := topology.Queue(q.Queue)
		own.Adopt = false // a conflict is a finding, not a log line
		part := topology.Plan{Queues: []topology.Queue{own}}
		if compared, err = v.compared("queue", q.Name, q.Adopt, part); err != nil {
			return err
		}
	}
	if shown {
		v.settings(q, info, !compared)
	}
	if !compared && !shown && v.declares() {
		v.warning(Unchecked, "queue", q.Name, "its arguments could not be compared, because the user "+
			"may not declare it: grant the configure permission, or configure WithManagement")
	}
	return nil
}

// counts looks at the messages and the consumers of a queue.
func (v *verifier) counts(q audit.Member, found amqp.Queue, info management.Queue) {
	if q.Role == audit.RoleWait && found.Consumers > 0 {
		v.critical(Consumed, "queue", q.Name, "is consumed, by %d: that takes messages before their "+
			"wait is over; stop it", found.Consumers)
	}
	quorum := q.Arguments["x-queue-type"] == audit.Quorum
	if q.Role == audit.RoleWait && quorum && found.Messages >= manyWaiting {
		v.warning(Exposed, "queue", q.Name, "has %d messages: those that are due at the same time "+
			"return sooner with dead_letter_worker_consumer_prefetch = 128 in advanced.config; it is 32 by "+
			"default, and cannot be seen from here", found.Messages)
	}
	if q.Role == audit.RoleStranded && found.Messages > 0 {
		v.critical(Stranded, "queue", q.Name, "messages are stranded, of this or of other queues: %d "+
			"whose wait is over and that found no way to their queue; millpond stranded list says for "+
			"which queue and why", found.Messages)
	}
	if q.Role == audit.RoleLine && found.Consumers == 0 && found.Messages > lineTokens {
		v.warning(Unconsumed, "queue", q.Name, "has %d messages and no consumer: they wait until a "+
			"process of the service is up", found.Messages)
	}
	inLine := found.Messages + max(managementCount(info.Unacked).N, 0)
	if q.Role == audit.RoleLine && inLine >= nearBound {
		v.warning(Exposed, "queue", q.Name, "has %d messages: at the bound (MaxWaiting, 10000 "+
			"by default) the queue pauses; millpond order list says which keys wait and which are blocked",
			inLine)
	}
}

const (
	// lineTokens is how many messages of a line without a consumer may be tokens of its processes.
	lineTokens = 8
	// nearBound is the number of messages of a line from which it is near its default bound.
	nearBound = 8000
	// manyWaiting is the number of messages of a wait queue that need some seconds to return (F42).
	manyWaiting = 30_000
)

// whileMissing says what happens to messages while a queue is missing, and what to do.
func (v *verifier) whileMissing(q audit.Member) string {
	switch q.Role {
	case audit.RoleWait:
		return "; messages that waited in it when it was deleted are lost: " + v.wayToDeclare()
	case audit.RoleMain:
		return v.whileMainMissing() + "; declare the queue, or let its consumer do it"
	case audit.RoleLine:
		return "; messages that waited in it when it was deleted are lost: " + v.wayToDeclare()
	case audit.RoleDead:
		return ", so that failed messages are held unacked: " + v.wayToDeclare()
	}
	return "; messages that it should catch are lost or block others: " + v.wayToDeclare()
}

func (v *verifier) whileMainMissing() string {
	i := slices.IndexFunc(v.plan.Queues, func(q topology.Queue) bool { return q.Delay > 0 })
	switch {
	case i < 0:
		return ""
	case v.plan.Queues[i].Arguments["x-dead-letter-exchange"] != "":
		return "; messages whose wait ends are stranded meanwhile, visibly"
	case v.plan.Queues[i].Arguments["x-dead-letter-strategy"] == "at-least-once":
		return "; the broker holds messages whose wait ends, in no AMQP count, " +
			"and delivers them up to three minutes after the queue is back"
	}
	return "; messages whose wait ends are lost, because classic wait queues hold nothing"
}

// main names the messages that the consumed queue may lose: by its type, its arguments, and with
// the management API by its policies.
func (v *verifier) main(name string) error {
	f, err := audit.Learn(v.ctx, v.run, name, nil, v.version, v.manager)
	if err != nil {
		return err
	}
	for _, h := range f.Hazards() {
		severity := Warning
		if h.Refused {
			severity = Critical
		}
		v.find(severity, Dropping, "queue", name, "%s", h)
	}
	switch {
	case f.Kind == "":
		v.warning(Unchecked, "queue", name, "neither its type nor its arguments could be seen: "+
			"grant the read and the configure permission, or configure WithManagement")
	case !f.Known && f.Kind != audit.Stream:
		v.warning(Unchecked, "queue", name, "its arguments could not be seen: "+
			"grant the configure permission, or configure WithManagement")
	}
	if err := f.RefuseRejects("", v.audited); err != nil {
		v.critical(Conflicting, "queue", name, "%s", strings.TrimSpace(err.Error()))
	}
	if err := f.RefuseOrder("", v.audited); err != nil {
		v.critical(Conflicting, "queue", name, "%s", strings.TrimSpace(err.Error()))
	}
	if f.LosesInRestarts(v.audited) {
		v.critical(Dropping, "queue", name, "is a quorum queue, and messages that wait in a classic "+
			"queue before it are lost if their wait ends while the broker restarts: "+
			"use quorum wait queues")
	}
	if f.LosesDelayed(v.audited) {
		v.critical(Dropping, "queue", name, "is a quorum queue, and messages that wait in a "+
			"delayed-message exchange before it are lost if their wait ends while the broker restarts: "+
			"use another strategy, or a classic queue")
	}
	v.known[name] = *f
	hold := audit.HoldFor(f.ConsumerTimeout(0, nil), confirmTimeout)
	if d := f.Drops(v.audited, v.operator.vhost, hold); d != nil {
		severity := Critical
		if d.Unless != "" {
			severity = Warning
		}
		v.find(severity, Dropping, "queue", name, "%s", d)
	}
	return nil
}

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
	if q.Role != audit.RoleMain { // which is known better
		v.known[q.Name] = audit.Facts{Kind: info.Type, Arguments: amqp.Table(info.Arguments)}
	}
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
