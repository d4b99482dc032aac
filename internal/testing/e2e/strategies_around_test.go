package e2e_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/inorder"
	"github.com/millpond-go/millpond/topology/native"
)

// ordersInOrder handles the queue orders in order, and others as topology.PerQueue does.
type ordersInOrder struct{ inorder.Strategy }

func (s ordersInOrder) Plan(queue string, delays []time.Duration) (topology.Plan, error) {
	if queue != "orders" {
		return s.Else.Plan(queue, delays)
	}
	return s.Strategy.Plan(queue, delays)
}

// A strategy of the user's own that embeds inorder.Strategy plans some queues without an order. One
// that only calls it, or that adds a line to another strategy's plan, is refused.
func TestStrategiesAroundInOrder(t *testing.T) {
	t.Parallel()
	ordered := inorder.Strategy{KeyBy: keyOf}
	for name, c := range map[string]struct {
		strategy topology.Strategy
		queue    string
		refused  bool
	}{
		"embedded":              {ordersInOrder{ordered}, "orders", false},
		"a pointer to embedded": {&ordersInOrder{ordered}, "orders", false},
		"without an order":      {ordersInOrder{ordered}, "mails", false},
		"a pointer":             {&ordered, "orders", false},
		"only its plan":         {struct{ topology.Strategy }{ordered}, "orders", true},
		"the line of another": {
			lined{native.Strategy{Min: time.Second, Max: time.Second}}, "orders", true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
				if c.refused {
					err := rig.SubscribeError(t, rig.OpenClient(t, broker.URL(), c.strategy),
						rig.QueueConfig(broker.URL()), c.queue, often(time.Second))
					require.ErrorContains(t, err, "neither inorder.Strategy nor native.Strategy")
					return
				}
				h := newHandler()
				cfg := inMemory(broker, orderedBy(ordered, often(time.Second), h.handle))
				cfg.Queue, cfg.Strategy = c.queue, c.strategy
				s := rig.Start(t, cfg)
				s.Send("a:0")
				time.Sleep(500 * time.Millisecond)
				h.open.Store(true)
				time.Sleep(2 * time.Second)
				require.Equal(t, []string{"a:0"}, h.of("a"))
			})
		})
	}
}

// lined adds a line to the plan of a strategy without an order.
type lined struct{ native.Strategy }

func (s lined) Plan(queue string, delays []time.Duration) (topology.Plan, error) {
	plan, err := inorder.Strategy{}.Plan(queue, delays)
	plan.RejectMin, plan.RejectMax = s.Min, s.Max
	return plan, err
}
