package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/management"
	"github.com/millpond-go/millpond/internal/policies"
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
	v := &verifier{
		operator: o, plan: plan, audited: plan.Audited(), report: Report{Queue: plan.Queue},
		known: map[string]audit.Facts{}, replicas: map[string][]string{},
	}
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

func (v *verifier) verify(ctx context.Context, conn *link.Conn) error {
	v.ctx, v.run, v.manager = ctx, conn.Do, v.operator.manager(ctx)
	v.version = audit.VersionOf(conn.Properties)
	if err := v.exchanges(); err != nil {
		return err
	}
	if err := v.queues(); err != nil {
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

// queues looks at the queues of the plan.
func (v *verifier) queues() error {
	members := v.audited.Members()
	var names []string
	for _, q := range members {
		names = append(names, q.Name)
	}
	counted, refused, err := audit.PassiveAll(v.ctx, v.run, names)
	for _, q := range members {
		if err != nil {
			break
		}
		found, there := counted[q.Name]
		info, shown := v.manager.Queue(q.Name)
		v.report.add(q, found, there || !audit.IsCode(refused[q.Name], amqp.NotFound), info)
		switch {
		case there:
			err = v.queue(q, found, info, shown)
		case audit.IsCode(refused[q.Name], amqp.NotFound):
			v.mainMissing = v.mainMissing || q.Role == audit.RoleMain
			v.critical(Missing, "queue", q.Name, "does not exist or cannot be reached%s", v.whileMissing(q))
		default:
			v.critical(Conflicting, "queue", q.Name, "is exclusive to another connection, and gone with "+
				"it: declare it durable and not exclusive")
		}
	}
	if err != nil {
		return fmt.Errorf("check queues %s: %w", several(names), err)
	}
	if v.manager != nil {
		v.report.ManagementErr = v.manager.Err
	}
	return nil
}

// queue looks at one queue of the plan, which exists. shown says that the management API shows it.
func (v *verifier) queue(
	q audit.Member, found amqp.Queue, info management.Queue, shown bool,
) (err error) {
	if q.Role == audit.RoleWait && found.Consumers > 0 {
		v.critical(Consumed, "queue", q.Name, "is consumed, by %d: that takes messages before their "+
			"wait is over; stop it", found.Consumers)
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

const (
	// lineTokens is how many messages of a line without a consumer may be tokens of its processes.
	lineTokens = 8
	// nearBound is the number of messages of a line from which it is near its default bound.
	nearBound = 8000
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
	hold := audit.HoldFor(f.ConsumerTimeout(0, nil), v.operator.opts.confirmTimeout)
	if d := f.Drops(v.audited, v.operator.vhost, hold); d != nil {
		severity := Critical
		if d.Unless != "" {
			severity = Warning
		}
		v.find(severity, Dropping, "queue", name, "%s", d)
	}
	return nil
}
