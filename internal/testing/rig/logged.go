package rig

import (
	"testing"

	"github.com/millpond-go/millpond/topology"
)

// OpenLogged opens a client, keeps its log, and closes the client at the end of the test.
func OpenLogged(
	t testing.TB, url string, strategy topology.Strategy, options ...topology.Option,
) (*topology.Client, *Logs) {
	t.Helper()
	logs := &Logs{}
	return OpenClient(t, url, strategy, append(options, topology.WithLogger(logs))...), logs
}
