package chaos

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestSchedule(t *testing.T) {
	t.Parallel()
	const d = 10 * time.Minute
	s := NewSchedule(1, d, 3, true)
	assert.Equal(t, s, NewSchedule(1, d, 3, true), "a seed is a schedule")
	assert.NotEqual(t, s, NewSchedule(2, d, 3, true))

	kinds := map[Kind]int{}
	for _, lane := range [][]Fault{s.Broker, s.Clients} {
		before := time.Duration(0)
		for _, f := range lane {
			kinds[f.Kind]++
			assert.Greater(t, f.At, before)
			assert.Less(t, f.At, d)
			before = f.At + f.Hold
		}
	}
	for _, kind := range []Kind{
		KillNode, KillMajority, FreezeNode, RestartNode, RaiseAlarm, FillDLQ, DeleteQueue, DeleteExchange, DeleteBinding,
		KillConsumer, StopConsumer, CutClients, Blackhole,
	} {
		assert.Positive(t, kinds[kind], kind)
	}
	assert.GreaterOrEqual(t, kinds[KillNode], 10)
	assert.GreaterOrEqual(t, kinds[KillConsumer], 10)

	for _, f := range NewSchedule(1, d, 1, false).Broker {
		assert.NotContains(t, []Kind{KillMajority, DeleteExchange, DeleteBinding}, f.Kind)
	}
}
