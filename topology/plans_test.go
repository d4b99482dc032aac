package topology_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/topology"
)

func ExamplePerQueue() {
	delays := []time.Duration{5 * time.Second, 2 * time.Minute}
	plan, err := topology.PerQueue{}.Plan("orders", delays)
	if err != nil {
		fmt.Println(err)
	}
	for _, q := range plan.Queues {
		fmt.Println(q.Name, q.Arguments["x-message-ttl"], q.Arguments["x-dead-letter-routing-key"])
	}
	// Output:
	// orders.wait.5s 5000 orders
	// orders.wait.2m 120000 orders
	// orders.dlq <nil> <nil>
}

func ExamplePlan_Route() {
	delays := []time.Duration{time.Second, 10 * time.Second, time.Minute}
	plan, err := topology.PerQueue{}.Plan("orders", delays)
	if err != nil {
		fmt.Println(err)
	}
	for _, asked := range []time.Duration{
		0, time.Second, 8 * time.Second, 12 * time.Second, time.Hour,
	} {
		route, _ := plan.Route(topology.Retry{Delay: asked})
		fmt.Println(asked, "waits in", route.RoutingKey)
	}
	rest := topology.Retry{Delay: 2 * time.Second, Asked: 12 * time.Second}
	route, _ := plan.Route(rest)
	fmt.Println("the rest of 12s waits in", route.RoutingKey)
	// Output:
	// 0s waits in orders.wait.1s
	// 1s waits in orders.wait.1s
	// 8s waits in orders.wait.10s
	// 12s waits in orders.wait.10s
	// 1h0m0s waits in orders.wait.1m
	// the rest of 12s waits in orders.wait.1s
}

// Each exchange of a plan has the argument, so that a broker policy cannot name another
// alternate exchange. The stranded exchange is the last.
func TestEveryExchangeNamesItsAlternate(t *testing.T) {
	t.Parallel()
	for name, plan := range planned(t) {
		for _, e := range plan.Exchanges {
			alternate, _ := e.Arguments["alternate-exchange"].(string)
			require.NotEmpty(t, alternate, "%s: exchange %s", name, e.Name)
		}
	}
}

func TestPerQueuePlan(t *testing.T) {
	t.Parallel()
	const ms, s, m = time.Millisecond, time.Second, time.Minute
	named := topology.PerQueue{
		WaitName: func(q string, d time.Duration) string { return "demo." + q + ".delay_" + d.String() },
		Dead:     topology.DeadLetters{Name: func(q string) string { return "demo." + q + ".dead" }},
	}
	type testCase struct {
		strategy topology.PerQueue
		delays   []time.Duration
		want     string
	}
	rig.Each(t, map[string]testCase{
		"sorted, distinct, rounded up": {
			topology.PerQueue{},
			[]time.Duration{5 * s, s, 5 * s, s + time.Microsecond, 1},
			"q.wait.1ms q.wait.1s q.wait.1.001s q.wait.5s q.dlq",
		},
		"a wait step of a second for nacks": {
			topology.PerQueue{}, []time.Duration{100 * ms}, "q.wait.100ms q.wait.1s q.dlq",
		},
		"five seconds are short": {topology.PerQueue{}, []time.Duration{5 * s}, "q.wait.5s q.dlq"},
		"more are not": {
			topology.PerQueue{},
			[]time.Duration{200 * ms, 5001 * ms},
			"q.wait.200ms q.wait.1s q.wait.5.001s q.dlq",
		},
		"no retries": {topology.PerQueue{}, []time.Duration{}, "q.wait.1s q.dlq"},
		"unknown delays: the default steps": {
			topology.PerQueue{},
			nil,
			"q.wait.1s q.wait.5s q.wait.30s q.wait.2m q.wait.10m q.wait.1h q.dlq",
		},
		"unknown delays: the named steps": {
			topology.PerQueue{WaitSteps: []time.Duration{90 * m}}, nil, "q.wait.1s q.wait.1h30m q.dlq",
		},
		"classic": {
			topology.PerQueue{Type: topology.Classic},
			[]time.Duration{48 * time.Hour},
			"q.wait.1s.classic q.wait.48h.classic q.dlq",
		},
		"other names": {named, []time.Duration{2 * s}, "demo.q.delay_2s demo.q.dead"},
		"ten years": {
			topology.PerQueue{}, []time.Duration{backoff.MaxDelay}, "q.wait.1s q.wait.87600h q.dlq",
		},
	}, func(t *testing.T, c testCase) {
		plan := rig.PlanOf(t, c.strategy, "q", c.delays...)
		var names []string
		for _, q := range plan.Queues {
			names = append(names, q.Name)
		}
		require.Equal(t, strings.Fields(c.want), names)
		require.Equal(t, names[len(names)-1], plan.Dead.RoutingKey)
	})
}

func TestPerQueueArguments(t *testing.T) {
	t.Parallel()
	plan := rig.PlanOf(t, topology.PerQueue{}, "q", time.Second)
	require.Equal(t, amqp.Table{
		"x-queue-type": "quorum", "x-delivery-limit": int64(2147483647), "x-message-ttl": int64(1000),
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q",
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
	}, plan.Queues[0].Arguments)
	require.Equal(t, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(2147483647)},
		plan.Queues[1].Arguments)
	require.Contains(t, plan.String(),
		"q.wait.1s  1s     x-dead-letter-exchange= x-dead-letter-routing-key=q")

	plan = rig.PlanOf(t, topology.PerQueue{Type: topology.Classic}, "q", time.Second)
	require.Equal(t, amqp.Table{
		"x-queue-type": "classic", "x-queue-mode": "lazy", "x-message-ttl": int64(1000),
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q",
	}, plan.Queues[0].Arguments)
}

func TestPerQueueRefuses(t *testing.T) {
	t.Parallel()
	same := topology.PerQueue{WaitName: func(string, time.Duration) string { return "same" }}
	dead := func(name func(string) string) topology.PerQueue {
		return topology.PerQueue{Dead: topology.DeadLetters{Name: name}}
	}
	type testCase struct {
		strategy topology.PerQueue
		queue    string
		delays   []time.Duration
		want     string
	}
	rig.Each(t, map[string]testCase{
		"empty queue":      {topology.PerQueue{}, "", nil, "name of the queue is empty"},
		"long queue":       {topology.PerQueue{}, strings.Repeat("q", 256), nil, "256 bytes"},
		"long with suffix": {topology.PerQueue{}, strings.Repeat("q", 250), nil, "wait queue of 1s"},
		"zero delay":       {topology.PerQueue{}, "q", []time.Duration{0}, "not positive"},
		"negative delay":   {topology.PerQueue{}, "q", []time.Duration{-time.Second}, "delay -1s"},
		"over ten years": {
			topology.PerQueue{}, "q", []time.Duration{backoff.MaxDelay + 1}, "at most 315360000000 ms",
		},
		"one name for two": {same, "q", []time.Duration{1, time.Second}, `"same"`},
		"the queue's name": {dead(func(q string) string { return q }), "q", nil, "the queue itself"},
		"empty dead-letter queue": {
			dead(func(string) string { return "" }), "q", nil, "dead-letter queue is empty",
		},
	}, func(t *testing.T, c testCase) {
		_, err := c.strategy.Plan(c.queue, c.delays)
		require.ErrorContains(t, err, c.want)
	})
}

// For any name of a queue and any delays, a plan is refused or complete. Its definitions
// and permissions name exactly the objects in the plan.
func FuzzPlan(f *testing.F) {
	for _, queue := range []string{
		"orders", "", "a.b*c+d(e)|f\\g^h$i[j]{k}?", "\\E\\Q", "$(id)", "päper/€", "\xff\xfe", "\x00",
		"new\nline", " ", "amq.gen-x", strings.Repeat("q", 255), strings.Repeat("q", 240),
		strings.Repeat("€", 85), "millpond.return", "orders.wait.1s", "#", "(?i)orders",
	} {
		f.Add(queue, "/", int64(time.Second), int64(90*time.Minute), uint8(len(queue)))
	}
	for kind := range uint8(32) {
		f.Add("orders", "events", int64(time.Second), int64(time.Second), kind)
	}
	f.Add("orders", "\xff", int64(-1), int64(0), uint8(0))
	f.Add("orders", "v\"}", int64(1), int64(1<<63-1), uint8(1))
	f.Fuzz(func(t *testing.T, queue, vhost string, first, second int64, kind uint8) {
		delays := []time.Duration{time.Duration(first), time.Duration(second)}
		types := []topology.QueueType{"", topology.Quorum, topology.Classic, "stream"}
		of, via := types[kind>>1&3], [][]string{nil, {"events", "v"}}[kind>>4&1]
		var strategy topology.Strategy
		switch kind&1 | kind>>2&2 {
		case 0:
			strategy = topology.PerQueue{Type: of, Via: via}
		case 1:
			strategy = topology.Shared{Type: of, Via: via}
		default:
			strategy = topology.PerAttempt{Type: of, Delays: delays[1:]}
		}
		plan, err := strategy.Plan(queue, delays)
		if err != nil {
			return
		}
		if err := topology.ValidatePlan(plan); err != nil {
			t.Errorf("invalid: %v", err)
		}
		names := map[string]bool{queue: true}
		for _, q := range plan.Queues {
			if q.Name == "" || len(q.Name) > 255 || names[q.Name] {
				t.Errorf("queue %q", q.Name)
			}
			names[q.Name] = true
			suffix := q.Name[strings.LastIndexByte(q.Name, '.')+1:]
			if of == topology.Classic || plan.Via != nil || q.Delay%time.Second != 0 || q.Delay == 0 {
				continue // The name has a suffix or another dot.
			}
			if d, err := time.ParseDuration(suffix); err != nil || d != q.Delay {
				t.Errorf("the queue of %v is called %s", q.Delay, q.Name)
			}
		}
		for _, delay := range append(delays, -1, 0, 1<<63-1) {
			route, err := plan.Route(topology.Retry{Delay: delay, Exchange: vhost, RoutingKey: vhost})
			if plan.Via != nil && slices.Contains(plan.Via.Exchanges, vhost) {
				route.RoutingKey = queue
			}
			if err != nil || !slices.ContainsFunc(plan.WaitSteps, func(step topology.Route) bool {
				return reflect.DeepEqual(step, route)
			}) {
				t.Errorf("%v waits at %+v: %v", delay, route, err)
			}
			if last := plan.WaitSteps[len(plan.WaitSteps)-1].Delay; route.Delay < min(delay, last) {
				t.Errorf("%v waits for %v only, there is %v", delay, route.Delay, last)
			}
		}
		checkPermissions(t, plan)
		checkDefinitions(t, plan, vhost)
		name, text := plan.Queues[0].Name, plan.String()
		if !strings.Contains(text, name) && !strings.Contains(text, strconv.Quote(name)) {
			t.Errorf("printed as %s", text)
		}
	})
}

// checkPermissions checks that a user who declares may configure the objects of the plan,
// and none with a similar name.
func checkPermissions(t *testing.T, plan topology.Plan) {
	t.Helper()
	p := plan.Permissions(true)
	if !utf8.ValidString(p.Configure) {
		return // Go's regexp refuses it, the broker's does not.
	}
	configure := regexp.MustCompile(p.Configure)
	for _, q := range plan.Queues {
		if !configure.MatchString(q.Name) {
			t.Errorf("%s does not give %q", p.Configure, q.Name)
		}
		for _, other := range []string{q.Name + "x", "x" + q.Name, q.Name[:len(q.Name)-1] + "\x01"} {
			if configure.MatchString(other) {
				t.Errorf("%s gives %q", p.Configure, other)
			}
		}
	}
	if !regexp.MustCompile(p.Read).MatchString(plan.Queue) {
		t.Errorf("%s does not give %q", p.Read, plan.Queue)
	}
	if without := plan.Permissions(false); without.Configure != "^$" {
		t.Errorf("without declaring %s may be configured", without.Configure)
	}
}

func checkDefinitions(t *testing.T, plan topology.Plan, vhost string) {
	t.Helper()
	data, err := plan.Definitions(vhost, topology.Queue{Name: plan.Queue})
	if valid := utf8.ValidString(plan.Queue) && utf8.ValidString(vhost); err != nil || !valid {
		if err == nil || valid {
			t.Errorf("queue %q, vhost %q: %v", plan.Queue, vhost, err)
		}
		return
	}
	var back struct {
		Queues []struct {
			Name, Vhost string
			Arguments   map[string]any
		}
	}
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	if len(back.Queues) != len(plan.Queues)+1 || back.Queues[0].Name != plan.Queue {
		t.Fatalf("%d queues, the first %q: %s", len(back.Queues), back.Queues[0].Name, data)
	}
	for i, q := range plan.Queues {
		got := back.Queues[i+1]
		if got.Name != q.Name || got.Vhost != vhost || len(got.Arguments) != len(q.Arguments) {
			t.Errorf("queue %q became %+v", q.Name, got)
		}
	}
}

func ExampleReturn() {
	delays := []time.Duration{5 * time.Second}
	plan, err := topology.PerQueue{Via: []string{"events"}}.Plan("orders", delays)
	if err != nil {
		fmt.Println(err)
	}
	for _, b := range plan.Bindings {
		fmt.Println(b.Exchange, "→", b.Queue+b.ToExchange)
	}
	retry := topology.Retry{Delay: time.Second, Exchange: "events", RoutingKey: "order.created.eu"}
	route, _ := plan.Route(retry)
	fmt.Println("published to", route.Exchange, "with the key", route.RoutingKey)
	// Output:
	// orders.wait.5s.via → orders.wait.5s.via
	// millpond.stranded → millpond.stranded
	// millpond.via → orders
	// orders.return.events → orders
	// millpond.via → orders.return.events
	// published to orders.wait.5s.via with the key order.created.eu
}

// A message that came by an exchange of Via keeps its key, at first and on its way back, also from
// a wait queue of an earlier version.
func TestReturnKeepsTheKeyOfItsExchange(t *testing.T) {
	t.Parallel()
	for name, strategy := range map[string]topology.Strategy{
		"per queue":   topology.PerQueue{Via: []string{"logs", "events"}},
		"shared":      topology.Shared{Via: []string{"logs", "events"}},
		"without Via": topology.Shared{},
	} {
		plan := rig.PlanOf(t, strategy, "q", time.Second)
		keys := map[string]string{"": "q", "others": "q", "millpond.return.others": "q", "events": "q"}
		if plan.Via != nil {
			keys["events"], keys["logs"], keys[plan.Via.Through] = "a.b", "a.b", "a.b"
			keys["millpond.return.events"], keys["millpond.level.3.via"] = "a.b", "a.b"
		}
		for from, want := range keys {
			retry := topology.Retry{Delay: time.Second, Exchange: from, RoutingKey: "a.b"}
			route, err := plan.Route(retry)
			require.NoError(t, err)
			require.Equal(t, want, route.RoutingKey, "%s, from %q", name, from)
		}
	}
}

func TestReturnNamesThatAreTooLong(t *testing.T) {
	t.Parallel()
	strategy := topology.PerQueue{
		Via: []string{strings.Repeat("e", 250)}, Prefix: strings.Repeat("p", 252),
	}
	_, err := strategy.Plan("q", []time.Duration{time.Second})
	rig.RequireTexts(t, err, "return exchange", "exchange to return from")
}

// A first retry without a delay needs no wait queue: only the wait of a snoozed message is there.
func TestAPolicyThatRetriesAtOnceNeedsNoWaitQueue(t *testing.T) {
	t.Parallel()
	for name, strategy := range map[string]topology.Strategy{
		"per queue": topology.PerQueue{}, "per attempt": topology.PerAttempt{},
		"shared": topology.Shared{},
	} {
		for _, policy := range []backoff.Policy{
			backoff.List{0}, backoff.AtOnce{Policy: backoff.None{}},
		} {
			plan, err := topology.PlanFor(strategy, "orders", policy)
			require.NoError(t, err, name)
			require.Len(t, plan.WaitSteps, 1, name)
			require.Equal(t, time.Second, plan.WaitSteps[0].Delay, name)
		}
	}
}
