package topology_test

import (
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/millpond-go/millpond/topology"
)

// Whatever a queue is called and a delay is: a plan is refused or complete, and
// its definitions and permissions name exactly what is in it.
func FuzzPlan(f *testing.F) {
	for _, queue := range []string{
		"orders", "", "a.b*c+d(e)|f\\g^h$i[j]{k}?", "\\E\\Q", "$(id)", "päper/€", "\xff\xfe", "\x00", "new\nline", " ", "amq.gen-x",
		strings.Repeat("q", 255), strings.Repeat("q", 240), strings.Repeat("€", 85), "millpond.return", "orders.wait.1s", "#", "(?i)orders",
	} {
		f.Add(queue, "/", int64(time.Second), int64(90*time.Minute), uint8(len(queue)))
	}
	for kind := range uint8(32) {
		f.Add("orders", "events", int64(time.Second), int64(time.Second), kind)
	}
	f.Add("orders", "\xff", int64(-1), int64(0), uint8(0))
	f.Add("orders", "v\"}", int64(1), int64(1<<63-1), uint8(1))
	f.Fuzz(func(t *testing.T, queue, vhost string, first, second int64, kind uint8) {
		types := []topology.QueueType{"", topology.Quorum, topology.Classic, "stream"}
		var strategy topology.Strategy = topology.PerQueue{Type: types[kind>>1&3]}
		to := []string{"", "events"}[kind>>4&1]
		switch kind&1 | kind>>2&2 {
		case 0:
			strategy = topology.PerQueue{Type: types[kind>>1&3], Via: to}
		case 1:
			strategy = topology.Shared{Type: types[kind>>1&3], Via: to}
		default:
			strategy = topology.PerAttempt{Type: types[kind>>1&3], Via: to, Delays: []time.Duration{time.Duration(second)}}
		}
		delays := []time.Duration{time.Duration(first), time.Duration(second)}
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
		}
		for _, delay := range append(delays, -1, 0, 1<<63-1) {
			route, err := plan.Route(topology.Retry{Delay: delay, Exchange: vhost, RoutingKey: vhost})
			if plan.Via != nil && vhost == plan.Via.Exchange {
				route.RoutingKey = queue
			}
			if err != nil || !slices.Contains(plan.WaitSteps, route) {
				t.Errorf("%v waits at %+v: %v", delay, route, err)
			}
			if last := plan.WaitSteps[len(plan.WaitSteps)-1].Delay; route.Delay < min(delay, last) {
				t.Errorf("%v waits for %v only, there is %v", delay, route.Delay, last)
			}
		}
		for _, q := range plan.Queues {
			name := q.Name[strings.LastIndexByte(q.Name, '.')+1:]
			if kind>>1&3 == 2 || to != "" || q.Delay%time.Second != 0 || q.Delay == 0 { // a suffix or another dot
				continue
			}
			if d, err := time.ParseDuration(name); err != nil || d != q.Delay {
				t.Errorf("the queue of %v is called %s", q.Delay, q.Name)
			}
		}
		checkPermissions(t, plan)
		checkDefinitions(t, plan, vhost)
		name := plan.Queues[0].Name
		if text := plan.String(); !strings.Contains(text, name) && !strings.Contains(text, strconv.Quote(name)) {
			t.Errorf("printed as %s", text)
		}
	})
}

// checkPermissions: with declare a user may configure what the plan holds, and
// nothing whose name only looks like it.
func checkPermissions(t *testing.T, plan topology.Plan) {
	t.Helper()
	p := plan.Permissions(true)
	if !utf8.ValidString(p.Configure) {
		return // Go's regexp does not take it, the broker's does
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
		if got := back.Queues[i+1]; got.Name != q.Name || got.Vhost != vhost || len(got.Arguments) != len(q.Arguments) {
			t.Errorf("queue %q became %+v", q.Name, got)
		}
	}
}
