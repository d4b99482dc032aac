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
	"github.com/millpond-go/millpond/internal/management"
	"github.com/millpond-go/millpond/internal/policies"
	"github.com/millpond-go/millpond/topology"
)

// Report is the result of Inspect and Verify.
type Report struct {
	// Queue is the queue of the plan.
	Queue string
	// Queues are that queue, its wait queues by ascending delay, and the queues that keep messages.
	Queues []Queue
	// Findings are those of Verify.
	Findings []Finding
	// ManagementErr says why the management API has not answered, or not completely; nil where it
	// has, or where none is configured.
	ManagementErr error `json:"-"`
}

// Queue is a queue with its counts. A count that the broker has not made yet is not Known, and is
// never zero for that reason. The counts of a wait queue that several queues share (Shared, Levels)
// are the counts of all of them.
type Queue struct {
	Name string
	// Role in the plan of a Report; empty in a View.
	Role Role `json:",omitempty"`
	// Type is "classic" or "quorum"; of a main queue it may be "stream". It is empty where the
	// management API has not shown it.
	Type topology.QueueType `json:",omitempty"`
	// Delay is how long a message waits in a wait queue, else zero.
	Delay time.Duration
	// Missing says that the broker has no such queue, or cannot reach it: AMQP does not tell the two
	// apart.
	Missing bool
	// Ready counts the messages that could be delivered, or that wait; Consumers the consumers. In a
	// Report both are from AMQP; a quorum queue may count some seconds late.
	Ready, Consumers Count
	// Total counts all messages, Unacked those that consumers hold, and Held the messages whose wait
	// is over and that the broker keeps because it cannot place them; only quorum queues hold
	// messages. AMQP shows none of them; they are from the management API, seconds late.
	Total, Unacked, Held Count
	// In and Out are messages a second that came into a queue of a View, and deliveries to its
	// consumers, as the management API has averaged them; nil where they are not known.
	In, Out *float64 `json:",omitempty"`
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
	N int `json:"n"`
	// Source is empty where N is not known.
	Source Source `json:"source"`
}

var unknown = Count{N: -1}

func amqpCount(n int) Count { return Count{N: n, Source: SourceAMQP} }

// Known reports whether the number is known.
func (c Count) Known() bool { return c.Source != "" }

// Plus adds counts. The sum with an unknown count is unknown.
func (c Count) Plus(other Count) Count {
	if !c.Known() || !other.Known() {
		return unknown
	}
	c.N += other.N
	return c
}

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
			return report.count(ctx, conn.Do, o.manager(ctx), plan.Audited(), nil)
		})
	}
	if err != nil {
		return Report{}, fmt.Errorf("inspect queue %q: %w", plan.Queue, err)
	}
	return report, nil
}

var errEmptyPlan = errors.New("the plan is empty: use topology.PlanFor")

// count adds the queues of a plan, as AMQP and the management API show them, and calls see for
// each that exists, or with the reason why it cannot be reached. see may be nil.
func (r *Report) count(
	ctx context.Context, run audit.Runner, m *policies.Manager, plan audit.Plan,
	see func(q audit.Member, found amqp.Queue, refused error, info management.Queue, shown bool) error,
) error {
	members := plan.Members()
	names := make([]string, len(members))
	for i, member := range members {
		names[i] = member.Name
	}
	counted, refused, err := audit.PassiveAll(ctx, run, names)
	for i := 0; i < len(members) && err == nil; i++ {
		member, why := members[i], refused[names[i]]
		found, there := counted[member.Name]
		info, shown := m.Queue(member.Name)
		q := Queue{
			Name: member.Name, Role: Role(member.Role), Delay: member.Delay,
			Missing: audit.IsCode(why, amqp.NotFound), Type: topology.QueueType(info.Type),
			Ready: unknown, Consumers: unknown, Total: managementCount(info.Messages),
			Unacked: managementCount(info.Unacked), Held: managementCount(info.Held),
		}
		if there {
			q.Ready, q.Consumers = amqpCount(found.Messages), amqpCount(found.Consumers)
		}
		r.Queues = append(r.Queues, q)
		if see != nil {
			err = see(member, found, why, info, shown)
		}
	}
	if err != nil {
		return fmt.Errorf("check queues %s: %w", several(names), err)
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
