package topology_test

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/ladder"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/native"
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
		assert.NoError(t, topology.ValidatePlan(plan))
		names := map[string]bool{queue: true}
		for _, q := range plan.Queues {
			assert.False(t, q.Name == "" || len(q.Name) > 255 || names[q.Name], "queue %q", q.Name)
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
		assert.True(t, strings.Contains(text, name) || strings.Contains(text, strconv.Quote(name)),
			"printed as %s", text)
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
		assert.True(t, configure.MatchString(q.Name), "%s does not give %q", p.Configure, q.Name)
		for _, other := range []string{q.Name + "x", "x" + q.Name, q.Name[:len(q.Name)-1] + "\x01"} {
			assert.False(t, configure.MatchString(other), "%s gives %q", p.Configure, other)
		}
	}
	assert.True(t, regexp.MustCompile(p.Read).MatchString(plan.Queue),
		"%s does not give %q", p.Read, plan.Queue)
	if without := plan.Permissions(false); without.Configure != "^$" {
		t.Errorf("without declaring %s may be configured", without.Configure)
	}
}

func checkDefinitions(t *testing.T, plan topology.Plan, vhost string) {
	t.Helper()
	data, err := plan.Definitions(vhost, topology.Queue{Name: plan.Queue})
	if valid := utf8.ValidString(plan.Queue) && utf8.ValidString(vhost); err != nil || !valid {
		assert.False(t, err == nil || valid, "queue %q, vhost %q: %v", plan.Queue, vhost, err)
		return
	}
	var back struct {
		Queues []struct {
			Name, Vhost string
			Arguments   map[string]any
		}
	}
	require.NoError(t, json.Unmarshal(data, &back))
	require.False(t, len(back.Queues) != len(plan.Queues)+1 || back.Queues[0].Name != plan.Queue,
		"%d queues, the first %q: %s", len(back.Queues), back.Queues[0].Name, data)
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

func ExamplePerAttempt() {
	delays := []time.Duration{5 * time.Second, 5 * time.Second, time.Minute}
	plan, err := topology.PerAttempt{Delays: delays}.Plan("orders", nil)
	if err != nil {
		fmt.Println(err)
	}
	for attempt := 1; attempt <= 4; attempt++ {
		route, _ := plan.Route(topology.Retry{Delay: 5 * time.Second, Attempt: attempt})
		fmt.Println("attempt", attempt, "waits in", route.RoutingKey)
	}
	// An error asks for a delay between the steps.
	route, _ := plan.Route(topology.Retry{Delay: 50 * time.Second, Attempt: 1})
	fmt.Println("50s wait in", route.RoutingKey)
	// Output:
	// attempt 1 waits in orders.retry.1.5s
	// attempt 2 waits in orders.retry.2.5s
	// attempt 3 waits in orders.retry.2.5s
	// attempt 4 waits in orders.retry.2.5s
	// 50s wait in orders.retry.3.1m
}

func TestPerAttemptPlan(t *testing.T) {
	t.Parallel()
	const ms, s = time.Millisecond, time.Second
	type delays = []time.Duration
	series := func(of ...time.Duration) topology.PerAttempt { return topology.PerAttempt{Delays: of} }
	classic := topology.PerAttempt{Type: topology.Classic}
	steps := "q.retry.1.1s q.retry.2.5s q.retry.3.30s q.retry.4.2m q.retry.5.10m q.retry.6.1h"
	type testCase struct {
		strategy topology.PerAttempt
		delays   delays
		want     string
	}
	rig.Each(t, map[string]testCase{
		"the policy's delays": {
			series(), delays{s, 2 * s, 3 * s}, "q.retry.1.1s q.retry.2.2s q.retry.3.3s",
		},
		"repeated": {series(s, s), delays{s}, "q.retry.1.1s q.retry.2.1s"},
		"down again": {
			series(3*s, s, 3*s), delays{s, 3 * s}, "q.retry.2.1s q.retry.1.3s q.retry.3.3s",
		},
		"more than the series": {
			series(2*s, s),
			delays{s, 2 * s, 5 * s, 1500 * ms},
			"q.retry.2.1s q.retry.3.1.5s q.retry.1.2s q.retry.4.5s",
		},
		"a second for snoozes": {series(), delays{100 * ms}, "q.retry.1.100ms q.retry.0.1s"},
		"no retries":           {series(), delays{}, "q.retry.0.1s"},
		"unknown":              {series(), nil, steps},
		"unknown, a series":    {series(s), nil, "q.retry.1.1s"},
		"unknown, a series and wait steps": {
			topology.PerAttempt{Delays: delays{s}, WaitSteps: delays{9 * s}},
			nil,
			"q.retry.1.1s q.retry.2.9s",
		},
		"rounded up": {series(s + 1), delays{s + 2}, "q.retry.1.1.001s"},
		"classic":    {classic, delays{s}, "q.retry.1.1s.classic"},
	}, func(t *testing.T, c testCase) {
		plan := rig.PlanOf(t, c.strategy, "q", c.delays...)
		want := strings.Fields(c.want)
		var names []string
		for _, q := range plan.Queues {
			if q.Delay > 0 {
				names = append(names, q.Name)
			}
		}
		require.Equal(t, want, names)
		require.Equal(t, "q.dlq", plan.Dead.RoutingKey)
		for i, step := range plan.WaitSteps {
			waits, end := walk(t, plan, step)
			require.Equal(t, "q", end)
			require.Len(t, waits, 1)
			require.Equal(t, want[i], waits[0].Name)
			require.Equal(t, step.Delay, waits[0].Delay)
		}
	})
}

func TestPerAttemptRoutes(t *testing.T) {
	t.Parallel()
	const s = time.Second
	delays := []time.Duration{2 * s, 5 * s, 2 * s, 5 * s}
	plan := rig.PlanOf(t, topology.PerAttempt{Delays: delays}, "q")
	type testCase struct {
		retry topology.Retry
		want  string
	}
	rig.Each(t, map[string]testCase{
		"its own":                  {topology.Retry{Delay: 2 * s, Attempt: 1}, "q.retry.1.2s"},
		"its own, further on":      {topology.Retry{Delay: 2 * s, Attempt: 3}, "q.retry.3.2s"},
		"the last before it":       {topology.Retry{Delay: 2 * s, Attempt: 2}, "q.retry.1.2s"},
		"none before it":           {topology.Retry{Delay: 5 * s, Attempt: 1}, "q.retry.2.5s"},
		"beyond the last":          {topology.Retry{Delay: 2 * s, Attempt: 1000}, "q.retry.3.2s"},
		"snoozed":                  {topology.Retry{Delay: s}, "q.retry.1.2s"},
		"longer than its own":      {topology.Retry{Delay: 4 * s, Attempt: 3}, "q.retry.2.5s"},
		"a round of a shorter one": {topology.Retry{Delay: 3 * s, Attempt: 3}, "q.retry.3.2s"},
		"the rest of the round": {
			topology.Retry{Delay: s - 1, Asked: 3 * s, Attempt: 3}, "q.retry.3.2s",
		},
		"longer than all, a round": {topology.Retry{Delay: time.Hour, Attempt: 4}, "q.retry.4.5s"},
		"garbage":                  {topology.Retry{Delay: -s, Attempt: -1}, "q.retry.1.2s"},
	}, func(t *testing.T, c testCase) {
		route, err := plan.Route(c.retry)
		require.NoError(t, err)
		require.Equal(t, c.want, route.RoutingKey)
		require.Equal(t, "q.retry", route.Exchange)
	})
}

func TestPerAttemptRefuses(t *testing.T) {
	t.Parallel()
	_, err := topology.PerAttempt{
		Delays:       []time.Duration{-1, time.Second, 2 * time.Second, backoff.MaxDelay + 1},
		WaitName:     func(queue string, _ int, _ time.Duration) string { return "same" },
		ExchangeName: func(string) string { return "" },
		Type:         "stream",
	}.Plan("q", nil)
	rig.RequireTexts(t, err, "delay -1ns is not positive", "at most 315360000000 ms", `"same"`,
		"retry exchange is empty", `"stream"`)
}

// A rejected message stays in its queue, so it cannot pass an exchange of the user.
func TestRejectsAndViaAreRefused(t *testing.T) {
	t.Parallel()
	via := topology.PerQueue{Via: []string{"events"}}
	strategy := native.Strategy{Min: time.Second, Max: time.Minute, Else: via}
	const want = "passes no exchange on its way back: leave Via out"
	require.ErrorContains(t, strategy.Validate(), want)
	plan := rig.PlanOf(t, via, "orders")
	plan.RejectMin, plan.RejectMax = time.Second, time.Minute
	require.ErrorContains(t, topology.ValidatePlan(plan), want)
	plan.Via = nil
	require.NotContains(t, fmt.Sprint(topology.ValidatePlan(plan)), want)
}

// Given delays of which the queue can hold some, when such a message has another delivery count,
// then its wait on the wait queues is no later than any other.
func TestNativeWaitsAreAsLateAsOthers(t *testing.T) {
	t.Parallel()
	linear := func(step time.Duration, n int) (list []time.Duration) {
		for i := range n {
			list = append(list, time.Duration(i+1)*step)
		}
		return list
	}
	for name, c := range map[string]struct {
		strategy native.Strategy
		delays   []time.Duration
		queues   int // without the dead-letter queue
	}{
		"short ones, beside a policy for the network": {
			native.Strategy{Min: 500 * time.Millisecond, Max: time.Second},
			[]time.Duration{
				500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second,
				250 * time.Millisecond, 3 * time.Second,
			},
			5,
		},
		"linear ones, beside a long one": {
			native.Strategy{Min: 5 * time.Second, Max: 10 * time.Minute},
			append(linear(5*time.Second, 120), 20*time.Minute),
			4,
		},
		"linear ones alone, on the default wait steps": {
			native.Strategy{Min: 5 * time.Second, Max: time.Minute}, linear(5*time.Second, 12), 6,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan, err := c.strategy.Plan("orders", c.delays)
			require.NoError(t, err)
			require.NoError(t, topology.ValidatePlan(plan))
			var steps []time.Duration
			for _, step := range plan.WaitSteps {
				steps = append(steps, step.Delay)
			}
			for _, delay := range c.delays {
				late := ladder.Total(steps, delay) - delay
				require.LessOrEqual(t, late, ladder.Allowed(delay), "%v on %v", delay, steps)
			}
			require.Len(t, steps, c.queues, "%v", steps)
		})
	}
}

// The permissions in docs/security.md are the exported permissions of the plans.
func TestSecurityDocumentIsTrue(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../docs/security.md")
	require.NoError(t, err)
	text := string(data)

	target := topology.DeadLetters{
		Target: func(string) topology.Route { return topology.Route{Exchange: "graves"} },
	}
	via := topology.PerQueue{Via: []string{"events"}}
	for _, row := range []struct {
		name     string
		strategy topology.Strategy
		declare  bool
	}{
		{"PerQueue{}", topology.PerQueue{}, true},
		{"PerQueue{}, WithPreProvisioned", topology.PerQueue{}, false},
		{"PerQueue{Type: Classic}", topology.PerQueue{Type: topology.Classic}, true},
		{`PerQueue{Via: []string{"events"}}`, via, true},
		{`PerQueue{Via: []string{"events"}}, WithPreProvisioned`, via, false},
		{"PerAttempt{}", topology.PerAttempt{}, true},
		{"PerAttempt{}, WithPreProvisioned", topology.PerAttempt{}, false},
		{
			"Levels{Resolution: 5 * time.Second, Max: 30 * time.Second}",
			topology.Levels{Resolution: 5 * time.Second, Max: 30 * time.Second},
			true,
		},
		{"Levels{}, WithPreProvisioned", topology.Levels{}, false},
		{"Shared{}", topology.Shared{}, true},
		{"Shared{}, WithPreProvisioned", topology.Shared{}, false},
		{"Shared{Dead: target}, WithPreProvisioned", topology.Shared{Dead: target}, false},
	} {
		delays := []time.Duration{5 * time.Second, 30 * time.Second}
		plan := rig.PlanOf(t, row.strategy, "orders", delays...)
		p := plan.Permissions(row.declare)
		const command = "# %s\nrabbitmqctl set_permissions -p shop orders-service " +
			"\\\n  '%s' \\\n  '%s' \\\n  '%s'\n"
		require.Contains(t, text, fmt.Sprintf(command, row.name, p.Configure, p.Write, p.Read))
	}
}
