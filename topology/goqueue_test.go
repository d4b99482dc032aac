package topology_test

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/topology/operate"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// goqueueNames gives a PerAttempt the names of the row, in front of a dead-letter
// exchange that is there.
func goqueueNames(t testing.TB, url, queue string, s topology.PerAttempt) (named topology.PerAttempt, graveyard string) {
	t.Helper()
	ch := testbroker.Channel(t, url)
	dlx := queue + "__dlx"
	graveyard = queue + "__dlq"
	testbroker.Delete(t, graveyard)
	t.Cleanup(func() { _ = testbroker.Channel(t, url).ExchangeDelete(dlx, false, false) })
	require.NoError(t, ch.ExchangeDeclare(dlx, "fanout", true, false, false, false, nil))
	_, err := ch.QueueDeclare(graveyard, true, false, false, false, nil)
	require.NoError(t, err)
	require.NoError(t, ch.QueueBind(graveyard, "", dlx, false, nil))
	s.WaitName = func(queue string, attempt int, _ time.Duration) string {
		return fmt.Sprintf("%s__retry.%d", queue, attempt)
	}
	s.ExchangeName = func(queue string) string { return queue + "__retry_exchange" }
	s.Dead = topology.DeadLetters{Target: func(queue string) topology.Route { return topology.Route{Exchange: queue + "__dlx"} }}
	return s, graveyard
}

// goqueueRow is the scenario row "goqueue": linear, exponential and custom delays,
// ten times as fast; a policy chosen by the error, a minute at a rate limit; statistics; a budget; and
// exactly as many retries as there are to be.
func goqueueRow(t *testing.T, strategy topology.Strategy) {
	const limited, doomed, limit = 10, 50, time.Minute
	linear := backoff.Linear{Initial: 100 * time.Millisecond, Step: 100 * time.Millisecond, Retries: 3}
	errs := map[string]error{
		"linear": errors.New("linear"), "exponential": errors.New("exponential"), "custom": errors.New("custom"),
		"network": &net.OpError{Op: "dial", Err: errors.New("refused")}, "rate limit": errors.New("slow down"),
		"database": errors.New("deadlock"), "unknown": errors.New("what?"), "boundary": errors.New("never"),
	}
	policy := backoff.ByError{Default: backoff.None{}, Cases: []backoff.Case{
		{Match: backoff.Is(errs["linear"]), Policy: linear},
		{Match: backoff.Is(errs["exponential"]), Policy: backoff.Exponential{Initial: 100 * time.Millisecond, Factor: 2, Retries: 4}},
		{Match: backoff.Is(errs["custom"]), Policy: backoff.List{300 * time.Millisecond, 100 * time.Millisecond, 400 * time.Millisecond}},
		{Match: backoff.As[*net.OpError](), Policy: backoff.Constant{Interval: 100 * time.Millisecond, Retries: 2}},
		{Match: backoff.Is(errs["rate limit"]), Policy: backoff.Constant{Interval: limit, Retries: 1}},
		{Match: backoff.Is(errs["database"]), Policy: backoff.Exponential{Initial: 100 * time.Millisecond, Factor: 4, Retries: 2}},
		{Match: backoff.Is(errs["boundary"]), Policy: backoff.List{200 * time.Millisecond, 200 * time.Millisecond}},
	}}
	want := map[string][]time.Duration{ // in milliseconds
		"linear": {100, 200, 300}, "exponential": {100, 200, 400, 800}, "custom": {300, 100, 400},
		"network": {100, 100}, "database": {100, 400}, "unknown": {},
	}

	url, queue := testbroker.URL(t), testbroker.Queue(t)
	graveyard := queue + ".dlq"
	perAttempt, named := strategy.(topology.PerAttempt)
	if named {
		perAttempt.Delays, _ = backoff.Delays(linear)
		strategy, graveyard = goqueueNames(t, url, queue, perAttempt)
	}
	calls := map[string]*rig.Timeline{"boundary": {}}
	for body := range want {
		calls[body] = &rig.Timeline{}
	}
	var mu sync.Mutex
	var queues []string // that linear has waited in
	r := rig.Start(t, rig.Config{
		URL: url, Queue: queue, Strategy: strategy, Policy: policy, Configure: rig.Prefetch(20),
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			body := string(msg.Payload)
			if body == "limited" {
				return nil, errs["rate limit"]
			}
			if n := calls[body].Add(); body == "linear" && n > 1 {
				raw, _ := topology.Received(msg.Context())
				mu.Lock()
				defer mu.Unlock()
				queues = append(queues, raw.Headers["x-first-death-queue"].(string))
			}
			return nil, errs[body]
		},
	})
	for body := range want {
		r.Publish(amqp.Publishing{Body: []byte(body)})
	}
	for range doomed {
		r.Publish(amqp.Publishing{Body: []byte("boundary")})
	}
	dead := map[string]int{}
	for range len(want) + doomed {
		d := rig.Take(t, url, graveyard)
		dead[string(d.Body)]++
		require.Equal(t, "exhausted", d.Headers[header.DeadReason], "%s", d.Body)
	}
	for body, delays := range want {
		for i := range delays {
			delays[i] *= time.Millisecond
		}
		calls[body].RequireGaps(t, delays...)
		require.Equal(t, 1, dead[body], body)
	}
	require.Equal(t, 3*doomed, calls["boundary"].Count(), "three attempts each, and no fourth")
	require.Equal(t, doomed, dead["boundary"])
	if named {
		want := []string{queue + "__retry.1", queue + "__retry.2", queue + "__retry.3"}
		require.Equal(t, want, queues, "a queue for each attempt")
		for _, q := range r.Plan.Queues {
			require.True(t, q.Delay == 0 || strings.HasPrefix(q.Name, queue+"__retry."), q.Name)
		}
		if perAttempt.Via == "" {
			require.Equal(t, queue+"__retry_exchange", r.Plan.WaitSteps[0].Exchange)
		}
	}

	// Statistics of the main and of the retry queues: the longest wait is not waited for.
	for range limited {
		r.Publish(amqp.Publishing{Body: []byte("limited")})
	}
	o := rig.OpenOperator(t, r.URL)
	rig.WaitFor(t, "the statistics to show what waits", func() bool {
		report, err := o.Inspect(t.Context(), r.Plan)
		require.NoError(t, err)
		main, wait := 0, 0
		for _, q := range report.Queues {
			switch q.Role {
			case operate.RoleMain:
				main += q.Ready.N
			case operate.RoleWait:
				wait += q.Ready.N
			}
		}
		return main == 0 && wait == limited
	})
	if route, err := r.Plan.Route(topology.Retry{Delay: limit, Attempt: 1}); r.Plan.Levels == nil {
		require.NoError(t, err)
		i := slices.IndexFunc(r.Plan.WaitSteps, func(rung topology.Route) bool { return rung == route })
		require.Equal(t, limited, testbroker.Depth(t, url, r.Plan.Queues[i].Name), "in the queue of the rate limit")
	}
	r.Stop()
	require.Equal(t, 0, testbroker.Depth(t, url, queue))
	require.Equal(t, 0, testbroker.Depth(t, url, graveyard))
	goqueueBudget(t, strategy)
}

// goqueueBudget: so many retries a minute, the excess to the DLQ.
func goqueueBudget(t *testing.T, strategy topology.Strategy) {
	const granted, messages = 5, 8
	budget, err := middleware.NewBudget(middleware.BudgetConfig{Window: time.Minute, Retries: granted, DeadLetter: true})
	require.NoError(t, err)
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	var handled rig.Timeline
	r := rig.Start(t, rig.Config{
		URL: url, Queue: queue, Strategy: rig.WithDeadLetters(strategy, topology.DeadLetters{}), Policy: backoff.List{100 * time.Millisecond},
		RetryOptions: []middleware.Option{middleware.WithBudget(budget)},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			if middleware.Attempt(msg.Context()) == 1 {
				return nil, rig.ErrFailed
			}
			handled.Add()
			return nil, nil
		},
	})
	rig.Fill(t, url, queue, messages)
	for range messages - granted {
		require.Equal(t, "over_budget", rig.Take(t, url, queue+".dlq").Headers[header.DeadReason])
	}
	rig.WaitFor(t, "the others are handled", func() bool { return handled.Count() == granted })
	r.Stop()
	require.Equal(t, 0, testbroker.Depth(t, url, queue+".dlq"))
}

// A thousand messages at the limit of their attempts: every one is in the DLQ, after
// exactly as many attempts, and the queue of no attempt is missing.
func TestNoneIsLostAtTheLastAttempt(t *testing.T) {
	t.Parallel()
	const messages = 1000
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	strategy, graveyard := goqueueNames(t, url, queue, topology.PerAttempt{Delays: []time.Duration{100 * time.Millisecond, 100 * time.Millisecond, 100 * time.Millisecond}})
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		URL: url, Queue: queue, Strategy: strategy, Policy: backoff.Constant{Interval: 100 * time.Millisecond, Retries: 3},
		SubscriberOptions: []topology.SubscriberOption{topology.WithConcurrency(50)},
		Handler: func(*message.Message) ([]*message.Message, error) {
			calls.Add()
			return nil, rig.ErrFailed
		},
	})
	rig.Fill(t, url, queue, messages)
	rig.WaitFor(t, "every message is in the DLQ", func() bool { return testbroker.Depth(t, url, graveyard) == messages })
	r.Stop()
	require.Equal(t, 4*messages, calls.Count())
	require.Equal(t, 0, testbroker.Depth(t, url, queue))
	require.Equal(t, 0, rig.Waiting(t, url, r.Plan))
	require.Equal(t, -1, testbroker.Depth(t, url, queue+"__retry.4"))
}
