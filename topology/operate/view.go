package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/excerpt"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/management"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// View is what millpond has in a virtual host at one time. It is plain data.
//
// A wait queue is known by the arguments that topology.WaitQueue and all strategies set. Arguments
// and bindings say where its messages return to, after which delay. A name decides in four
// places, because the broker shows nothing else: the attempt of PerAttempt, the queue that a wait
// queue belongs to where several queues have the same Via, the dead-letter queue <queue>.dlq, and
// the stranded queue <prefix>.stranded whose exchange is gone.
//
// The broker does not show everything. Unclear names it:
//
//   - which wait queues belong to the policy that a service has today: all of them are listed;
//   - the dead-letter queue where a service names its own. Nothing but the headers of a letter
//     names the main queue; see ViewOptions.Owners, and WithDead. A queue that is not matched is in
//     Unclaimed;
//   - the queue that uses a wait queue with a name of its user's, where several have the same Via;
//   - the Tolerance of Levels, and whether an integer argument was an int32: it is an int64;
//   - the queues that use levels of a version before v0.1.0, which routed by headers;
//   - the wait queues of a strategy that sets other arguments than topology.WaitQueue;
//   - names that are not UTF-8, which JSON cannot hold.
type View struct {
	Vhost string
	// Mains are the queues that wait queues lead to, and those with a line, by name.
	Mains []Main `json:"queues"`
	// Stranded are the queues that keep messages whose own queue has vanished, by name. Where the
	// exchange before one is gone, its name and its arguments tell; Unclear says so.
	Stranded []Queue
	// Orphans are wait queues whose messages reach no queue when their wait ends, by name.
	Orphans []Orphan
	// Unclaimed are other queues with the arguments of a dead-letter queue and without a consumer, by
	// name: the broker does not show whose letters they keep. A queue without retries may have the
	// same arguments.
	Unclaimed []Queue
	// Brakes are the brakes of the services, by name. Stopped are those that are stopped, if
	// ViewOptions.Brakes asks for them.
	Brakes  []Brake
	Stopped []header.BrakeState
	// Gone are the messages that wait for a queue that does not exist, by the time of the first. They
	// need ViewOptions.Trouble or Messages. Looked is when they were looked at.
	Gone   []Gone    `json:",omitempty"`
	Looked time.Time `json:",omitzero"`
	// Waiting are all messages that wait, each with the queue that it waits for, also if that is gone,
	// Strays the messages of Stranded. They need ViewOptions.Messages.
	Waiting []Waiter          `json:",omitempty"`
	Strays  []StrandedMessage `json:",omitempty"`
	// Unclear is everything that the broker does not tell, and all that could not be read, and why.
	Unclear []Unclear

	queues    map[string]management.Object // all, for WithDead; nil if a queue does more than keep
	leads     map[string]lead              // of the wait queues
	hiddenErr error                        // of the look at messages for queues that are gone
	asked     map[string]bool              // wait queues that such a look has seen with messages

	brakesKnown bool // Stopped was asked for
}

// Brake is a brake of the services.
type Brake struct {
	Name string
	// Queues are those that the processes with the brake consume, or have consumed since they
	// connected, by name. It is empty where no process is up, and of a process with a version before
	// v0.1.0.
	Queues []string
}

// QueuesOf returns the queues of a brake.
func (v View) QueuesOf(brake string) []string {
	for _, b := range v.Brakes {
		if b.Name == brake {
			return b.Queues
		}
	}
	return nil
}

// Empty reports whether nothing in the vhost is surely millpond's. There may be Unclaimed queues.
func (v View) Empty() bool {
	return len(v.Mains) == 0 && len(v.Stranded) == 0 && len(v.Orphans) == 0
}

// Main returns a queue of Mains.
func (v View) Main(queue string) (Main, bool) {
	i, found := slices.BinarySearchFunc(v.Mains, queue, func(m Main, name string) int {
		return strings.Compare(m.Name, name)
	})
	if !found {
		return Main{}, false
	}
	return v.Mains[i], true
}

// Waits returns a plan that has all wait queues, each once and by delay, also those whose queue is
// gone. With it Operator.Waiting returns all messages that wait in the vhost, each with the
// queue that it waits for.
func (v View) Waits() (all topology.Plan) {
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

// Main is a queue whose messages wait and return to it.
type Main struct {
	Queue
	// Waiting counts the messages of its wait queues and its line, DeadLetters those of its
	// dead-letter queues. WaitingShared says that other queues use the same wait queues: Waiting
	// counts their messages, too.
	Waiting, DeadLetters Count
	WaitingShared        bool
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
	// Causes are the dead letters of Plan.Dead by cause, Keys the state of Line, and Findings those of
	// Verify. They need ViewOptions.Messages; without it Findings are the critical ones of policies. A
	// dead-letter queue of several queues has its Causes at the first of them.
	Causes   []Group     `json:",omitempty"`
	Keys     *OrderState `json:",omitempty"`
	Findings []Finding   `json:",omitempty"`
	// Plan has all of Waits, with the arguments that the broker has. Its Levels have the default
	// Tolerance, which is not on the broker. Its Dead is empty where the dead-letter queue is unknown.
	Plan topology.Plan `json:"-"`
	// PlanErr is the error of topology.ValidatePlan for Plan. Then Verify refuses the plan, and other
	// methods of Operator take it.
	PlanErr error `json:"-"`
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
	// ByLetter: its oldest message is a dead letter whose headers name the main queue; see
	// ViewOptions.Owners.
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

// Unclear is one thing that the broker does not tell.
type Unclear struct {
	// Queue is the main queue that it is about; empty for the vhost.
	Queue string
	// Text is a sentence that names the object.
	Text string
}

// String returns the sentence.
func (u Unclear) String() string { return excerpt.OneLine(u.Text) }

// ViewOptions say what View reads beside the lists of the management API.
type ViewOptions struct {
	// Exact counts the ready messages and the consumers of all queues that are found by AMQP, because
	// the management API counts seconds late. Default: false.
	Exact bool
	// Owners looks at the oldest message of queues that may keep dead letters and have no consumer,
	// with Peek: it tells which queue's letters a queue with a name of your own keeps. A look is not
	// done where Peek is not safe. Default: false.
	Owners bool
	// Brakes asks which brakes are stopped. The processes answer within a second. Default: false.
	Brakes bool
	// Trouble looks behind the counts, as Waiting does: which messages wait for a queue that is gone.
	// It looks at wait queues of a minute or longer that several queues may use, or that lead to none.
	// Default: false.
	Trouble bool
	// Keys asks which keys are blocked, as Order does. Default: false.
	Keys bool
	// Last is an earlier View of the vhost. What it has found for Trouble and Keys is taken over where
	// they are false. Default: nil.
	Last *View
	// Messages looks at all messages that wait, are dead or are stranded, at the keys that wait, and
	// verifies each plan, as the methods of Operator do. At most 10 000 stranded messages of a queue
	// are kept. Default: false.
	Messages bool
}

// View asks the management API what millpond has in the virtual host. It reads queues and exchanges
// in pages, and the bindings of exchanges that may belong to a strategy. It changes nothing. Of
// 50 000 queues with 200 main queues it needs under 20 MiB while it reads. Counts are seconds old,
// and the broker counts a new queue some seconds late.
//
// A virtual host without millpond gives an empty View and no error. An error means that nothing is
// known. Unclear names the rest that could not be seen. View ends within ctx.
func (o *Operator) View(ctx context.Context, options ViewOptions) (View, error) {
	v, err := o.view(ctx, options)
	if err != nil {
		return View{}, fmt.Errorf("look at vhost %q: %w", o.vhost, err)
	}
	return v, ctx.Err()
}

// ManagementView returns the View without options by the management API alone, without an AMQP
// connection: for a broker that refuses AMQP or does not answer. url and opts are those of Open.
// The errors are those of View, and of options that Open refuses.
func ManagementView(ctx context.Context, url string, opts ...Option) (View, error) {
	o := &Operator{}
	if err := o.configure(url, opts); err != nil {
		return View{}, fmt.Errorf("look at a vhost: %w", err)
	}
	return o.View(ctx, ViewOptions{})
}

func (o *Operator) view(ctx context.Context, options ViewOptions) (v View, err error) {
	m := o.manager(ctx)
	if m == nil {
		return v, errors.New("only the management API shows its queues: " + nameManagement)
	}
	if m.Err != nil {
		return v, m.Err
	}
	seen, err := look(ctx, m, o.vhost)
	if err != nil {
		return v, err
	}
	found := seen.derive()
	if found.dead(); m.Err != nil {
		return v, m.Err
	}
	if options.Owners {
		if err := found.peek(ctx, o); err != nil {
			return v, err
		}
	}
	v = found.result()
	if options.Exact {
		v.unread("", "counts of now", v.count(ctx, o))
	}
	if options.Brakes {
		states, err := o.brakeStates(ctx, m.API, v.brakeNames())
		v.unread("", "stopped brakes", err)
		v.brakesKnown = err == nil
		v.Stopped = append(v.Stopped, slices.DeleteFunc(states, func(b header.BrakeState) bool {
			return !b.Stopped
		})...)
	}
	if options.Messages {
		v.look(ctx, o)
	} else {
		v.lookBehind(ctx, o, options)
	}
	for i := range v.Mains {
		v.Mains[i].sum()
	}
	return v, nil
}

func (v View) brakeNames() (names []string) {
	for _, b := range v.Brakes {
		names = append(names, b.Name)
	}
	return names
}

// maxStrays bounds the messages of a stranded queue.
const maxStrays = 10_000

// look reads all messages.
func (v *View) look(ctx context.Context, o *Operator) {
	seen := map[string]bool{}
	for i := range v.Mains {
		m := &v.Mains[i]
		report, err := o.Verify(ctx, m.Plan)
		if err == nil {
			m.Findings = report.Findings
		}
		v.unread(m.Name, "all findings", err)
		if dead, err := deadQueue(m.Plan); err == nil && !seen[dead] {
			seen[dead] = true
			m.Causes, err = GroupByError(o.Dead(ctx, m.Plan, Filter{}, 0))
			v.unread(m.Name, "all dead letters", err)
		}
		if m.Line != nil {
			v.readKeys(ctx, o, m)
		}
	}
	var err error
	v.Waiting, err = o.Waiting(ctx, v.Waits(), Filter{})
	v.unread("", "all messages that wait", err)
	v.Gone, v.Looked = v.GoneOf(v.Waiting), time.Now()
	for _, q := range v.Stranded {
		for m, err := range o.Stranded(ctx, q.Name, Filter{}, maxStrays) {
			if v.unread("", "all messages of queue "+strconv.Quote(q.Name), err); err == nil {
				v.Strays = append(v.Strays, m)
			}
		}
	}
}

// unread notes why something could not be read, if there is an error.
func (v *View) unread(queue, what string, err error) {
	if err != nil {
		text := fmt.Sprintf("%s could not be read: %v", what, err)
		v.Unclear = append(v.Unclear, Unclear{Queue: queue, Text: text})
	}
}

// count takes over the counts of AMQP. To the ready messages of a queue it adds those that AMQP
// does not show. Before the management API has counted, the sum of no ready message is not known.
func (v *View) count(ctx context.Context, o *Operator) error {
	queues := v.all()
	names := make([]string, len(queues))
	for i, q := range queues {
		names[i] = q.Name
	}
	slices.Sort(names)
	return o.call(ctx, func(ctx context.Context, conn *link.Conn) error {
		counted, _, err := audit.PassiveAll(ctx, conn.Do, slices.Compact(names))
		for _, q := range queues {
			if now, there := counted[q.Name]; there {
				q.Ready, q.Consumers = amqpCount(now.Messages), amqpCount(now.Consumers)
				if q.Total.Known() || now.Messages > 0 {
					q.Total = q.Ready
					q.Total.N += max(q.Held.N, 0)
					// A queue that keeps messages has none in progress without a consumer: the API still
					// counts those of a look that is over, for some seconds.
					if _, main := v.Main(q.Name); main || now.Consumers > 0 {
						q.Total.N += max(q.Unacked.N, 0)
					}
				}
			}
		}
		return err
	})
}

// all are the queues that are surely millpond's. One that several queues share is there several
// times.
func (v *View) all() (queues []*Queue) {
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

// InLine counts the messages of the line without the one that the process that leads keeps there,
// and without the questions for Keys, which the broker counts for some seconds.
func (m *Main) InLine() Count {
	n := m.Line.Total
	if n.N > 0 {
		n.N--
	}
	if m.Keys != nil && n.N-m.Keys.Messages > 0 && n.N-m.Keys.Messages <= mostAsked {
		n.N = m.Keys.Messages
	}
	return n
}

// mostAsked is how many questions a line may have at once: those of the page and of the tool.
const mostAsked = 2

// sum adds the counts of the queue's parts.
func (m *Main) sum() {
	none := Count{Source: SourceManagement}
	m.Waiting, m.DeadLetters = none, none
	for _, w := range m.Waits {
		m.Waiting = m.Waiting.Plus(w.Total)
		m.WaitingShared = m.WaitingShared || w.Shared
	}
	if m.Line != nil {
		m.Waiting = m.Waiting.Plus(m.InLine())
	}
	for _, d := range m.Dead {
		m.DeadLetters = m.DeadLetters.Plus(d.Total)
	}
	if len(m.Dead) == 0 {
		m.DeadLetters = unknown
	}
}

// ManagementURL returns where the management API of a broker is by default: on the host of the AMQP
// URL and with the same user and password, at https and port 15671 for amqps, at http and port
// 15672 for amqp. Plain http sends the password unencrypted: beyond this machine it is an error,
// unless plain is true. No error quotes the password.
func ManagementURL(amqpURL string, plain bool) (string, error) {
	if err := link.CheckURL(amqpURL); err != nil {
		return "", fmt.Errorf("management API: %w", err)
	}
	from, err := amqp.ParseURI(amqpURL)
	if err != nil {
		return "", fmt.Errorf("management API: the AMQP URL cannot be parsed")
	}
	u := url.URL{
		Scheme: "https", Host: net.JoinHostPort(from.Host, "15671"),
		User: url.UserPassword(from.Username, from.Password),
	}
	if from.Scheme == "amqps" {
		return u.String(), nil
	}
	loopback := from.Host == "localhost" || net.ParseIP(from.Host).IsLoopback()
	if !plain && !loopback {
		return "", fmt.Errorf("management API: the AMQP URL of host %q is not encrypted, and http "+
			"would send the password in the clear: name an https address, as in "+
			"https://user:password@%s, or ask for plain http", from.Host, u.Host)
	}
	u.Scheme, u.Host = "http", net.JoinHostPort(from.Host, "15672")
	return u.String(), nil
}
