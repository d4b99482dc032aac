package discover_test

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// The plan with the dead-letter queue that the user names is the plan that was declared.
func withDead(p place) {
	dead := topology.DeadLetters{
		Name:      func(queue string) string { return "letters of " + queue },
		Arguments: amqp.Table{"x-max-length": int64(9), "x-overflow": "reject-publish"},
	}
	plan := p.provision("q", topology.Shared{Dead: dead}, time.Second)
	other := p.provision("other", topology.PerQueue{}, time.Second)
	rig.DeclareQueue(p.t, p.url, "own", amqp.Table{"x-queue-type": "quorum"})
	v := p.find()
	m, _ := v.Main("q")
	got, err := v.WithDead(m, "letters of q")
	require.NoError(p.t, err)
	requirePlan(p.t, plan, got)
	require.NoError(p.t, topology.ValidatePlan(got))
	require.Empty(p.t, m.Plan.Dead)
	works(p.t, rig.OpenOperator(p.t, p.url, operate.WithManagement(p.api)), got)

	m, _ = v.Main("other")
	for range 2 { // in place of other.dlq; the second time with the plan that it gave
		got, err = v.WithDead(m, "own")
		require.NoError(p.t, err)
		want := topology.Queue{Name: "own", Adopt: true}
		require.Equal(p.t, []topology.Queue{other.Queues[0], want}, got.Queues)
		require.Equal(p.t, topology.Route{RoutingKey: "own"}, got.Dead)
		require.Equal(p.t, other, p.main("other").Plan)
		m.Plan = got
	}
	for queue, text := range map[string]string{
		"gone":             `has no queue "gone" that could keep the dead letters of queue "other"`,
		"other":            `queue "other" cannot keep its own dead letters`,
		"other.wait.1s":    `"other.wait.1s" is a wait queue`,
		"millpond.wait.1s": `"millpond.wait.1s" is a wait queue`,
	} {
		_, err := v.WithDead(m, queue)
		require.ErrorContains(p.t, err, text)
	}
}
