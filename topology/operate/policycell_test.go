package operate_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/management"
	"github.com/millpond-go/millpond/topology/operate"
)

const (
	// perService is the number of messages of each queue. Messages with an even number fail once and
	// succeed then, messages with an odd number fail twice and are dead-lettered.
	perService = 60
	// silence is how long a service may make no progress until its messages are counted.
	silence = time.Minute
	// toldSilence is the same where Verify has said that messages may be lost.
	toldSilence = 5 * time.Second
)

// The queues and exchanges of an administrator in the virtual host of a cell.
const (
	catchAll = "admin.catch"  // a fanout exchange, and the queue bound to it
	void     = "admin.void"   // a fanout exchange without a queue
	domain   = "admin.domain" // the exchange of the strategies with Via
	victim   = "victim"       // the queue of another service, to which every strategy has a way
)

var policyOfCells = backoff.List{time.Second}

// cell is a virtual host under one policy, with one service for each strategy.
type cell struct {
	t        *testing.T
	node     *testbroker.Node
	api      string
	vhost    string
	url      string
	services []*governed
	victim   *governed
}

// governed is one service, with the fate of each of its messages.
type governed struct {
	name, queue string
	config      rig.Config
	plan        topology.Plan
	service     *rig.Service
	// refusal is why the service has not started; nil as a rule.
	refusal error
	// critical are the critical findings of Verify, before the first message.
	critical []operate.Finding
	// entered are the payloads that the broker has confirmed to the producer.
	entered map[string]bool

	mu      sync.Mutex
	calls   map[string]int  // of the handler, by payload
	handled map[string]bool // by payload
	foreign map[string]bool // payloads of other queues that the handler saw
	dead    int             // how often a dead letter was confirmed
	changed time.Time       // when the service made progress last

	// What has become of messages that are neither handled nor dead letters, with their number.
	harm map[string]int
	// begun are its messages that have come to another service after its own handler had seen them.
	begun []string
}

// newCell makes the virtual host, its policies, and the queues and exchanges of the administrator.
func newCell(
	t *testing.T, node *testbroker.Node, api, vhost string, policy, operator map[string]any,
) *cell {
	t.Helper()
	g := &cell{t: t, node: node, api: api, vhost: vhost, url: node.URL() + vhost}
	testbroker.Put(t, api, map[string]any{}, "vhosts", vhost)
	t.Cleanup(func() { testbroker.Remove(t, api, "vhosts", vhost) })
	all := map[string]any{"configure": ".*", "write": ".*", "read": ".*"}
	testbroker.Put(t, api, all, "permissions", vhost, "guest")
	for kind, definition := range map[string]map[string]any{
		"policies": policy, "operator-policies": operator,
	} {
		if len(definition) > 0 {
			testbroker.SetPolicy(t, api, kind, vhost, "all", ".*", definition)
		}
	}
	g.change(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(catchAll, true, false, false, false, nil)
		return errors.Join(err,
			ch.ExchangeDeclare(catchAll, "fanout", true, false, false, false, nil),
			ch.ExchangeDeclare(void, "fanout", true, false, false, false, nil),
			ch.ExchangeDeclare(domain, "direct", true, false, false, false, nil),
			ch.QueueBind(catchAll, "", catchAll, false, nil))
	})
	return g
}

// change declares or deletes something as the administrator.
func (g *cell) change(f func(ch *amqp.Channel) error) {
	g.t.Helper()
	require.NoError(g.t, g.steadily(func() error {
		conn, err := amqp.Dial(g.url)
		if err != nil {
			return err
		}
		defer func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }()
		ch, err := conn.Channel()
		if err != nil {
			return err
		}
		return f(ch)
	}))
}

// steadily repeats f where the connection has ended: RabbitMQ 4.0 ends one by 541 at times, while
// other virtual hosts come and go on a busy machine.
func (g *cell) steadily(f func() error) (err error) {
	g.t.Helper()
	rig.WaitFor(g.t, "a connection that lasts", func() bool {
		err = f()
		var ended *amqp.Error
		return !errors.As(err, &ended) ||
			ended.Code != amqp.InternalError && ended.Code != amqp.ChannelError
	})
	return err
}

// cellStrategies are the strategies of every cell, side by side.
func cellStrategies() map[string]topology.Strategy {
	return map[string]topology.Strategy{
		"quorum":           topology.PerQueue{},
		"classic":          topology.PerQueue{Type: topology.Classic},
		"returning":        topology.PerQueue{Via: []string{domain}, Prefix: "returning"},
		"attempt":          topology.PerAttempt{},
		"shared":           topology.Shared{Prefix: "shared"},
		"shared classic":   topology.Shared{Prefix: "old-shared", Type: topology.Classic},
		"shared returning": topology.Shared{Prefix: "shared-returning", Via: []string{domain}},
		"levels":           topology.Levels{Prefix: "levels", Max: 2 * time.Second},
		"levels classic": topology.Levels{
			Prefix: "old-levels", Type: topology.Classic, Max: 2 * time.Second,
		},
	}
}

// declare declares the queue of a service and its plan, and asks Verify about it.
func (g *cell) declare(name, queue string, strategy topology.Strategy) *governed {
	t := g.t
	t.Helper()
	s := &governed{
		name: name, queue: queue, calls: map[string]int{}, handled: map[string]bool{},
		foreign: map[string]bool{}, entered: map[string]bool{}, harm: map[string]int{},
		changed: time.Now(), plan: rig.PlanFor(t, queue, strategy, policyOfCells),
	}
	args := amqp.Table{"x-queue-type": "classic"}
	if !strings.HasSuffix(name, "classic") { // no finding without a policy
		args = amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1 << 30)}
	}
	observer := middleware.ObserverFunc(s.observe)
	management := topology.WithManagement(management.At(g.api))
	s.config = rig.Config{
		URL: g.url, Queue: queue, Keep: true, Strategy: strategy, Policy: policyOfCells,
		Configure: rig.WithQueue(args), Forgotten: true,
		ClientOptions:     []topology.Option{management, topology.WithObserver(observer)},
		SubscriberOptions: []topology.SubscriberOption{topology.WithDrainTimeout(2 * time.Second)},
		RetryOptions:      []middleware.Option{middleware.WithObserver(observer)},
	}
	cfg := rig.QueueConfig(g.url)
	s.config.Configure(&cfg)
	sub, err := rig.OpenClient(t, g.url, strategy, management).
		NewSubscriber(cfg, topology.ForPolicy(policyOfCells))
	require.NoError(t, err)
	s.refusal = g.steadily(func() error { return sub.SubscribeInitialize(queue) })
	if s.refusal != nil {
		return s
	}
	if s.plan.Via != nil {
		g.change(func(ch *amqp.Channel) error { return ch.QueueBind(queue, queue, domain, false, nil) })
	}
	o := rig.OpenOperator(t, g.url, operate.WithManagement(g.api))
	var report operate.Report
	require.NoError(t, g.steadily(func() (err error) {
		report, err = o.Verify(t.Context(), s.plan)
		return err
	}))
	s.critical = slices.DeleteFunc(report.Findings, func(f operate.Finding) bool {
		return f.Severity != operate.Critical
	})
	return s
}

// serve consumes the queue. The first message is held by hold, each time that it comes.
func (s *governed) serve(t *testing.T, hold func(ctx context.Context, calls int)) {
	t.Helper()
	if s.refusal != nil {
		return
	}
	s.config.Handle = func(msg *message.Message) error { return s.handle(msg, hold) }
	s.service = rig.Start(t, s.config)
}

// observe counts the events of the library.
func (s *governed) observe(_ context.Context, e middleware.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e.Kind {
	case middleware.EventDeadLettered:
		s.dead++
	case middleware.EventRetried, middleware.EventHandled:
	default:
		return
	}
	s.changed = time.Now()
}

// handle fails the messages that are to fail.
func (s *governed) handle(
	msg *message.Message, hold func(ctx context.Context, calls int),
) error {
	id := string(msg.Payload)
	queue, number, _ := strings.Cut(id, "/")
	n, err := strconv.Atoi(number)
	s.mu.Lock()
	if queue != s.queue || err != nil {
		s.foreign[id] = true
		s.mu.Unlock()
		return nil
	}
	s.calls[id]++
	calls := s.calls[id]
	s.changed = time.Now()
	s.mu.Unlock()
	if n == 0 && hold != nil {
		hold(msg.Context(), calls)
	}
	if n%2 == 1 || middleware.Attempt(msg.Context()) == 1 {
		return rig.ErrFailed
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handled[id] = true
	return nil
}

// callsOf returns how often the handler was called with a message.
func (s *governed) callsOf(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[s.id(n)]
}

func (s *governed) id(n int) string { return fmt.Sprintf("%s/%d", s.queue, n) }

// fill publishes the messages at once, and again each message that the broker refuses. A message
// that is refused for long has not entered.
func (s *governed) fill(t *testing.T, url string) {
	t.Helper()
	if s.refusal != nil {
		return
	}
	ch := testbroker.Channel(t, url)
	require.NoError(t, ch.Confirm(false))
	exchange := ""
	if s.plan.Via != nil {
		exchange = s.plan.Via.Exchanges[0]
	}
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	for taken := time.Now(); len(s.entered) < perService &&
		time.Since(taken) < toldSilence; <-time.After(50 * time.Millisecond) {
		confirms := map[string]*amqp.DeferredConfirmation{}
		for n := range perService {
			if id := s.id(n); !s.entered[id] {
				var err error
				confirms[id], err = ch.PublishWithDeferredConfirm(exchange, s.queue, true, false,
					rig.Message(id))
				require.NoError(t, err)
			}
		}
		for id, confirm := range confirms {
			ok, err := confirm.WaitContext(ctx)
			require.NoError(t, err)
			if ok {
				s.entered[id], taken = true, time.Now()
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = time.Now()
}

// done reports whether every message has come to its end, or no end is in sight.
func (s *governed) done() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	limit := silence
	if len(s.critical) > 0 {
		limit = toldSilence
	}
	return s.refusal != nil || time.Since(s.changed) > limit ||
		len(s.handled) == perService/2 && s.dead >= perService/2
}

// everyone returns all services of the virtual host.
func (g *cell) everyone() []*governed {
	if g.victim == nil {
		return g.services
	}
	return append(slices.Clone(g.services), g.victim)
}

// count stops the services, takes all messages out of all queues, and notes the fate of each
// message.
func (g *cell) count() {
	g.t.Helper()
	var stopped sync.WaitGroup
	owner, queues := map[string]string{}, map[string]bool{catchAll: true}
	for _, s := range g.everyone() {
		if s.service != nil {
			stopped.Go(s.service.Stop)
		}
		owner[s.queue], owner[s.plan.Dead.RoutingKey] = s.queue, s.queue
		queues[s.queue] = true
		for _, q := range s.plan.Queues {
			queues[q.Name] = true
		}
	}
	stopped.Wait()
	places := map[string][]string{} // queues where a message was, by its payload
	var held map[string]int
	for {
		found := g.drain(slices.Sorted(maps.Keys(queues)), places)
		if held != nil && found == 0 {
			break
		}
		held = map[string]int{}
		if g.missing(places) { // else the question is not worth a second of processor time
			held = g.held()
		}
	}
	for _, s := range g.everyone() {
		for id := range s.foreign {
			places[id] = append(places[id], s.queue)
		}
	}
	for _, s := range g.services {
		s.judge(places, held, owner)
	}
}

// judge notes what has become of the messages of a service that have not ended as they should.
func (s *governed) judge(
	places map[string][]string, held map[string]int, owner map[string]string,
) {
	if s.refusal != nil {
		s.harm["refused at the start: "+s.refusal.Error()]++
		return
	}
	lost := 0
	for n := range perService {
		id, at := s.id(n), places[s.id(n)]
		for _, queue := range at {
			if owner[queue] != "" && owner[queue] != s.queue {
				s.harm["to another service"]++
				if s.calls[id] > 0 {
					s.begun = append(s.begun, id+" in "+queue)
				}
			}
		}
		switch {
		case s.handled[id], slices.Contains(at, s.plan.Dead.RoutingKey):
		case !s.entered[id] && len(at) == 0:
			s.harm["refused"]++
		case len(at) == 0:
			lost++
		case owner[at[0]] == "" || owner[at[0]] == s.queue:
			s.harm["in "+at[0]]++
		}
	}
	for _, q := range s.plan.Queues {
		if kept := min(held[q.Name], lost); kept > 0 { // which of them the broker does not tell
			s.harm["held"] += kept
			lost -= kept
		}
	}
	if lost > 0 {
		s.harm["lost"] = lost
	}
	if more := len(s.handled) - perService/2; more > 0 {
		s.harm["handled that should be dead"] = more
	}
}

// missing reports whether a message of some service is in no queue, and was not handled.
func (g *cell) missing(places map[string][]string) bool {
	return slices.ContainsFunc(g.services, func(s *governed) bool {
		for id := range s.entered {
			if !s.handled[id] && len(places[id]) == 0 {
				return true
			}
		}
		return false
	})
}

// drain takes all messages out of queues, and returns their number.
func (g *cell) drain(queues []string, places map[string][]string) (found int) {
	g.t.Helper()
	conn, err := amqp.Dial(g.url)
	require.NoError(g.t, err)
	defer func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }()
	for _, name := range queues {
		ch, err := conn.Channel()
		require.NoError(g.t, err)
		for {
			d, ok, err := ch.Get(name, true)
			if err != nil || !ok {
				break // empty, or deleted by its policy
			}
			found++
			places[string(d.Body)] = append(places[string(d.Body)], name)
		}
		_ = ch.Close()
	}
	return found
}

var heldIn = regexp.MustCompile(`\{<<"([^"]*)">>,(\d+)\}`)

// held returns how many messages quorum queues keep because they cannot place them. AMQP counts
// them nowhere (F5), and the management API seconds late.
func (g *cell) held() map[string]int {
	g.t.Helper()
	said := g.node.Ctl(g.t, "eval", fmt.Sprintf(`[begin
		{ok, {_, {N, _}}, _} = ra:local_query(amqqueue:get_pid(Q), fun rabbit_fifo:query_stat_dlx/1),
		{element(4, amqqueue:get_name(Q)), N}
	end || Q <- rabbit_amqqueue:list(<<%q>>),
		amqqueue:get_type(Q) =:= rabbit_quorum_queue].`, g.vhost))
	found := map[string]int{}
	for _, m := range heldIn.FindAllStringSubmatch(strings.Join(strings.Fields(said), ""), -1) {
		found[m[1]], _ = strconv.Atoi(m[2])
	}
	return found
}
