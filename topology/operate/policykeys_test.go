package operate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
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

// keyCase is one way to set a policy key for every queue and exchange.
type keyCase struct {
	key string
	// definition has the key, and the other keys that it needs in order to do harm.
	definition map[string]any
	// quick says that the case runs without MILLPOND_LONG too.
	quick bool
	// victim is the strategy of another service, which has the queue of that name; empty for none.
	victim string
	// vanish deletes the wait queues before the first message fails.
	vanish bool
	// cuts is how often all connections are closed while the first message is handled.
	cuts int
	// slow is how long the handler keeps the first message, the first time.
	slow time.Duration
	// late is how long after the last decision the key may still do something.
	late time.Duration
}

type definition = map[string]any

// keyCases has every policy key that a RabbitMQ from 3.10 to 4.3 knows, with values that do as
// much harm as the key can.
var keyCases = []keyCase{
	{
		key: "alternate-exchange", definition: definition{"alternate-exchange": catchAll}, quick: true,
		vanish: true,
	},
	{
		key:        "consumer-disconnected-timeout",
		definition: definition{"consumer-disconnected-timeout": 1000}, cuts: 1,
	},
	{key: "consumer-timeout", definition: definition{"consumer-timeout": 2000}, slow: 6 * time.Second},
	{key: "dead-letter-exchange", definition: definition{"dead-letter-exchange": catchAll}, cuts: 1},
	{key: "dead-letter-exchange", definition: definition{"dead-letter-exchange": void}, cuts: 1},
	{
		key:        "dead-letter-exchange",
		definition: definition{"dead-letter-exchange": "admin.gone", "message-ttl": 50},
		late:       time.Second,
	},
	{
		key:        "dead-letter-exchange",
		definition: definition{"dead-letter-exchange": catchAll, "delivery-limit": 0}, cuts: 1,
	},
	{key: "dead-letter-routing-key", definition: definition{"dead-letter-routing-key": "nowhere"}},
	{
		key: "dead-letter-routing-key", definition: definition{"dead-letter-routing-key": victim},
		quick: true, victim: "shared",
	},
	{
		key: "dead-letter-routing-key", definition: definition{"dead-letter-routing-key": victim},
		victim: "returning",
	},
	// By all exchanges of Levels.
	{
		key:        "dead-letter-routing-key",
		definition: definition{"dead-letter-routing-key": "0.0.0.0.0.0.0.0." + victim}, victim: "levels",
	},
	// The victim has been moved to PerQueue, and its bindings were left.
	{
		key: "dead-letter-routing-key", definition: definition{"dead-letter-routing-key": victim},
		victim: "quorum",
	},
	{
		key:        "dead-letter-routing-key",
		definition: definition{"dead-letter-routing-key": "0.0.0.0.0.0.0.0." + victim}, victim: "quorum",
	},
	{key: "dead-letter-routing-key", definition: definition{
		"dead-letter-exchange": "", "dead-letter-routing-key": victim, "message-ttl": 50,
	}, victim: "quorum", late: time.Second},
	{key: "dead-letter-strategy", definition: definition{"dead-letter-strategy": "at-most-once"}},
	{key: "dead-letter-strategy", definition: definition{"dead-letter-strategy": "at-least-once"}},
	{key: "delayed-retry-type", definition: delayedRetry("all"), cuts: 1},
	{key: "delayed-retry-min", definition: delayedRetry("returned"), cuts: 1},
	{key: "delayed-retry-max", definition: delayedRetry("failed"), cuts: 1},
	{key: "delivery-limit", definition: definition{"delivery-limit": 0}, cuts: 1},
	{key: "delivery-limit", definition: definition{"delivery-limit": 1}, cuts: 2},
	{key: "expires", definition: definition{"expires": 8000}, late: 25 * time.Second},
	{key: "ha-mode", definition: definition{"ha-mode": "all"}},
	{key: "ha-params", definition: definition{"ha-mode": "exactly", "ha-params": 1}},
	{
		key:        "ha-promote-on-failure",
		definition: definition{"ha-mode": "all", "ha-promote-on-failure": "always"},
	},
	{
		key:        "ha-promote-on-shutdown",
		definition: definition{"ha-mode": "all", "ha-promote-on-shutdown": "always"},
	},
	{key: "ha-sync-batch-size", definition: definition{"ha-mode": "all", "ha-sync-batch-size": 1}},
	{key: "ha-sync-mode", definition: definition{"ha-mode": "all", "ha-sync-mode": "automatic"}},
	{key: "initial-cluster-size", definition: definition{"initial-cluster-size": 3}},
	{key: "max-age", definition: definition{"max-age": "1s"}, late: 2 * time.Second},
	{key: "max-in-memory-bytes", definition: definition{"max-in-memory-bytes": 1}},
	{key: "max-in-memory-length", definition: definition{"max-in-memory-length": 1}},
	{key: "max-length", definition: definition{"max-length": 5}},
	{key: "max-length-bytes", definition: definition{"max-length-bytes": 60}},
	{key: "message-ttl", definition: definition{"message-ttl": 50}, quick: true, late: time.Second},
	// Longer than the wait, shorter than a dead letter is kept.
	{key: "message-ttl", definition: definition{"message-ttl": 8000}, late: 10 * time.Second},
	{key: "overflow", definition: definition{"overflow": "drop-head"}},
	{key: "overflow", definition: definition{"overflow": "reject-publish"}},
	{key: "overflow", definition: definition{"overflow": "reject-publish-dlx"}},
	{key: "overflow", definition: definition{"overflow": "drop-head", "max-length": 5}},
	{key: "overflow", definition: definition{"overflow": "reject-publish", "max-length": 5}},
	{key: "overflow", definition: definition{"overflow": "reject-publish-dlx", "max-length": 5}},
	{key: "queue-leader-locator", definition: definition{"queue-leader-locator": "balanced"}},
	{key: "queue-master-locator", definition: definition{"queue-master-locator": "min-masters"}},
	{key: "queue-mode", definition: definition{"queue-mode": "lazy"}},
	{key: "queue-version", definition: definition{"queue-version": 2}},
	{key: "stream-filter-size-bytes", definition: definition{"stream-filter-size-bytes": 16}},
	{
		key:        "stream-max-segment-size-bytes",
		definition: definition{"stream-max-segment-size-bytes": 1000},
	},
	{key: "target-group-size", definition: definition{"target-group-size": 3}},
}

func delayedRetry(kind string) definition {
	return definition{"delayed-retry-type": kind, "delayed-retry-min": 2000, "delayed-retry-max": 4000}
}

// quickStrategies run without MILLPOND_LONG. To a policy each of the others is like one of them.
var quickStrategies = []string{"quorum", "shared", "levels", "returning"}

// cells bounds the cells that run at once: each has up to a hundred handlers.
var cells = make(chan struct{}, 4)

// Every policy key that the broker knows is applied to everything, by a policy and by an operator
// policy, while every strategy retries. Where a message is lost or goes to another queue, Verify
// has said before the first message that the key is critical, and docs/guarantees.md names it. With
// MILLPOND_LONG all of it, else a choice.
func TestNoPolicyKeyTakesAMessageThatVerifyHasNotWarnedOf(t *testing.T) {
	t.Parallel()
	long := os.Getenv("MILLPOND_LONG") != ""
	// RabbitMQ 4.3 refuses queue-master-locator unless it is permitted.
	node, api := testbroker.Managed(t, `{channel_tick_interval, 500},
		{dead_letter_worker_publisher_confirm_timeout, 3000},
		{permit_deprecated_features, #{queue_master_locator => true}}`)
	keys := node.PolicyKeys(t)
	known := slices.Concat(keys["policies"], keys["operator-policies"])
	for _, key := range known {
		if !slices.ContainsFunc(keyCases, func(c keyCase) bool { return c.key == key }) {
			t.Errorf("RabbitMQ %s has the policy key %q, which no case of this table has", node.Version(),
				key)
		}
	}
	guarantees, err := os.ReadFile("../../docs/guarantees.md")
	require.NoError(t, err)

	runs := []keyRun{{kind: "none"}}
	for _, c := range keyCases {
		for _, kind := range []string{"policies", "operator-policies"} {
			if slices.Contains(keys[kind], c.key) && (long || c.quick && kind == "policies") {
				runs = append(runs, newKeyRun(c, kind, keys))
			}
		}
	}
	for i, r := range runs {
		t.Run(fmt.Sprint(r), func(t *testing.T) {
			t.Parallel()
			cells <- struct{}{}
			defer func() { <-cells }()
			g := newCell(t, node, api, fmt.Sprintf("cell-%d", i), r.policy, r.operator)
			r.run(g, long)
			for _, s := range g.services {
				r.check(t, s, string(guarantees))
			}
		})
	}
}

// keyRun is a case in a virtual host, as one of the two kinds of policies.
type keyRun struct {
	keyCase
	kind             string
	policy, operator definition
}

// newKeyRun makes an operator policy of the keys that one may have, and a policy of the others.
func newKeyRun(c keyCase, kind string, keys map[string][]string) keyRun {
	r := keyRun{keyCase: c, kind: kind, policy: definition{}, operator: definition{}}
	for key, value := range c.definition {
		if kind != "policies" && slices.Contains(keys[kind], key) {
			r.operator[key] = value
		} else {
			r.policy[key] = value
		}
	}
	return r
}

func (c keyCase) String() string {
	if c.key == "" {
		return ""
	}
	value, _ := json.Marshal(c.definition) // never fails
	text := c.key + " by " + string(value)
	if c.victim != "" {
		text += " victim " + c.victim
	}
	return text
}

func (r keyRun) String() string { return strings.TrimSpace(r.kind + " " + r.keyCase.String()) }

// run sends the messages through every strategy under the policy.
func (r keyRun) run(g *cell, long bool) {
	all := cellStrategies()
	names := quickStrategies
	if long {
		names = slices.Sorted(maps.Keys(all))
	}
	for _, name := range names {
		g.services = append(g.services,
			g.declare(name, "orders-"+strings.ReplaceAll(name, " ", "-"), all[name]))
	}
	if r.victim != "" {
		g.receiveStrays(r.victim, all)
	}
	for _, s := range g.services {
		s.serve(g.t, r.hold)
		if r.vanish {
			g.deleteWaitQueues(s)
		}
	}
	var filling sync.WaitGroup
	for _, s := range g.services {
		filling.Go(func() { s.fill(g.t, g.url) })
	}
	filling.Wait()
	for n := range r.cuts {
		g.await("the first messages", func(s *governed) bool { return s.callsOf(0) > n })
		g.node.Ctl(g.t, "close_all_connections", "--vhost", g.vhost, "the test")
	}
	g.await("every message", (*governed).done)
	if r.late > 0 {
		<-time.After(r.late)
	}
	g.count()
}

// deleteWaitQueues lets the wait queues of a service vanish while it consumes.
func (g *cell) deleteWaitQueues(s *governed) {
	g.t.Helper()
	g.change(func(ch *amqp.Channel) error {
		var problems []error
		for _, q := range s.plan.Queues {
			if q.Delay > 0 {
				_, err := ch.QueueDelete(q.Name, false, false, false)
				problems = append(problems, err)
			}
		}
		return errors.Join(problems...)
	})
}

// hold keeps the first message until its connection is closed, or its time is over.
func (r keyRun) hold(ctx context.Context, calls int) {
	switch {
	case calls <= r.cuts:
		<-ctx.Done()
	case calls == 1 && r.slow > 0:
		select {
		case <-ctx.Done():
		case <-time.After(r.slow):
		}
	}
}

// await waits until the condition is true of every service, or the service makes no progress.
func (g *cell) await(what string, cond func(s *governed) bool) {
	g.t.Helper()
	testbroker.WaitFor(g.t, what, 2*rig.Patience, func() bool {
		return !slices.ContainsFunc(g.services,
			func(s *governed) bool { return !cond(s) && !s.done() })
	})
}

// receiveStrays makes another service. One of PerQueue has been moved there from each of the other
// strategies, and their bindings were left.
func (g *cell) receiveStrays(strategy string, all map[string]topology.Strategy) {
	g.t.Helper()
	g.victim = g.declare(strategy, victim, all[strategy])
	require.NoError(g.t, g.victim.refusal)
	for _, before := range []string{
		"shared", "shared classic", "shared returning", "levels", "levels classic", "returning",
	} {
		if strategy == "quorum" {
			o, plan := opened(g.t, g.url, victim, all[before], policyOfCells)
			require.NoError(g.t, g.steadily(func() error { return o.Declare(g.t.Context(), plan) }))
			if plan.Via != nil {
				g.change(
					func(ch *amqp.Channel) error { return ch.QueueBind(victim, victim, domain, false, nil) },
				)
			}
		}
	}
	g.victim.serve(g.t, nil)
}

// check fails the test where something has become of a message that Verify has not said.
func (r keyRun) check(t *testing.T, s *governed, guarantees string) {
	t.Helper()
	switch {
	case r.key == "":
		require.Empty(t, s.harm, "without a policy: %s", s.name)
		require.Empty(t, s.critical, "without a policy: %s", s.name)
	case len(s.harm) == 0:
		for _, f := range s.critical {
			t.Logf("nothing has happened to %s, though Verify says: %s", s.name, f)
		}
	// The Subscriber of the victim knows the messages by its own plan.
	case len(s.begun) > 0 && s.name == r.victim && r.victim != "quorum":
		t.Errorf("%s: %s: messages that were handled before have gone to another service: %v", r, s.name,
			s.begun)
	case s.refusal == nil && len(s.critical) == 0:
		t.Errorf("%s: %s: %v, and Verify has said nothing of it that is critical", r, s.name, s.harm)
	case !r.namedIn(guarantees):
		t.Errorf("%s: %s: %v, and docs/guarantees.md names none of the keys", r, s.name, s.harm)
	default:
		t.Logf("%s: %v, as Verify has said", s.name, s.harm)
	}
}

// namedIn reports whether a page has a key of the policy in a code span, not as a part of another
// word.
func (r keyRun) namedIn(page string) bool {
	for key := range r.definition {
		if regexp.MustCompile("`([^`\n]*[^`\na-z-])?" + key + "([^`\na-z-][^`\n]*)?`").MatchString(page) {
			return true
		}
	}
	return false
}

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
