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

// governed is a virtual host under one policy, with one service for each strategy.
type governed struct {
	t        *testing.T
	broker   *managed
	vhost    string
	url      string
	services []*governedService
	victim   *governedService
}

// governedService is one service, with the fate of each of its messages.
type governedService struct {
	name, queue string
	client      *topology.Client
	sub         *topology.Subscriber
	plan        topology.Plan
	stop        func()
	logs        *rig.Logs

	// critical are the critical findings of Verify, before the first message.
	critical []operate.Finding
	// entered are the payloads that the broker has confirmed to the producer.
	entered map[string]bool
	// refusal is why the service has not started; nil as a rule.
	refusal error

	mu      sync.Mutex
	calls   map[string]int  // of the handler, by payload
	handled map[string]bool // by payload
	foreign map[string]bool // payloads of other queues that the handler saw
	dead    int             // how often a dead letter was confirmed
	changed time.Time       // when the service made progress last

	places map[string]int // where its messages are in the end, by word
	lost   int
	// begun and strays are its messages that have come to another service. Its own handler had seen
	// the begun ones before, and not the strays.
	begun, strays []string
}

// managed is the node of the table, asked by its management API.
type managed struct {
	node *testbroker.Node
	api  string
}

// govern makes the virtual host, its policies, and the queues and exchanges of the administrator.
func govern(
	t *testing.T, broker *managed, vhost string, policy, operator map[string]any,
) *governed {
	t.Helper()
	g := &governed{t: t, broker: broker, vhost: vhost, url: broker.node.URL() + vhost}
	testbroker.Put(t, broker.api, map[string]any{}, "vhosts", vhost)
	all := map[string]any{"configure": ".*", "write": ".*", "read": ".*"}
	testbroker.Put(t, broker.api, all, "permissions", vhost, "guest")
	for kind, definition := range map[string]map[string]any{
		"policies": policy, "operator-policies": operator,
	} {
		if len(definition) > 0 {
			testbroker.SetPolicy(t, broker.api, kind, vhost, "all", ".*", definition)
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
func (g *governed) change(f func(ch *amqp.Channel) error) {
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
func (g *governed) steadily(f func() error) (err error) {
	g.t.Helper()
	rig.WaitFor(g.t, "a connection that lasts", func() bool {
		err = f()
		var ended *amqp.Error
		return !errors.As(err, &ended) ||
			ended.Code != amqp.InternalError && ended.Code != amqp.ChannelError
	})
	return err
}

// governedStrategies are the strategies of every cell, side by side.
func governedStrategies() map[string]topology.Strategy {
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

// declare opens the service, declares its plan and asks Verify about it.
func (g *governed) declare(name, queue string, strategy topology.Strategy) *governedService {
	t := g.t
	t.Helper()
	s := &governedService{
		name: name, queue: queue, logs: &rig.Logs{}, calls: map[string]int{}, handled: map[string]bool{},
		foreign: map[string]bool{}, entered: map[string]bool{}, places: map[string]int{},
		changed: time.Now(), stop: func() {},
	}
	cfg := rig.QueueConfig(g.url)
	if !strings.HasSuffix(name, "classic") {
		rig.QuorumQueue(&cfg)
		cfg.Queue.Arguments["x-delivery-limit"] = int64(1 << 30) // no finding without a policy
	}
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	observer := middleware.ObserverFunc(s.observe)
	s.client = rig.Connect(t, func() (*topology.Client, error) {
		return topology.Open(ctx, cfg.Connection, strategy,
			topology.WithManagement(management.At(g.broker.api)),
			topology.WithLogger(s.logs), topology.WithObserver(observer))
	})
	t.Cleanup(func() { require.NoError(t, s.client.Close()) })
	s.sub = rig.Connect(t, func() (*topology.Subscriber, error) {
		return s.client.NewSubscriber(cfg, topology.ForPolicy(policyOfCells),
			topology.WithDrainTimeout(2*time.Second))
	})
	s.plan = rig.PlanFor(t, queue, strategy, policyOfCells)
	s.refusal = g.steadily(func() error { return s.sub.SubscribeInitialize(queue) })
	if s.refusal != nil {
		return s
	}
	if s.plan.Via != nil {
		g.change(func(ch *amqp.Channel) error { return ch.QueueBind(queue, queue, domain, false, nil) })
	}
	o := rig.Connect(t, func() (*operate.Operator, error) {
		return operate.Open(ctx, g.url, operate.WithManagement(g.broker.api))
	})
	defer func() { require.NoError(t, o.Close()) }()
	var findings []operate.Finding
	require.NoError(t, g.steadily(func() (err error) {
		findings, err = o.Verify(ctx, s.plan)
		return err
	}))
	for _, f := range findings {
		if f.Severity == operate.Critical {
			s.critical = append(s.critical, f)
		}
	}
	return s
}

// serve consumes the queue until the service is stopped.
func (s *governedService) serve(t *testing.T, handler message.NoPublishHandlerFunc) {
	t.Helper()
	if s.refusal != nil {
		return
	}
	observed := []middleware.Option{middleware.WithObserver(middleware.ObserverFunc(s.observe))}
	router := rig.Router(t, s.client, policyOfCells, message.RouterConfig{}, s.logs, observed)
	router.AddConsumerHandler("handler", s.queue, s.sub, handler)
	ended := rig.Run(t, router)
	s.stop = sync.OnceFunc(func() {
		require.NoError(t, router.Close())
		require.NoError(t, <-ended)
	})
	t.Cleanup(s.stop)
}

// observe counts the events of the library.
func (s *governedService) observe(_ context.Context, e middleware.Event) {
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

// handler fails the messages that are to fail. The first message is held by hold, each time that it
// comes.
func (s *governedService) handler(
	hold func(ctx context.Context, calls int),
) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
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
}

// callsOf returns how often the handler was called with a message.
func (s *governedService) callsOf(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[s.id(n)]
}

func (s *governedService) id(n int) string { return fmt.Sprintf("%s/%d", s.queue, n) }

// fill publishes the messages at once, and again each message that the broker refuses. A message
// that is refused for long has not entered.
func (s *governedService) fill(t *testing.T, url string) {
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
func (s *governedService) done() bool {
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
func (g *governed) everyone() []*governedService {
	if g.victim == nil {
		return g.services
	}
	return append(slices.Clone(g.services), g.victim)
}

// count stops the services, takes all messages out of all queues, and notes the fate of each
// message.
func (g *governed) count() {
	t := g.t
	t.Helper()
	var stopped sync.WaitGroup
	for _, s := range g.everyone() {
		stopped.Go(s.stop)
	}
	stopped.Wait()
	places := map[string][]string{} // queues where a message was, by its payload
	var held map[string]int
	for {
		found := g.drain(places)
		if held != nil && found == 0 {
			break
		}
		held = map[string]int{}
		if g.missing(places) { // else the question is not worth a second of processor time
			held = g.held()
		}
	}
	owner := map[string]string{}
	for _, s := range g.everyone() {
		owner[s.queue], owner[s.plan.Dead.RoutingKey] = s.queue, s.queue
	}
	for _, s := range g.everyone() {
		for id := range s.foreign {
			places[id] = append(places[id], s.queue)
		}
	}
	for _, s := range g.services {
		s.locate(places, held, owner)
	}
}

// locate notes where the messages of a service are.
func (s *governedService) locate(
	places map[string][]string, held map[string]int, owner map[string]string,
) {
	if s.refusal != nil {
		return
	}
	for n := range perService {
		at := places[s.id(n)]
		own := slices.DeleteFunc(slices.Clone(at),
			func(queue string) bool { return owner[queue] != "" && owner[queue] != s.queue })
		for _, queue := range at {
			switch {
			case owner[queue] == "" || owner[queue] == s.queue:
			case s.calls[s.id(n)] > 0:
				s.begun = append(s.begun, s.id(n)+" in "+queue)
			default:
				s.strays = append(s.strays, s.id(n)+" in "+queue)
			}
		}
		switch {
		case s.handled[s.id(n)]:
			s.places["handled"]++
		case !s.entered[s.id(n)] && len(at) == 0:
			s.places["refused"]++
		case len(at) == 0:
			s.lost++
		case len(own) > 0:
			s.places[s.word(own)]++
		}
	}
	for _, q := range s.plan.Queues {
		kept := min(held[q.Name], s.lost) // which of them the broker does not tell
		s.lost -= kept
		if kept > 0 {
			s.places["held"] += kept
		}
	}
}

// word says in which sort of queue a message is: the best of those where copies of it are.
func (s *governedService) word(queues []string) string {
	for _, place := range []struct {
		word string
		has  func(queue string) bool
	}{
		{"dead", func(queue string) bool { return queue == s.plan.Dead.RoutingKey }},
		{"queued", func(queue string) bool { return queue == s.queue }},
		{"waiting", func(queue string) bool {
			return slices.ContainsFunc(s.plan.Queues,
				func(q topology.Queue) bool { return q.Name == queue && q.Delay > 0 })
		}},
		{"stranded", func(queue string) bool { return strings.HasSuffix(queue, ".stranded") }},
	} {
		if slices.ContainsFunc(queues, place.has) {
			return place.word
		}
	}
	return "elsewhere"
}

// missing reports whether a message of some service is in no queue, and was not handled.
func (g *governed) missing(places map[string][]string) bool {
	return slices.ContainsFunc(g.services, func(s *governedService) bool {
		for n := range perService {
			if s.entered[s.id(n)] && !s.handled[s.id(n)] && len(places[s.id(n)]) == 0 {
				return true
			}
		}
		return false
	})
}

// drain takes all messages out of the queues of the virtual host, and returns their number.
func (g *governed) drain(places map[string][]string) int {
	t := g.t
	t.Helper()
	conn, err := amqp.Dial(g.url)
	require.NoError(t, err)
	defer func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }()
	names := map[string]bool{catchAll: true}
	for _, s := range g.everyone() {
		names[s.queue] = true
		for _, q := range s.plan.Queues {
			names[q.Name] = true
		}
	}
	found := 0
	for _, name := range slices.Sorted(maps.Keys(names)) {
		ch, err := conn.Channel()
		require.NoError(t, err)
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
func (g *governed) held() map[string]int {
	g.t.Helper()
	said := g.broker.node.Ctl(g.t, "eval", fmt.Sprintf(`[begin
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
