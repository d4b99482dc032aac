package topology_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/topology"
)

func ExamplePerQueue() {
	plan, err := topology.PerQueue{}.Plan("orders", []time.Duration{5 * time.Second, 2 * time.Minute})
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
	plan, err := topology.PerQueue{}.Plan("orders", []time.Duration{time.Second, 10 * time.Second, time.Minute})
	if err != nil {
		fmt.Println(err)
	}
	for _, asked := range []time.Duration{0, time.Second, 3 * time.Second, time.Hour} {
		route, _ := plan.Route(topology.Retry{Delay: asked})
		fmt.Println(asked, "waits in", route.RoutingKey)
	}
	// Output:
	// 0s waits in orders.wait.1s
	// 1s waits in orders.wait.1s
	// 3s waits in orders.wait.10s
	// 1h0m0s waits in orders.wait.1m
}

// A policy cannot name an alternate exchange for an exchange of a plan: each has the
// argument, and the stranded exchange is the end of the way.
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
	own := topology.PerQueue{
		WaitName: func(queue string, d time.Duration) string { return "demo." + queue + ".delay_" + d.String() },
		Dead:     topology.DeadLetters{Name: func(queue string) string { return "demo." + queue + ".dead" }},
	}
	cases := map[string]struct {
		strategy topology.PerQueue
		delays   []time.Duration
		want     []string
	}{
		"sorted, distinct, rounded up": {
			topology.PerQueue{},
			[]time.Duration{5 * time.Second, time.Second, 5 * time.Second, time.Second + time.Microsecond, 1},
			[]string{"q.wait.1ms", "q.wait.1s", "q.wait.1.001s", "q.wait.5s", "q.dlq"},
		},
		"a suffix of dead letters": {
			topology.PerQueue{Dead: topology.DeadLetters{Suffix: ".failed"}}, []time.Duration{time.Second}, []string{"q.wait.1s", "q.failed"},
		},
		"a rung of a second for nacks": {topology.PerQueue{}, []time.Duration{100 * time.Millisecond}, []string{"q.wait.100ms", "q.wait.1s", "q.dlq"}},
		"five seconds are short":       {topology.PerQueue{}, []time.Duration{5 * time.Second}, []string{"q.wait.5s", "q.dlq"}},
		"more are not":                 {topology.PerQueue{}, []time.Duration{200 * time.Millisecond, 5001 * time.Millisecond}, []string{"q.wait.200ms", "q.wait.1s", "q.wait.5.001s", "q.dlq"}},
		"no retries":                   {topology.PerQueue{}, []time.Duration{}, []string{"q.wait.1s", "q.dlq"}},
		"not known: the ladder":        {topology.PerQueue{}, nil, []string{"q.wait.1s", "q.wait.5s", "q.wait.30s", "q.wait.2m", "q.wait.10m", "q.wait.1h", "q.dlq"}},
		"not known: its own ladder":    {topology.PerQueue{WaitSteps: []time.Duration{90 * time.Minute}}, nil, []string{"q.wait.1s", "q.wait.1h30m", "q.dlq"}},
		"classic":                      {topology.PerQueue{Type: topology.Classic}, []time.Duration{48 * time.Hour}, []string{"q.wait.1s.classic", "q.wait.48h.classic", "q.dlq"}},
		"names of its own":             {own, []time.Duration{2 * time.Second}, []string{"demo.q.delay_2s", "demo.q.dead"}},
		"ten years":                    {topology.PerQueue{}, []time.Duration{backoff.MaxDelay}, []string{"q.wait.1s", "q.wait.87600h", "q.dlq"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan, err := c.strategy.Plan("q", c.delays)
			require.NoError(t, err)
			var names []string
			for _, q := range plan.Queues {
				names = append(names, q.Name)
			}
			require.Equal(t, c.want, names)
			require.Equal(t, c.want[len(c.want)-1], plan.Dead.RoutingKey)
		})
	}
}

func TestPerQueueArguments(t *testing.T) {
	t.Parallel()
	plan, err := topology.PerQueue{}.Plan("q", []time.Duration{time.Second})
	require.NoError(t, err)
	require.Equal(t, amqp.Table{
		"x-queue-type": "quorum", "x-delivery-limit": int64(2147483647), "x-message-ttl": int64(1000),
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q",
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
	}, plan.Queues[0].Arguments)
	require.Equal(t, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(2147483647)}, plan.Queues[1].Arguments)
	require.Contains(t, plan.String(), "q.wait.1s  1s     x-dead-letter-exchange= x-dead-letter-routing-key=q")

	plan, err = topology.PerQueue{Type: topology.Classic}.Plan("q", []time.Duration{time.Second})
	require.NoError(t, err)
	require.Equal(t, amqp.Table{
		"x-queue-type": "classic", "x-queue-mode": "lazy", "x-message-ttl": int64(1000),
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q",
	}, plan.Queues[0].Arguments)
}

func TestPerQueueRefuses(t *testing.T) {
	t.Parallel()
	same := func(string, time.Duration) string { return "same" }
	cases := map[string]struct {
		strategy topology.PerQueue
		queue    string
		delays   []time.Duration
		want     string
	}{
		"empty queue":        {topology.PerQueue{}, "", nil, "name of the queue is empty"},
		"long queue":         {topology.PerQueue{}, strings.Repeat("q", 256), nil, "256 bytes"},
		"long with suffix":   {topology.PerQueue{}, strings.Repeat("q", 250), nil, "wait queue of 1s"},
		"zero delay":         {topology.PerQueue{}, "q", []time.Duration{0}, "not positive"},
		"negative delay":     {topology.PerQueue{}, "q", []time.Duration{-time.Second}, "delay -1s"},
		"over ten years":     {topology.PerQueue{}, "q", []time.Duration{backoff.MaxDelay + 1}, "at most 315360000000 ms"},
		"one name for two":   {topology.PerQueue{WaitName: same}, "q", []time.Duration{1, time.Second}, `"same"`},
		"the queue's name":   {topology.PerQueue{Dead: topology.DeadLetters{Name: func(q string) string { return q }}}, "q", nil, "the queue itself"},
		"empty name of ours": {topology.PerQueue{Dead: topology.DeadLetters{Name: func(string) string { return "" }}}, "q", nil, "dead-letter queue is empty"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := c.strategy.Plan(c.queue, c.delays)
			require.ErrorContains(t, err, c.want)
		})
	}
}
