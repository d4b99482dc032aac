package topology_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

func ExamplePerAttempt() {
	strategy := topology.PerAttempt{Delays: []time.Duration{5 * time.Second, 5 * time.Second, time.Minute}}
	plan, err := strategy.Plan("orders", nil)
	if err != nil {
		fmt.Println(err)
	}
	for attempt := 1; attempt <= 4; attempt++ {
		route, _ := plan.Route(topology.Retry{Delay: 5 * time.Second, Attempt: attempt})
		fmt.Println("attempt", attempt, "waits in", route.RoutingKey)
	}
	route, _ := plan.Route(topology.Retry{Delay: 20 * time.Second, Attempt: 1}) // asked for by an error
	fmt.Println("20s wait in", route.RoutingKey)
	// Output:
	// attempt 1 waits in orders.retry.1.5s
	// attempt 2 waits in orders.retry.2.5s
	// attempt 3 waits in orders.retry.2.5s
	// attempt 4 waits in orders.retry.2.5s
	// 20s wait in orders.retry.3.1m
}

func TestPerAttemptPlan(t *testing.T) {
	t.Parallel()
	const ms, s = time.Millisecond, time.Second
	ladder := []string{"q.retry.1.1s", "q.retry.2.5s", "q.retry.3.30s", "q.retry.4.2m", "q.retry.5.10m", "q.retry.6.1h"}
	cases := map[string]struct {
		strategy topology.PerAttempt
		delays   []time.Duration
		want     []string
	}{
		"the policy's delays":          {topology.PerAttempt{}, []time.Duration{s, 2 * s, 3 * s}, []string{"q.retry.1.1s", "q.retry.2.2s", "q.retry.3.3s"}},
		"repeated":                     {topology.PerAttempt{Delays: []time.Duration{s, s}}, []time.Duration{s}, []string{"q.retry.1.1s", "q.retry.2.1s"}},
		"down again":                   {topology.PerAttempt{Delays: []time.Duration{3 * s, s, 3 * s}}, []time.Duration{s, 3 * s}, []string{"q.retry.2.1s", "q.retry.1.3s", "q.retry.3.3s"}},
		"more than the series":         {topology.PerAttempt{Delays: []time.Duration{2 * s, s}}, []time.Duration{s, 2 * s, 5 * s, 1500 * ms}, []string{"q.retry.2.1s", "q.retry.3.1.5s", "q.retry.1.2s", "q.retry.4.5s"}},
		"one of a second to set aside": {topology.PerAttempt{}, []time.Duration{100 * ms}, []string{"q.retry.1.100ms", "q.retry.0.1s"}},
		"no retries":                   {topology.PerAttempt{}, []time.Duration{}, []string{"q.retry.0.1s"}},
		"not known":                    {topology.PerAttempt{}, nil, ladder},
		"not known, a series":          {topology.PerAttempt{Delays: []time.Duration{s}}, nil, ladder[:1]},
		"not known, a ladder beside":   {topology.PerAttempt{Delays: []time.Duration{s}, WaitSteps: []time.Duration{9 * s}}, nil, []string{"q.retry.1.1s", "q.retry.2.9s"}},
		"rounded up":                   {topology.PerAttempt{Delays: []time.Duration{s + 1}}, []time.Duration{s + 2}, []string{"q.retry.1.1.001s"}},
		"classic":                      {topology.PerAttempt{Type: topology.Classic}, []time.Duration{s}, []string{"q.retry.1.1s.classic"}},
		"through an exchange":          {topology.PerAttempt{Via: "events"}, []time.Duration{s}, []string{"q.retry.1.1s.to.events"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan, err := c.strategy.Plan("q", c.delays)
			require.NoError(t, err)
			var names []string
			for _, q := range plan.Queues {
				if q.Delay > 0 {
					names = append(names, q.Name)
				}
			}
			require.Equal(t, c.want, names)
			require.Equal(t, "q.dlq", plan.Dead.RoutingKey)
			for i, rung := range plan.WaitSteps {
				waits, end := rig.Walk(t, plan, rung)
				require.Equal(t, "q", end)
				require.Len(t, waits, 1)
				require.Equal(t, c.want[i], waits[0].Name)
				require.Equal(t, rung.Delay, waits[0].Delay)
			}
		})
	}
}

func TestPerAttemptRoutes(t *testing.T) {
	t.Parallel()
	const s = time.Second
	plan, err := topology.PerAttempt{Delays: []time.Duration{2 * s, 5 * s, 2 * s, 5 * s}}.Plan("q", nil)
	require.NoError(t, err)
	cases := map[string]struct {
		retry topology.Retry
		want  string
	}{
		"its own":                  {topology.Retry{Delay: 2 * s, Attempt: 1}, "q.retry.1.2s"},
		"its own, further on":      {topology.Retry{Delay: 2 * s, Attempt: 3}, "q.retry.3.2s"},
		"the last before it":       {topology.Retry{Delay: 2 * s, Attempt: 2}, "q.retry.1.2s"},
		"none before it":           {topology.Retry{Delay: 5 * s, Attempt: 1}, "q.retry.2.5s"},
		"beyond the last":          {topology.Retry{Delay: 2 * s, Attempt: 1000}, "q.retry.3.2s"},
		"set aside":                {topology.Retry{Delay: s}, "q.retry.1.2s"},
		"longer than its own":      {topology.Retry{Delay: 3 * s, Attempt: 3}, "q.retry.2.5s"},
		"longer than all, a round": {topology.Retry{Delay: time.Hour, Attempt: 4}, "q.retry.4.5s"},
		"garbage":                  {topology.Retry{Delay: -s, Attempt: -1}, "q.retry.1.2s"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			route, err := plan.Route(c.retry)
			require.NoError(t, err)
			require.Equal(t, c.want, route.RoutingKey)
			require.Equal(t, "q.retry", route.Exchange)
		})
	}
}

func TestPerAttemptRefuses(t *testing.T) {
	t.Parallel()
	_, err := topology.PerAttempt{
		Delays:       []time.Duration{-1, time.Second, 2 * time.Second, backoff.MaxDelay + 1},
		WaitName:     func(queue string, _ int, _ time.Duration) string { return "same" },
		ExchangeName: func(string) string { return "" },
		Type:         "stream",
	}.Plan("q", nil)
	for _, want := range []string{"delay -1ns is not positive", "at most 315360000000 ms", `"same"`, "retry exchange is empty", `"stream"`} {
		require.ErrorContains(t, err, want)
	}
}

// More failures than queues, and a delay that only an error asks for: no queue of
// no attempt, and nobody comes early.
func TestPerAttemptBeyondItsQueues(t *testing.T) {
	t.Parallel()
	var calls rig.Timeline
	var mu sync.Mutex
	var waited []string
	r := rig.Start(t, rig.Config{
		Strategy: topology.PerAttempt{Delays: []time.Duration{100 * time.Millisecond, 100 * time.Millisecond}},
		Policy:   backoff.Constant{Interval: 100 * time.Millisecond, Retries: 4},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			raw, _ := topology.Received(msg.Context())
			if calls.Add() > 1 {
				mu.Lock()
				name := raw.Headers["x-first-death-queue"].(string)
				waited = append(waited, name[strings.LastIndex(name, ".retry.")+1:])
				mu.Unlock()
			}
			if middleware.Attempt(msg.Context()) == 4 {
				return nil, middleware.RetryAfter(rig.ErrFailed, 2500*time.Millisecond)
			}
			return nil, rig.ErrFailed
		},
	})
	r.Publish(amqp.Publishing{Body: []byte("order 1")})
	dead := r.DeadLetter()
	require.Equal(t, "5", dead.Headers[header.DeadFailures])
	const ms = time.Millisecond
	calls.RequireGaps(t, 100*ms, 100*ms, 100*ms, 2450*ms) // a remainder of a round may be left out
	require.Equal(t, []string{"retry.1.100ms", "retry.2.100ms", "retry.2.100ms", "retry.0.1s"}, waited)
	require.Equal(t, -1, r.Depth(".retry.3.100ms"))
}
