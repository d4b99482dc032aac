package operate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/excerpt"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/policies"
	"github.com/millpond-go/millpond/topology"
)

// Report is the result of Inspect.
type Report struct {
	// Queue is the queue of the plan.
	Queue string
	// Queues are that queue, its wait queues by ascending delay, and the queues that keep messages.
	Queues []QueueReport
	// ManagementErr says why the management API has not answered, or not completely; nil where it
	// has, or where none is configured.
	ManagementErr error
}

// QueueReport is one queue of a Report. Where several queues share a wait queue (Shared, Levels),
// its counts are the counts of all of them.
type QueueReport struct {
	Name string
	Role Role
	// Delay of a wait queue, else zero.
	Delay time.Duration
	// Missing says that the broker has no such queue, or cannot reach it: AMQP does not tell the two
	// apart.
	Missing bool
	// Ready counts the messages that could be delivered, or that wait; Consumers the consumers. Both
	// are from AMQP; a quorum queue may count some seconds late.
	Ready, Consumers Count
	// Total counts all messages, also unacked and held ones. Held counts messages whose wait is over
	// and that the broker keeps because it cannot place them. AMQP shows neither; both are from the
	// management API, seconds late.
	Total, Held Count
}

// Role is the purpose of a queue in a plan.
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
	// RoleLine keeps the messages that wait in the order of their keys; see inorder.Strategy.
	RoleLine Role = "line"
)

// Source says where a count came from.
type Source string

const (
	// SourceAMQP is a passive declare, which does not see unacked and held messages.
	SourceAMQP Source = "amqp"
	// SourceManagement is the management API: all messages, seconds late.
	SourceManagement Source = "management"
)

// Count is a number of messages or consumers with its source.
type Count struct {
	// N is -1 where it is not known.
	N int
	// Source is empty where N is not known.
	Source Source
}

var unknown = Count{N: -1}

// Known reports whether the number is known.
func (c Count) Known() bool { return c.Source != "" }

// String returns the number with its source, or "-".
func (c Count) String() string {
	if !c.Known() {
		return "-"
	}
	return fmt.Sprintf("%d (%s)", c.N, c.Source)
}

// Inspect counts the messages and consumers of every queue of a plan. It changes nothing. It ends
// within ctx, and after 90 s at the latest. Where dead letters go to an exchange of the user, their
// queue is not known here.
//
// A management API that does not answer is no error: the report says so.
func (o *Operator) Inspect(ctx context.Context, plan topology.Plan) (Report, error) {
	report := Report{Queue: plan.Queue}
	err := errEmptyPlan
	if plan.Queue != "" {
		err = o.call(ctx, func(ctx context.Context, conn *link.Conn) error {
			return report.count(ctx, conn, o.manager(ctx), plan)
		})
	}
	if err != nil {
		return Report{}, fmt.Errorf("inspect queue %q: %w", plan.Queue, err)
	}
	return report, nil
}

// Count counts the ready messages and the consumers of queues by AMQP, by the names of the queues.
// A queue that does not exist, or cannot be reached, is not in the result. It ends within ctx, and
// after 90 s at the latest.
func (o *Operator) Count(
	ctx context.Context, queues ...string,
) (counted map[string]amqp.Queue, err error) {
	err = o.call(ctx, func(ctx context.Context, conn *link.Conn) (err error) {
		counted, err = audit.PassiveAll(ctx, conn.Do, queues)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("count queues %s: %w", several(queues), err)
	}
	return counted, nil
}

var errEmptyPlan = errors.New("the plan is empty: use topology.PlanFor")

func (r *Report) count(
	ctx context.Context, conn *link.Conn, m *policies.Manager, plan topology.Plan,
) error {
	members := plan.Audited().Members()
	var names []string
	for _, member := range members {
		names = append(names, member.Name)
	}
	counted, err := audit.PassiveAll(ctx, conn.Do, names)
	if err != nil {
		return fmt.Errorf("count queues %s: %w", several(names), err)
	}
	for _, member := range members {
		q := QueueReport{
			Name: member.Name, Role: Role(member.Role), Delay: member.Delay,
			Ready: unknown, Consumers: unknown, Total: unknown, Held: unknown,
		}
		if found, there := counted[member.Name]; there {
			q.Ready = Count{N: found.Messages, Source: SourceAMQP}
			q.Consumers = Count{N: found.Consumers, Source: SourceAMQP}
		} else {
			q.Missing = true
		}
		if info, ok := m.Queue(member.Name); ok {
			q.Total, q.Held = managementCount(info.Messages), managementCount(info.Held)
		}
		r.Queues = append(r.Queues, q)
	}
	if m != nil {
		r.ManagementErr = m.Err
	}
	return nil
}

func managementCount(n *int) Count {
	if n == nil {
		return unknown
	}
	return Count{N: *n, Source: SourceManagement}
}

// String returns the report as a table that names the source of each count. Characters that are
// not printable are escaped.
func (r Report) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "queue\trole\tdelay\tready\tconsumers\ttotal\theld")
	for _, q := range r.Queues {
		delay := "-"
		if q.Delay > 0 {
			delay = audit.DelayText(q.Delay)
		}
		ready := q.Ready.String()
		if q.Missing {
			ready = "missing"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			excerpt.OneLine(q.Name), q.Role, delay, ready, q.Consumers, q.Total, q.Held)
	}
	_ = w.Flush() // a strings.Builder does not fail
	if r.ManagementErr != nil {
		fmt.Fprintf(&b, "counts are from AMQP alone where they say so: %s\n",
			excerpt.OneLine(r.ManagementErr.Error()))
	}
	return b.String()
}
