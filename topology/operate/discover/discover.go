package discover

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millpond-go/millpond/internal/excerpt"
	"github.com/millpond-go/millpond/internal/management"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// Vhost is what millpond has in a virtual host. It is plain data.
type Vhost struct {
	Name string
	// Mains are the queues that wait queues lead to, and those with a line, by name.
	Mains []Main
	// Stranded are the queues that keep messages whose own queue has vanished, by name. Where the
	// exchange before one is gone, its name and its arguments tell; Unclear says so.
	Stranded []Queue
	// Orphans are wait queues whose messages reach no queue when their wait ends, by name.
	Orphans []Orphan
	// Unclaimed are other queues with the arguments of a dead-letter queue and without a consumer, by
	// name: the broker does not show whose letters they keep. A queue without retries may have the
	// same arguments.
	Unclaimed []Queue
	// Brakes are the names of the brakes of the services, sorted; operate.Operator.Brake returns the
	// state of one.
	Brakes []string
	// Unclear is everything that the broker does not tell.
	Unclear []Unclear

	queues map[string]management.Object // all, for WithDead; nil if a queue does more than keep
}

// Empty reports whether nothing in the vhost is surely millpond's. There may be Unclaimed queues.
func (v Vhost) Empty() bool {
	return len(v.Mains) == 0 && len(v.Stranded) == 0 && len(v.Orphans) == 0
}

// Main returns a queue of Mains.
func (v Vhost) Main(queue string) (Main, bool) {
	i, found := slices.BinarySearchFunc(v.Mains, queue, func(m Main, name string) int {
		return strings.Compare(m.Name, name)
	})
	if !found {
		return Main{}, false
	}
	return v.Mains[i], true
}

// Waits returns a plan that has all wait queues, each once and by delay, also those whose queue is
// gone. With it operate.Operator.Waiting returns all messages that wait in the vhost, each with the
// queue that it waits for.
func (v Vhost) Waits() (all topology.Plan) {
	seen := map[string]bool{}
	add := func(q topology.Queue) {
		if q.Delay > 0 && !seen[q.Name] {
			seen[q.Name], all.Queues = true, append(all.Queues, q)
		}
	}
	for _, m := range v.Mains {
		for _, q := range m.Plan.Queues {
			add(q)
		}
	}
	for _, o := range v.Orphans {
		add(topology.Queue{Name: o.Name, Delay: o.Delay})
	}
	slices.SortStableFunc(all.Queues, func(a, b topology.Queue) int {
		return cmp.Compare(a.Delay, b.Delay)
	})
	return all
}

// Queue is a queue with its counts, which are seconds old, except for those of WithCounts. A count
// that the broker has not made yet is not Known, and is never zero for that reason.
type Queue struct {
	Name string
	// Type is "classic" or "quorum"; of a main queue it may be "stream".
	Type topology.QueueType
	// Ready counts messages that could be delivered or that wait, Unacked the messages that consumers
	// hold, Total all of them. Held counts messages whose wait is over and that the broker keeps,
	// because it cannot place them; only quorum queues hold messages.
	Ready, Unacked, Total, Held operate.Count
	Consumers                   operate.Count
	// Oldest is the time since which the oldest message is in a queue that keeps messages, by the
	// message's own headers. Zero means unknown, and JSON leaves it out then: see WithLooks.
	Oldest time.Time `json:",omitzero"`
}

// Main is a queue whose messages wait and return to it.
type Main struct {
	Queue
	// Waits are the wait queues that lead to the queue, by delay, also the wait queues of an earlier
	// policy: the broker does not show which of them the service uses today.
	Waits []Wait
	// Dead are the queues that keep its dead letters, as far as that is known.
	Dead []Dead
	// Stranded are the names of the queues that catch its messages if it vanishes.
	Stranded []string
	// Vias are the exchanges of the user that messages return through, by name, also where Plan.Via is
	// nil because there are several ways back.
	Vias []string
	// Line is the queue in which its messages wait in the order of their keys, as with
	// inorder.Strategy; nil if they are handled in no order.
	Line *Queue `json:",omitempty"`
	// Clients are its consumers.
	Clients []Client
	// Plan has all of Waits, with the arguments that the broker has. Its Levels have the default
	// Tolerance, which is not on the broker. Its Dead is empty where the dead-letter queue is unknown.
	Plan topology.Plan
	// PlanErr is the error of topology.ValidatePlan for Plan. Then Verify refuses the plan, and other
	// methods of operate.Operator take it.
	PlanErr error
}

// Strategies returns InOrder if the queue has a line, and the distinct strategies of its wait
// queues.
func (m Main) Strategies() []Strategy {
	var found []Strategy
	if m.Line != nil {
		found = append(found, InOrder)
	}
	for _, w := range m.Waits {
		if !slices.Contains(found, w.Strategy) {
			found = append(found, w.Strategy)
		}
	}
	return found
}

// Strategy names a strategy of package topology.
type Strategy string

const (
	// PerQueue is topology.PerQueue, or a strategy of your own with the same queues.
	PerQueue Strategy = "PerQueue"
	// PerAttempt is topology.PerAttempt.
	PerAttempt Strategy = "PerAttempt"
	// Shared is topology.Shared.
	Shared Strategy = "Shared"
	// Levels is topology.Levels.
	Levels Strategy = "Levels"
	// InOrder is inorder.Strategy.
	InOrder Strategy = "InOrder"
	// Unknown is a strategy of your own, or one of several that look the same on the broker.
	Unknown Strategy = "unknown"
)

// Wait is a wait queue as one main queue uses it.
type Wait struct {
	Queue
	// Delay is how long a message waits in the queue.
	Delay    time.Duration
	Strategy Strategy
	// Shared says that the wait queue leads to other queues, too, so that its counts are the counts of
	// all of them.
	Shared bool
}

// Dead is a queue that keeps dead letters of a main queue.
type Dead struct {
	Queue
	Evidence Evidence
}

// Evidence says how a queue is known to keep the dead letters of another.
type Evidence string

const (
	// ByName: it has the default name, <queue>.dlq, and the broker shows nothing that contradicts.
	ByName Evidence = "name"
	// ByLetter: its oldest message is a dead letter whose headers name the main queue; see WithLooks.
	ByLetter Evidence = "letter"
	// ByArgument: the arguments of the main queue lead messages there that the broker itself
	// dead-letters.
	ByArgument Evidence = "argument"
	// ByPolicy is ByArgument for a policy.
	ByPolicy Evidence = "policy"
)

// Orphan is a wait queue whose messages reach no queue.
type Orphan struct {
	Wait
	// For is the name of the queue that is gone; empty where the broker does not show it.
	For string
	// Why is one sentence without a dot.
	Why string
}

// Client is a consumer of a main queue.
type Client struct {
	// Tag is the consumer tag, Connection the broker's name of the connection, and User its user.
	// Connection and User are empty where the broker has not looked yet.
	Tag, Connection, User string
}

// Unclear is one thing that the broker does not tell.
type Unclear struct {
	// Queue is the main queue that it is about; empty for the vhost.
	Queue string
	// Text is a sentence that names the object.
	Text string
}

// String returns the sentence.
func (u Unclear) String() string { return excerpt.OneLine(u.Text) }

// Option changes Find.
type Option func(*options) error

type options struct {
	cluster  string
	tls      *tls.Config
	operator *operate.Operator
	counter  *operate.Operator
}

// WithTLS sets the authorities and the client certificate for https.
//
// Default: the authorities of the system.
func WithTLS(config *tls.Config) Option {
	return func(o *options) error {
		o.tls = config
		return nil
	}
}

// WithCluster names the cluster that AMQP leads to, as operate.Operator.Cluster returns it. Find
// then refuses the API of another broker, for example on the same host. An empty name is any
// cluster.
//
// Default: any cluster.
func WithCluster(name string) Option {
	return func(o *options) error {
		o.cluster = name
		return nil
	}
}

// WithLooks lets operator look at the oldest message of queues that keep messages and have no
// consumer, with Peek: it tells since when a dead letter or a stranded message is there, and which
// queue's letters a queue with a name of your own keeps. A look is not done where Peek is not safe.
// Wait queues and main queues are not looked at.
//
// Default: no message is looked at.
func WithLooks(operator *operate.Operator) Option {
	return func(o *options) error {
		if operator == nil {
			return errors.New("WithLooks: the operator is nil")
		}
		o.operator = operator
		return nil
	}
}

// WithCounts lets operator count the ready messages and the consumers of all queues that are found,
// because the management API counts seconds late. Where it cannot, Unclear says so.
//
// Default: all counts are of the management API.
func WithCounts(operator *operate.Operator) Option {
	return func(o *options) error {
		if operator == nil {
			return errors.New("WithCounts: the operator is nil")
		}
		o.counter = operator
		return nil
	}
}

// Find asks the management API at managementURL what millpond has in a vhost. The URL is as
// operate.WithManagement takes it: http or https, with a user and its password, which appear in no
// error. The user needs the tag monitoring and permissions in the vhost, of which ^$ is enough.
//
// A vhost without millpond gives an empty Vhost and no error. An error means that nothing is known.
// Unclear names the rest that could not be seen. Find ends within ctx.
func Find(
	ctx context.Context, managementURL, vhost string, opts ...Option,
) (Vhost, error) {
	var o options
	var problems []error
	for i, option := range opts {
		if option == nil {
			problems = append(problems, fmt.Errorf("option %d is nil", i+1))
			continue
		}
		problems = append(problems, option(&o))
	}
	api, err := management.New(managementURL, o.tls)
	if err := errors.Join(append(problems, err)...); err != nil {
		return Vhost{}, fmt.Errorf("discover: %w", err)
	}
	if err := api.IsOf(ctx, o.cluster); err != nil {
		return Vhost{}, fmt.Errorf("discover: management API %w", err)
	}
	seen, err := look(ctx, api, vhost)
	if err != nil {
		return Vhost{}, fmt.Errorf("discover vhost %q: %w", vhost, err)
	}
	found := seen.derive()
	found.readClients(ctx, api)
	if err := found.dead(ctx, api); err != nil {
		return Vhost{}, fmt.Errorf("discover vhost %q: %w", vhost, err)
	}
	if o.operator != nil {
		if err := found.peek(ctx, o.operator); err != nil {
			return Vhost{}, fmt.Errorf("discover vhost %q: %w", vhost, err)
		}
	}
	v := found.result()
	if o.counter != nil {
		if err := v.count(ctx, o.counter); err != nil {
			v.Unclear = append(v.Unclear, Unclear{Text: fmt.Sprintf("counts are seconds old: %v", err)})
		}
	}
	return v, ctx.Err()
}

// count takes over the counts of AMQP. To the ready messages of a queue it adds those that AMQP
// does not show. Before the management API has counted, the sum of no ready message is not known.
func (v *Vhost) count(ctx context.Context, operator *operate.Operator) error {
	queues := v.all()
	names := make([]string, len(queues))
	for i, q := range queues {
		names[i] = q.Name
	}
	slices.Sort(names)
	counted, err := operator.Count(ctx, slices.Compact(names)...)
	for _, q := range queues {
		now, there := counted[q.Name]
		if !there {
			continue
		}
		q.Ready = operate.Count{N: now.Messages, Source: operate.SourceAMQP}
		q.Consumers = operate.Count{N: now.Consumers, Source: operate.SourceAMQP}
		if q.Total.Known() || now.Messages > 0 {
			q.Total = q.Ready
			q.Total.N += max(q.Unacked.N, 0) + max(q.Held.N, 0)
		}
	}
	return err
}

// all are the queues that are surely millpond's. One that several queues share is there several
// times.
func (v *Vhost) all() (queues []*Queue) {
	for i := range v.Mains {
		m := &v.Mains[i]
		queues = append(queues, &m.Queue)
		for j := range m.Waits {
			queues = append(queues, &m.Waits[j].Queue)
		}
		for j := range m.Dead {
			queues = append(queues, &m.Dead[j].Queue)
		}
		if m.Line != nil {
			queues = append(queues, m.Line)
		}
	}
	for i := range v.Stranded {
		queues = append(queues, &v.Stranded[i])
	}
	for i := range v.Orphans {
		queues = append(queues, &v.Orphans[i].Queue)
	}
	return queues
}
