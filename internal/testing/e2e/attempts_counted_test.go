package e2e_test

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/passage"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// goqueueNames gives a PerAttempt the names of the design goqueue, and a dead-letter exchange that
// exists, with the queue graveyard behind it.
func goqueueNames(
	t testing.TB, url, queue string, s topology.PerAttempt,
) (named topology.PerAttempt, graveyard string) {
	t.Helper()
	dlx, graveyard := queue+"__dlx", queue+"__dlq"
	testbroker.Delete(t, graveyard)
	rig.DeclareExchange(t, url, dlx, "fanout")
	rig.BindQueue(t, url, graveyard, dlx, "")
	s.WaitName = func(queue string, attempt int, _ time.Duration) string {
		return fmt.Sprintf("%s__retry.%d", queue, attempt)
	}
	s.ExchangeName = func(queue string) string { return queue + "__retry_exchange" }
	s.Dead = topology.DeadLetters{
		Target: func(queue string) topology.Route { return topology.Route{Exchange: queue + "__dlx"} },
	}
	return s, graveyard
}

// goqueueRow: given a policy for each error (linear, exponential, custom; ten times as fast), when
// messages fail, then each has exactly its retries and then is a dead letter.
func goqueueRow(t *testing.T, strategy topology.Strategy) {
	const doomed, ms = 50, time.Millisecond
	linear := backoff.Linear{Initial: 100 * ms, Step: 100 * ms, Retries: 3}
	errs := map[string]error{"network": &net.OpError{Op: "dial", Err: errors.New("refused")}}
	others := "linear exponential custom database unknown boundary"
	for _, body := range strings.Fields(others) {
		errs[body] = errors.New(body)
	}
	of := func(body string, p backoff.Policy) backoff.Case {
		return backoff.Case{Match: backoff.Is(errs[body]), Policy: p}
	}
	policy := backoff.ByError{Default: backoff.None{}, Cases: []backoff.Case{
		of("linear", linear),
		of("exponential", backoff.Exponential{Initial: 100 * ms, Factor: 2, Retries: 4}),
		of("custom", backoff.List{300 * ms, 100 * ms, 400 * ms}),
		{Match: backoff.As[*net.OpError](), Policy: backoff.Constant{Interval: 100 * ms, Retries: 2}},
		of("database", backoff.Exponential{Initial: 100 * ms, Factor: 4, Retries: 2}),
		of("boundary", backoff.List{200 * ms, 200 * ms}),
	}}
	want := map[string][]time.Duration{
		"linear": {100 * ms, 200 * ms, 300 * ms}, "exponential": {100 * ms, 200 * ms, 400 * ms, 800 * ms},
		"custom": {300 * ms, 100 * ms, 400 * ms}, "network": {100 * ms, 100 * ms},
		"database": {100 * ms, 400 * ms}, "unknown": {},
	}

	url, queue := testbroker.URL(t), testbroker.Queue(t)
	graveyard := queue + ".dlq"
	perAttempt, named := strategy.(topology.PerAttempt)
	if named {
		perAttempt.Delays, _ = backoff.Delays(linear)
		strategy, graveyard = goqueueNames(t, url, queue, perAttempt)
	}
	names := func(delays ...time.Duration) []string {
		if !named {
			return waitNames(strategy, queue, delays...)
		}
		numbers := map[time.Duration]string{
			100 * ms: "1", 200 * ms: "2", 300 * ms: "3", 400 * ms: "4", 800 * ms: "5", time.Second: "0",
		}
		all := make([]string, len(delays))
		for i, d := range delays {
			all[i] = queue + "__retry." + numbers[d]
		}
		return all
	}
	calls := map[string]*rig.Timeline{"boundary": {}}
	for body := range want {
		calls[body] = &rig.Timeline{}
	}
	var rounds passage.Rounds
	r := rig.Start(t, rig.Config{
		URL: url, Queue: queue, Strategy: strategy, Policy: policy, Configure: rig.Prefetch(20),
		Rounds: &rounds,
		Handle: func(msg *message.Message) error {
			calls[string(msg.Payload)].Record(msg)
			return errs[string(msg.Payload)]
		},
	})
	for body := range want {
		r.Send(body)
	}
	r.Send(slices.Repeat([]string{"boundary"}, doomed)...)
	for body, delays := range want {
		calls[body].AwaitPassed(t, names(delays...)...)
	}
	dead := map[string]int{}
	for range len(want) + doomed {
		d := rig.Take(t, url, graveyard)
		dead[string(d.Body)]++
		require.Equal(t, "exhausted", d.Headers[header.DeadReason], "%s", d.Body)
	}
	for body, delays := range want {
		calls[body].RequireNotEarly(t, delays...)
		require.Equal(t, 1, dead[body], body)
	}
	require.Equal(t, 3*doomed, calls["boundary"].Count(), "three attempts each, and no fourth")
	require.Equal(t, doomed, dead["boundary"])
	waits := slices.DeleteFunc(calls["boundary"].Passed(),
		func(name string) bool { return name == "" })
	require.Equal(t, slices.Repeat(names(200*ms), 2*doomed), waits)
	require.Zero(t, rounds.Of(""))
	if named {
		require.Equal(t, names(100*ms, 200*ms, 300*ms, 400*ms, 800*ms, time.Second),
			rig.QueueNames(r.Plan)[:6], "a queue for each attempt")
		require.Equal(t, queue+"__dlx", r.Plan.Dead.Exchange)
		require.Equal(t, queue+"__retry_exchange", r.Plan.WaitSteps[0].Exchange)
	}
	r.Stop()
	require.Equal(t, []int{0, 0}, []int{r.Depth(""), testbroker.Depth(t, url, graveyard)})
}
