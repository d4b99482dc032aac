package chaos

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/topology"
)

func TestARunWithAllStrategiesHasAQueueForEach(t *testing.T) {
	t.Parallel()
	all, err := newLines(AllStrategies, "")
	require.NoError(t, err)
	require.Len(t, all, len(Strategies))
	queues := map[string]bool{}
	for n := range 10 * len(all) {
		l := all.of(n)
		queues[l.queue] = true
		assert.Contains(t, l.plan.Queues[0].Name+l.plan.Dead.RoutingKey, l.queue)
		assert.Contains(t, names(l.plan), l.last())
	}
	assert.Len(t, queues, len(all), "messages are dealt to every queue")
	assert.Equal(t, []string{"millpond.stranded"}, all.stranded())

	seen := map[string]bool{}
	for _, q := range all.parts().Queues {
		assert.False(t, seen[q.Name], "%s is there twice", q.Name)
		seen[q.Name] = true
	}

	one, err := newLines("perattempt", "")
	require.NoError(t, err)
	assert.Equal(t, "orders", one.of(7).queue)
	assert.Equal(t, "orders.retry.4.4s", one[0].last())
	_, err = newLines("nothing", "")
	assert.ErrorContains(t, err, "nothing")
}

func names(p topology.Plan) (all []string) {
	for _, q := range p.Queues {
		all = append(all, q.Name)
	}
	return all
}
