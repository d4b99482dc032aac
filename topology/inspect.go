package topology

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Report is what Inspect found.
type Report struct {
	// Queue is the queue whose plan was looked at.
	Queue string
	// Queues are that queue, its wait queues by ascending delay, and those that
	// keep messages.
	Queues []QueueReport
	// ManagementErr says why the management API has answered nothing, or not all;
	// nil where it has, or where none is configured.
	ManagementErr error
}

// QueueReport is one queue of a Report. Counts of a queue that several queues
// share (Shared, Levels) are those of all of them.
type QueueReport struct {
	Name string
	Role Role
	// Delay of a wait queue, else zero.
	Delay time.Duration
	// Missing says that the broker has no such queue, or cannot reach it: to AMQP
	// that is the same.
	Missing bool
	// Ready are the messages that could be delivered, or that wait; Consumers
	// those who consume. Both are from AMQP; a quorum queue may count some seconds
	// late.
	Ready, Consumers Count
	// Total are all messages, the unacked ones and the held ones among them; Held
	// those whose wait is over and that the broker keeps because it cannot place
	// them. AMQP shows neither; both are from the management API, seconds late.
	Total, Held Count
}

// Role is what a queue is to a plan.
type Role string

const (
	// RoleMain is the queue that is consumed.
	RoleMain Role = "main"
	// RoleWait is a wait queue.
	RoleWait Role = "wait"
	// RoleDead keeps dead letters.
	RoleDead Role = "dead"
	// RoleStranded keeps messages whose queue has vanished while they waited.
	RoleStranded Role = "stranded"
)

// Source is where a count came from.
type Source string

const (
	// SourceAMQP is a passive declare, which is blind to unacked and held messages.
	SourceAMQP Source = "amqp"
	// SourceManagement is the management API: all messages, seconds late.
	SourceManagement Source = "management"
)

// Count is a number of something, and who said so.
type Count struct {
	// N is -1 where it is not known.
	N int
	// Source is empty where N is not known.
	Source Source
}

var unknown = Count{N: -1}

// Known reports whether anybody has said the number.
func (c Count) Known() bool { return c.Source != "" }

// String is the number with its source, or "-".
func (c Count) String() string {
	if !c.Known() {
		return "-"
	}
	return fmt.Sprintf("%d (%s)", c.N, c.Source)
}

// Inspect counts the messages and consumers of every queue of a plan. It changes
// nothing and has a connection of its own; it ends within ctx, and after 90 s at
// the latest. Where dead letters go to an exchange of the user's, their queue is
// not known here.
//
// A management API that does not answer is no error: it is in the report.
func (c *Client) Inspect(ctx context.Context, plan Plan) (Report, error) {
	report, err := c.inspect(ctx, plan)
	if err != nil {
		return Report{}, fmt.Errorf("inspect queue %q: %w", plan.Queue, err)
	}
	return report, nil
}

func (c *Client) inspect(ctx context.Context, plan Plan) (Report, error) {
	if plan.Queue == "" {
		return Report{}, errEmptyPlan
	}
	ctx, cancel := context.WithTimeout(ctx, declareTimeout)
	defer cancel()
	conn, end, err := c.operate(ctx)
	if err != nil {
		return Report{}, err
	}
	defer end()
	m := c.manager(ctx)

	report := Report{Queue: plan.Queue}
	for _, member := range plan.members() {
		r := QueueReport{Name: member.Name, Role: member.role, Delay: member.Delay,
			Ready: unknown, Consumers: unknown, Total: unknown, Held: unknown}
		found, err := passive(ctx, conn.Do, member.Name)
		switch {
		case isCode(err, amqp.NotFound):
			r.Missing = true
		case err != nil:
			return Report{}, fmt.Errorf("count queue %q: %w", member.Name, err)
		default:
			r.Ready = Count{N: found.Messages, Source: SourceAMQP}
			r.Consumers = Count{N: found.Consumers, Source: SourceAMQP}
		}
		if info, ok := m.queue(member.Name); ok {
			r.Total = managementCount(info.Messages)
			r.Held = managementCount(info.Held)
		}
		report.Queues = append(report.Queues, r)
	}
	if m != nil {
		report.ManagementErr = m.err
	}
	return report, nil
}

func managementCount(n *int) Count {
	if n == nil {
		return unknown
	}
	return Count{N: *n, Source: SourceManagement}
}

// passive looks at a queue without changing anything.
func passive(ctx context.Context, run channelRunner, name string) (amqp.Queue, error) {
	var found amqp.Queue
	err := run(ctx, func(ch *amqp.Channel) (err error) {
		found, err = ch.QueueDeclarePassive(name, true, false, false, false, nil)
		return err
	})
	if err != nil {
		return amqp.Queue{}, err // f may still be running
	}
	return found, nil
}

var errEmptyPlan = errors.New("the plan is empty: use topology.PlanFor")

// member is a queue of a plan, the user's own included.
type member struct {
	Queue
	role Role
}

// members are the queue itself, those of the plan in its order, and the
// dead-letter queue where it is the user's.
func (p Plan) members() []member {
	members := []member{{Queue: Queue{Name: p.Queue}, role: RoleMain}}
	for _, q := range p.Queues {
		role := RoleStranded
		switch {
		case q.Delay > 0:
			role = RoleWait
		case p.Dead.Exchange == "" && p.Dead.RoutingKey == q.Name:
			role = RoleDead
		}
		members = append(members, member{Queue: q, role: role})
	}
	known := slices.ContainsFunc(members, func(m member) bool { return m.Name == p.Dead.RoutingKey })
	if p.Dead.Exchange == "" && p.Dead.RoutingKey != "" && !known {
		members = append(members, member{Queue: Queue{Name: p.Dead.RoutingKey}, role: RoleDead})
	}
	return members
}

// String returns the report as a table that says where each count came from.
func (r Report) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "queue\trole\tdelay\tready\tconsumers\ttotal\theld")
	for _, q := range r.Queues {
		delay := "-"
		if q.Delay > 0 {
			delay = delayName(q.Delay)
		}
		ready := q.Ready.String()
		if q.Missing {
			ready = "missing"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", q.Name, q.Role, delay, ready, q.Consumers, q.Total, q.Held)
	}
	_ = w.Flush() // a strings.Builder does not fail
	if r.ManagementErr != nil {
		fmt.Fprintf(&b, "counts are from AMQP alone where they say so: %v\n", r.ManagementErr)
	}
	return b.String()
}
