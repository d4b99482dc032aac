package topologytest_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/inorder"
	"github.com/millpond-go/millpond/topology/topologytest"
)

// strategies are all strategies of topology. A new strategy is a line here. The parts that several
// queues share have names of the test.
func strategies(t testing.TB) map[string]topology.Strategy {
	t.Helper()
	topic := []string{rig.TopicExchange(t)}
	return map[string]topology.Strategy{
		"PerQueue":           topology.PerQueue{},
		"PerQueue classic":   topology.PerQueue{Type: topology.Classic},
		"PerQueue Via":       topology.PerQueue{Via: topic, Prefix: testbroker.Queue(t)},
		"PerAttempt":         topology.PerAttempt{},
		"PerAttempt classic": topology.PerAttempt{Type: topology.Classic},
		"Shared":             rig.Shared(t, topology.Quorum),
		"Shared classic":     rig.Shared(t, topology.Classic),
		"Shared Via":         rig.SharedVia(t, rig.TopicExchange(t)),
		"Levels":             rig.Levels(t, topology.Quorum),
		"Levels classic":     rig.Levels(t, topology.Classic),
	}
}

// Native passes it, on a queue that holds rejected messages. The first delay of the suite is the
// queue's.
func TestNativeKeepsItsPromises(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	strategy, args := rig.Native(t, url, 300*time.Millisecond, 300*time.Millisecond)
	topologytest.Run(t, topologytest.Config{
		Strategy: strategy, URL: url, QueueArguments: args, Patience: rig.Patience,
	})
}

// InOrder passes it, on queues with a single active consumer.
func TestInOrderKeepsItsPromises(t *testing.T) {
	t.Parallel()
	topologytest.Run(t, topologytest.Config{
		Strategy: inorder.Strategy{KeyBy: func(msg *message.Message) string { return msg.UUID }},
		URL:      testbroker.URL(t), QueueArguments: rig.OneActive(), Patience: rig.Patience,
	})
}

// Every strategy passes the suite that users run on theirs.
func TestEveryStrategyKeepsItsPromises(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	for name, strategy := range strategies(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topologytest.Run(t, topologytest.Config{
				Strategy: strategy, URL: url, DeleteShared: true, Patience: rig.Patience,
			})
		})
	}
}
