package topology

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Verify compares a plan with what the broker has, and names what is missing,
// different or dangerous: the critical first, else in the order of the plan. No
// findings means that nothing was found, by the sources that were asked:
//
//   - AMQP tells which queues and exchanges are missing, the first argument in
//     which they differ from the plan, whether a wait queue is consumed, and the
//     type and the arguments of the queue itself, which may lose messages.
//   - The management API, where configured (WithManagement), tells missing
//     bindings, policies that change a queue or an exchange of the plan, also one
//     that does not exist yet, a delivery limit that drops for certain, feature
//     flags, alarms and replicas. Without it one finding says that none of that was
//     looked at. A user with the tag monitoring and permissions in the vhost is
//     enough; before RabbitMQ 4.0 feature flags take the tag administrator.
//
// Verify creates nothing: a queue or an exchange is declared with the plan's
// arguments only after it was found to exist, and the broker refuses other
// arguments without changing anything. Only where it is deleted in that very
// moment, the declare creates it anew, as the next Subscribe would. With
// WithPreProvisioned nothing of the plan is declared, and its arguments are
// compared only where the management API shows them. The queue itself is asked for
// its type and arguments with requests that the broker cannot fulfil.
//
// It has a connection of its own and ends within ctx, and after 90 s at the
// latest. What could not be looked at is a finding too; the error is for a broker
// that cannot be asked at all, and for a plan that ValidatePlan refuses.
func (c *Client) Verify(ctx context.Context, plan Plan) ([]Finding, error) {
	findings, err := c.verify(ctx, plan)
	if err != nil {
		return nil, fmt.Errorf("verify queue %q: %w", plan.Queue, err)
	}
	return findings, nil
}

func (c *Client) verify(ctx context.Context, plan Plan) ([]Finding, error) {
	if err := ValidatePlan(plan); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, declareTimeout)
	defer cancel()
	conn, end, err := c.operate(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	m := c.manager(ctx)

	vhost, err := c.linkCfg.Vhost()
	if err != nil {
		return nil, err
	}
	v := &verifier{
		ctx: ctx, run: conn.Do, plan: plan, manager: m, vhost: vhost,
		version: serverVersion(conn), declares: !c.opts.provisioned, confirmTimeout: c.opts.confirmTimeout,
		known: map[string]knownQueue{}, replicas: map[string][]string{},
	}
	if err := v.exchanges(); err != nil {
		return nil, err
	}
	if err := v.queues(); err != nil {
		return nil, err
	}
	v.policies()
	v.bindings()
	v.featureFlags()
	v.settingsOfBroker()
	v.unchecked()
	slices.SortStableFunc(v.findings, func(a, b Finding) int { return rank(a) - rank(b) })
	return v.findings, nil
}

// unchecked says what was not looked at, because AMQP does not show it.
func (v *verifier) unchecked() {
	const all = "policies, bindings, feature flags, alarms and replicas"
	switch m := v.manager; {
	case m == nil:
		v.find(Warning, Unchecked, "broker", "", all+" were not looked at, because only the management API shows them: name it with WithManagement, or with millpond --management")
	case m.err != nil:
		v.find(Warning, Unchecked, "broker", "", all+" were not looked at, or not all: %v", m.err)
	default:
		if m.policyErr != nil {
			v.find(Warning, Unchecked, "broker", "", "policies were not looked at: %v", m.policyErr)
		}
		for _, err := range m.unseen {
			v.find(Warning, Unchecked, "broker", "", "%v", err)
		}
	}
}

func rank(f Finding) int {
	if f.Severity == Critical {
		return 0
	}
	return 1
}

// verifier collects the findings about one plan.
type verifier struct {
	ctx            context.Context
	run            channelRunner
	plan           Plan
	manager        *manager
	version        brokerVersion
	vhost          string
	declares       bool
	confirmTimeout time.Duration
	findings       []Finding
	known          map[string]knownQueue
	replicas       map[string][]string // the nodes of each queue
}

func (v *verifier) find(severity Severity, problem Problem, kind, name, format string, args ...any) {
	v.findings = append(v.findings, Finding{
		Severity: severity, Problem: problem, Kind: kind, Name: name, Text: fmt.Sprintf(format, args...),
	})
}

func (v *verifier) exchanges() error {
	exchanges := slices.Clone(v.plan.Exchanges)
	if v.plan.Dead.Exchange != "" {
		exchanges = append(exchanges, Exchange{Name: v.plan.Dead.Exchange}) // the user's
	}
	if v.plan.Via != nil {
		exchanges = append(exchanges, Exchange{Name: v.plan.Via.Exchange})
	}
	for _, e := range exchanges {
		kind := e.Kind
		if kind == "" {
			kind = "direct" // passive: not compared
		}
		err := v.run(v.ctx, func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(e.Name, kind, true, false, false, false, nil)
		})
		switch {
		case isCode(err, amqp.NotFound) && e.Kind == "" && e.Name != v.plan.Dead.Exchange:
			v.find(Warning, Missing, "exchange", e.Name, "the exchange that retries return through does not exist, so that they reach the queue that failed and no other: create it, or set no Via")
		case isCode(err, amqp.NotFound) && e.Kind == "":
			v.find(Critical, Missing, "exchange", e.Name, "the dead-letter target does not exist, so that what failed is held unacked: create it")
		case isCode(err, amqp.NotFound):
			v.find(Critical, Missing, "exchange", e.Name, "does not exist: %s", v.wayToDeclare())
		case err != nil:
			return fmt.Errorf("check exchange %q: %w", e.Name, err)
		case e.Kind != "" && v.declares:
			err := v.run(v.ctx, func(ch *amqp.Channel) error {
				return e.declare(ch, false)
			})
			if _, err := v.compared("exchange", e.Name, e.Arguments, false, err); err != nil {
				return err
			}
		}
	}
	return nil
}

func (v *verifier) wayToDeclare() string {
	if v.declares {
		return "Subscribe declares it"
	}
	return "provision it, see Plan.Definitions"
}

// compared turns the outcome of a declare of what exists into a finding, and
// reports whether it was a comparison.
func (v *verifier) compared(kind, name string, args amqp.Table, adopt bool, err error) (bool, error) {
	var conflict *ConflictError
	switch declared := declareError(kind, name, args, err); {
	case err == nil:
	case errors.As(declared, &conflict):
		v.conflict(conflict, adopt)
	case isCode(err, amqp.PreconditionFailed):
		v.find(Critical, Conflicting, kind, name, "exists and cannot be used: %v", err)
	case isCode(err, amqp.AccessRefused):
		return false, nil
	case isCode(err, amqp.ResourceLocked):
		v.find(Critical, Conflicting, kind, name, "is exclusive to another connection: choose another name in the strategy")
	default:
		return false, declared
	}
	return true, nil
}

func (v *verifier) conflict(conflict *ConflictError, adopt bool) {
	if adopt {
		v.find(Warning, Conflicting, conflict.Kind, conflict.Name, "exists with other arguments and is used as it is: %s is %s, the plan has %s",
			conflict.Argument, conflict.Found, conflict.Wanted)
		return
	}
	v.find(Critical, Conflicting, conflict.Kind, conflict.Name, "exists with other arguments: %s is %s, wanted %s; %s",
		conflict.Argument, conflict.Found, conflict.Wanted, conflict.wayOut())
}

func (v *verifier) queues() error {
	for _, q := range v.plan.members() {
		found, err := passive(v.ctx, v.run, q.Name)
		switch {
		case isCode(err, amqp.NotFound):
			v.find(Critical, Missing, "queue", q.Name, "%s", v.missingText(q))
			continue
		case isCode(err, amqp.ResourceLocked):
			v.find(Critical, Conflicting, "queue", q.Name, "is exclusive to another connection, and gone with it: declare it durable and not exclusive")
			continue
		case err != nil:
			return fmt.Errorf("check queue %q: %w", q.Name, err)
		}
		if q.role == RoleWait && found.Consumers > 0 {
			v.find(Critical, Consumed, "queue", q.Name, "is consumed, by %d: that takes messages before their wait is over; stop it", found.Consumers)
		}
		if q.role == RoleMain {
			if err := v.main(q.Name); err != nil {
				return err
			}
		}
		compared := q.Arguments == nil // the user's own
		if !compared && v.declares {
			err := v.run(v.ctx, func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclare(q.Name, true, false, false, false, q.Arguments)
				return err
			})
			if compared, err = v.compared("queue", q.Name, q.Arguments, q.Adopt, err); err != nil {
				return err
			}
		}
		info, known := v.manager.queue(q.Name)
		if known {
			v.settings(q, info, !compared)
		}
		if !compared && !known && v.declares {
			v.find(Warning, Unchecked, "queue", q.Name, "its arguments could not be compared, because the user may not declare it: grant the configure permission, or configure WithManagement")
		}
	}
	return nil
}

// missingText says what becomes of messages while a queue is missing.
func (v *verifier) missingText(q member) string {
	switch q.role {
	case RoleWait:
		return "does not exist or cannot be reached; what waited in it when it was deleted is lost: " + v.wayToDeclare()
	case RoleMain:
		way := "; declare the queue, or let its consumer do it"
		for _, w := range v.plan.Queues {
			switch {
			case w.Delay == 0:
			case w.Arguments["x-dead-letter-exchange"] != "":
				return "does not exist or cannot be reached; messages whose wait ends are stranded meanwhile, visibly" + way
			case w.Arguments["x-dead-letter-strategy"] == "at-least-once":
				return "does not exist or cannot be reached; the broker holds messages whose wait ends, in no AMQP count, and delivers them up to three minutes after the queue is back" + way
			default:
				return "does not exist or cannot be reached; messages whose wait ends are lost, because classic wait queues hold nothing" + way
			}
		}
		return "does not exist or cannot be reached" + way
	case RoleDead:
		return "does not exist or cannot be reached, so that what failed is held unacked: " + v.wayToDeclare()
	}
	return "does not exist or cannot be reached; what it is to catch is lost or blocks others: " + v.wayToDeclare()
}
