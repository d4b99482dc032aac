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

type definition = map[string]any

// keyCase is one way to set a policy key for every queue and exchange.
type keyCase struct {
	// policy is the definition in JSON. The case is about its first key, which needs the others in
	// order to do harm.
	policy string
	// quick says that the case runs without MILLPOND_LONG too.
	quick bool
	// vanish deletes the wait queues before the first message fails.
	vanish bool
	// cuts is how often all connections are closed while the first message is handled.
	cuts int
	// slow is how long the handler keeps the first message, the first time.
	slow time.Duration
	// late is how long after the last decision the key may still do something.
	late time.Duration
}

// The queues and exchanges of an administrator in the virtual host of a cell.
const (
	catchAll = "admin.catch"  // a fanout exchange, and the queue bound to it
	void     = "admin.void"   // a fanout exchange without a queue
	domain   = "admin.domain" // the exchange of the strategies with Via
	victim   = "victim"       // the queue of another service, to which every strategy has a way
)

const delayedFor = `,"delayed-retry-min":2000,"delayed-retry-max":4000}`

// keyCases has every policy key that a RabbitMQ from 3.10 to 4.3 knows, with values that do as
// much harm as the key can.
var keyCases = []keyCase{
	{policy: `{"alternate-exchange":"admin.catch"}`, quick: true, vanish: true},
	{policy: `{"consumer-disconnected-timeout":1000}`, cuts: 1},
	{policy: `{"consumer-timeout":2000}`, slow: 6 * time.Second},
	{policy: `{"dead-letter-exchange":"admin.catch"}`, cuts: 1},
	{policy: `{"dead-letter-exchange":"admin.void"}`, cuts: 1},
	{policy: `{"dead-letter-exchange":"admin.gone","message-ttl":50}`, late: time.Second},
	{policy: `{"dead-letter-exchange":"admin.catch","delivery-limit":0}`, cuts: 1},
	{policy: `{"dead-letter-routing-key":"nowhere"}`},
	{policy: `{"dead-letter-routing-key":"victim"}`, quick: true},
	// By all exchanges of Levels.
	{policy: `{"dead-letter-routing-key":"0.0.0.0.0.0.0.0.victim"}`},
	{
		policy: `{"dead-letter-routing-key":"victim","dead-letter-exchange":"","message-ttl":50}`,
		late:   time.Second,
	},
	{policy: `{"dead-letter-strategy":"at-most-once"}`},
	{policy: `{"dead-letter-strategy":"at-least-once"}`},
	{policy: `{"delayed-retry-type":"all"` + delayedFor, cuts: 1},
	{policy: `{"delayed-retry-min":2000,"delayed-retry-type":"returned"` + delayedFor, cuts: 1},
	{policy: `{"delayed-retry-max":4000,"delayed-retry-type":"failed"` + delayedFor, cuts: 1},
	{policy: `{"delivery-limit":0}`, cuts: 1},
	{policy: `{"delivery-limit":1}`, cuts: 2},
	{policy: `{"expires":8000}`, late: 25 * time.Second},
	{policy: `{"ha-mode":"all"}`},
	{policy: `{"ha-params":1,"ha-mode":"exactly"}`},
	{policy: `{"ha-promote-on-failure":"always","ha-mode":"all"}`},
	{policy: `{"ha-promote-on-shutdown":"always","ha-mode":"all"}`},
	{policy: `{"ha-sync-batch-size":1,"ha-mode":"all"}`},
	{policy: `{"ha-sync-mode":"automatic","ha-mode":"all"}`},
	{policy: `{"initial-cluster-size":3}`},
	{policy: `{"max-age":"1s"}`, late: 2 * time.Second},
	{policy: `{"max-in-memory-bytes":1}`},
	{policy: `{"max-in-memory-length":1}`},
	{policy: `{"max-length":5}`},
	{policy: `{"max-length-bytes":60}`},
	{policy: `{"message-ttl":50}`, quick: true, late: time.Second},
	// Longer than the wait, shorter than a dead letter is kept.
	{policy: `{"message-ttl":8000}`, late: 10 * time.Second},
	{policy: `{"overflow":"drop-head"}`},
	{policy: `{"overflow":"reject-publish"}`},
	{policy: `{"overflow":"reject-publish-dlx"}`},
	{policy: `{"overflow":"drop-head","max-length":5}`},
	{policy: `{"overflow":"reject-publish","max-length":5}`},
	{policy: `{"overflow":"reject-publish-dlx","max-length":5}`},
	{policy: `{"queue-leader-locator":"balanced"}`},
	{policy: `{"queue-master-locator":"min-masters"}`},
	{policy: `{"queue-mode":"lazy"}`},
	{policy: `{"queue-version":2}`},
	{policy: `{"stream-filter-size-bytes":16}`},
	{policy: `{"stream-max-segment-size-bytes":1000}`},
	{policy: `{"target-group-size":3}`},
}

// key returns the key that the case is about; "" without a policy.
func (c keyCase) key() string {
	if c.policy == "" {
		return ""
	}
	return strings.Split(c.policy, `"`)[1]
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
	for _, key := range slices.Concat(keys["policies"], keys["operator-policies"]) {
		if !slices.ContainsFunc(keyCases, func(c keyCase) bool { return c.key() == key }) {
			t.Errorf("RabbitMQ %s has the policy key %q, which no case of this table has", node.Version(),
				key)
		}
	}
	guarantees, err := os.ReadFile("../../docs/guarantees.md")
	require.NoError(t, err)

	vhosts := 0
	run := func(c keyCase, kind string, by map[string]definition) {
		vhosts++
		vhost := fmt.Sprintf("cell-%d", vhosts)
		t.Run(strings.TrimSpace(kind+" "+c.policy), func(t *testing.T) {
			t.Parallel()
			cells <- struct{}{}
			defer func() { <-cells }()
			g := newCell(t, node, api, vhost, by)
			g.run(c, long)
			for _, s := range g.services {
				s.check(t, c, string(guarantees))
			}
		})
	}
	run(keyCase{}, "none", nil)
	for _, c := range keyCases {
		for _, kind := range []string{"policies", "operator-policies"} {
			if !slices.Contains(keys[kind], c.key()) || !long && (!c.quick || kind != "policies") {
				continue
			}
			// An operator policy has the keys that one may have, and a policy the others.
			by, all := map[string]definition{"policies": {}, "operator-policies": {}}, definition{}
			require.NoError(t, json.Unmarshal([]byte(c.policy), &all))
			for key, value := range all {
				of := "policies"
				if slices.Contains(keys[kind], key) {
					of = kind
				}
				by[of][key] = value
			}
			run(c, kind, by)
		}
	}
}

// run sends the messages through every strategy under the policy.
func (g *cell) run(c keyCase, long bool) {
	all := cellStrategies()
	names := quickStrategies
	if long {
		names = slices.Sorted(maps.Keys(all))
	}
	if strings.Contains(c.policy, victim) {
		g.receiveStrays(all)
	}
	for _, name := range names {
		g.services = append(g.services,
			g.declare(name, "orders-"+strings.ReplaceAll(name, " ", "-"), all[name]))
	}
	for _, s := range g.services {
		s.serve(g.t, c)
		if c.vanish {
			g.deleteWaitQueues(s)
		}
	}
	var filling sync.WaitGroup
	for _, s := range g.services {
		filling.Go(func() { s.fill(g.t, g.url) })
	}
	filling.Wait()
	for n := range c.cuts {
		g.await("the first messages", func(s *governed) bool { return s.callsOf(0) > n })
		g.node.Ctl(g.t, "close_all_connections", "--vhost", g.vhost, "the test")
	}
	g.await("every message", (*governed).done)
	if c.late > 0 {
		<-time.After(c.late)
	}
	g.count()
}

// receiveStrays makes the queue of another service. It was moved to PerQueue from each of the other
// strategies, and their bindings were left.
func (g *cell) receiveStrays(all map[string]topology.Strategy) {
	g.t.Helper()
	for _, strategy := range all {
		o, plan := opened(g.t, g.url, victim, strategy, policyOfCells)
		g.change(func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(victim, true, false, false, false, nil)
			return errors.Join(err, ch.QueueBind(victim, victim, domain, false, nil))
		})
		require.NoError(g.t, g.steadily(func() error { return o.Declare(g.t.Context(), plan) }))
	}
}

// deleteWaitQueues lets the wait queues of a service vanish while it consumes.
func (g *cell) deleteWaitQueues(s *governed) {
	g.t.Helper()
	for _, q := range s.plan.Queues {
		if q.Delay > 0 {
			rig.DeleteQueue(g.t, g.url, q.Name)
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

// check fails the test where something has become of a message that Verify has not said.
func (s *governed) check(t *testing.T, c keyCase, guarantees string) {
	t.Helper()
	switch {
	case c.policy == "":
		require.Empty(t, s.harm, "without a policy: %s", s.name)
		require.Empty(t, s.critical, "without a policy: %s", s.name)
	case len(s.harm) == 0:
		for _, f := range s.critical {
			t.Logf("nothing has happened to %s, though Verify says: %s", s.name, f)
		}
	case s.refusal == nil && len(s.critical) == 0:
		t.Errorf("%s: %v, and Verify has said nothing of it that is critical", s.name, s.harm)
	case !c.namedIn(guarantees):
		t.Errorf("%s: %v, and docs/guarantees.md names none of the keys", s.name, s.harm)
	default:
		t.Logf("%s: %v, as Verify has said", s.name, s.harm)
	}
}

// namedIn reports whether a page has a key of the policy in a code span, not as a part of another
// word.
func (c keyCase) namedIn(page string) bool {
	for _, key := range regexp.MustCompile(`"([a-z-]+)":`).FindAllStringSubmatch(c.policy, -1) {
		span := "`([^`\n]*[^`\na-z-])?" + key[1] + "([^`\na-z-][^`\n]*)?`"
		if regexp.MustCompile(span).MatchString(page) {
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

var policyOfCells = backoff.List{time.Second}

// cell is a virtual host under one policy, with one service for each strategy.
type cell struct {
	t               *testing.T
	node            *testbroker.Node
	api, vhost, url string
	services        []*governed
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
	ended   map[string]bool // payloads of the messages that had their last attempt
	changed time.Time       // when the service made progress last

	// What has become of messages that are neither handled nor dead letters, with their number.
	harm map[string]int
}

// newCell makes the virtual host, its policies, and the queues and exchanges of the administrator.
func newCell(
	t *testing.T, node *testbroker.Node, api, vhost string, by map[string]definition,
) *cell {
	t.Helper()
	g := &cell{t: t, node: node, api: api, vhost: vhost, url: node.URL() + vhost}
	testbroker.Put(t, api, map[string]any{}, "vhosts", vhost)
	t.Cleanup(func() { testbroker.Remove(t, api, "vhosts", vhost) })
	all := map[string]any{"configure": ".*", "write": ".*", "read": ".*"}
	testbroker.Put(t, api, all, "permissions", vhost, "guest")
	for kind, definition := range by {
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
		name: name, queue: queue, calls: map[string]int{}, ended: map[string]bool{},
		entered: map[string]bool{}, harm: map[string]int{}, changed: time.Now(),
		plan: rig.PlanFor(t, queue, strategy, policyOfCells),
	}
	args := amqp.Table{"x-queue-type": "classic"}
	if !strings.HasSuffix(name, "classic") { // no finding without a policy
		args = amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1 << 30)}
	}
	management := topology.WithManagement(management.At(g.api))
	s.config = rig.Config{
		URL: g.url, Queue: queue, Keep: true, Strategy: strategy, Policy: policyOfCells,
		Configure: rig.WithQueue(args), Forgotten: true,
		ClientOptions:     []topology.Option{management},
		SubscriberOptions: []topology.SubscriberOption{topology.WithDrainTimeout(2 * time.Second)},
	}
	cfg := rig.QueueConfig(g.url)
	s.config.Configure(&cfg)
	sub, err := rig.OpenClient(t, g.url, strategy, management).
		NewSubscriberWithoutRetry(cfg, topology.ForPolicy(policyOfCells))
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

// serve consumes the queue. It keeps the first message until its connection is closed, or its time
// is over, each time that it comes.
func (s *governed) serve(t *testing.T, c keyCase) {
	t.Helper()
	if s.refusal != nil {
		return
	}
	s.config.Handle = func(msg *message.Message) error { return s.handle(msg, c) }
	s.service = rig.Start(t, s.config)
}

// handle fails the messages that are to fail.
func (s *governed) handle(msg *message.Message, c keyCase) error {
	id := string(msg.Payload)
	queue, number, _ := strings.Cut(id, "/")
	n, err := strconv.Atoi(number)
	if own := queue == s.queue && err == nil; !own {
		return nil // its own service misses it
	}
	s.mu.Lock()
	s.calls[id]++
	calls := s.calls[id]
	s.changed = time.Now()
	s.mu.Unlock()
	switch {
	case n == 0 && calls <= c.cuts:
		<-msg.Context().Done()
	case n == 0 && calls == 1 && c.slow > 0:
		select {
		case <-msg.Context().Done():
		case <-time.After(c.slow):
		}
	}
	last := middleware.Attempt(msg.Context()) > 1
	if last {
		s.mu.Lock()
		s.ended[id] = true
		s.mu.Unlock()
	}
	if n%2 == 1 || !last {
		return rig.ErrFailed
	}
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
	return s.refusal != nil || time.Since(s.changed) > limit || len(s.ended) == perService
}

// count stops the services, takes all messages out of all queues, and notes the fate of each
// message.
func (g *cell) count() {
	g.t.Helper()
	var stopped sync.WaitGroup
	queues := map[string]bool{catchAll: true, victim: true}
	for _, s := range g.services {
		if s.service != nil {
			stopped.Go(s.service.Stop)
		}
		queues[s.queue] = true
		for _, q := range s.plan.Queues {
			queues[q.Name] = true
		}
	}
	stopped.Wait()
	places := map[string][]string{}      // queues where a message was, by its payload
	for empty := 0; empty < 3; empty++ { // a quorum queue may count late
		if g.drain(slices.Sorted(maps.Keys(queues)), places) > 0 {
			empty = 0
		}
		<-time.After(200 * time.Millisecond)
	}
	for _, s := range g.services {
		s.judge(places)
	}
}

// judge counts the messages of a service that did not end as they should, by where they are. A
// message that a quorum queue holds, because it cannot place the message, is in no queue (F5).
func (s *governed) judge(places map[string][]string) {
	if s.refusal != nil {
		s.harm["refused at the start: "+s.refusal.Error()]++
		return
	}
	for n := range perService {
		id, at := s.id(n), places[s.id(n)]
		switch {
		case slices.Contains(at, victim):
			s.harm["to another service"]++
		case n%2 == 0 && s.ended[id], slices.Contains(at, s.plan.Dead.RoutingKey):
		case len(at) > 0:
			s.harm["in "+at[0]]++
		case s.entered[id]:
			s.harm["lost or held"]++
		default:
			s.harm["refused"]++
		}
	}
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
