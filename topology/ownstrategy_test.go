package topology_test

import (
	"os"
	"testing"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology/topologytest"
)

// Later, the strategy of the Example, passes the suite.
func TestLater(t *testing.T) {
	t.Parallel()
	url := os.Getenv("AMQP_URL")
	if url == "" {
		url = testbroker.URL(t)
	}
	topologytest.Run(t, topologytest.Config{
		Strategy: Later{},
		URL:      url,
		Patience: rig.Patience,
	})
}

// InExchange passes the suite on a node that has the plugin.
func TestInExchange(t *testing.T) {
	t.Parallel()
	topologytest.Run(t, topologytest.Config{
		Strategy: InExchange{}, URL: testbroker.Private(t, testbroker.DelayedPlugin(t)).URL(),
		DeleteShared: true, Patience: rig.Patience,
	})
}
