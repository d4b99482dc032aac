package topology_test

import (
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/topology"
)

// What is wrong with a strategy of this package is said by Open all the same.
func TestOpenNamesWhatIsWrongWithAStrategy(t *testing.T) {
	t.Parallel()
	both := topology.DeadLetters{
		Name:   func(string) string { return "dead" },
		Target: func(string) topology.Route { return topology.Route{Exchange: "dead"} },
	}
	own := amqp.Table{"x-message-ttl": 1}
	for want, strategies := range map[string][]topology.Strategy{
		"is not positive": {
			topology.PerQueue{WaitSteps: []time.Duration{0}},
			&topology.Shared{WaitSteps: []time.Duration{0}},
			topology.PerAttempt{Delays: []time.Duration{0}},
			topology.PerAttempt{WaitSteps: []time.Duration{0}},
		},
		"is unknown":               {topology.PerQueue{Type: "x"}, topology.Shared{Type: "x"}, topology.PerAttempt{Type: "x"}, topology.Levels{Type: "x"}},
		"both a Target":            {topology.PerQueue{Dead: both}, topology.Shared{Dead: both}, topology.PerAttempt{Dead: both}, topology.Levels{Dead: both}},
		"x-message-ttl of the":     {topology.PerQueue{WaitArguments: own}, topology.Shared{WaitArguments: own}, topology.PerAttempt{WaitArguments: own}, topology.Levels{WaitArguments: own}},
		"is not in whole":          {topology.Levels{Resolution: 1}},
		"resolution 6s is over 5s": {topology.Levels{Resolution: 6 * time.Second}},
	} {
		for _, strategy := range strategies {
			_, err := topology.Open(t.Context(), wamqp.ConnectionConfig{AmqpURI: "amqp://127.0.0.1:1/"}, strategy)
			require.ErrorContains(t, err, "strategy: ", "%T", strategy)
			require.ErrorContains(t, err, want, "%T", strategy)
		}
	}
}
