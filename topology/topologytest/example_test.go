package topologytest_test

import (
	"testing"

	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/topologytest"
)

// A test of a strategy. (It has no "Output:" because it needs the *testing.T of a test.)
func ExampleRun() {
	_ = func(t *testing.T) { // func TestTenants(t *testing.T)
		topologytest.Run(t, topologytest.Config{
			Strategy:     topology.Shared{Prefix: "test-of-tenants"},
			URL:          "amqp://guest:guest@localhost:5672/",
			DeleteShared: true, // no other program has this prefix
		})
	}
}
