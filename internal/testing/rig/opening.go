package rig

import (
	"testing"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/stretchr/testify/require"

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

// OpenWith opens a client with a connection's configuration, and closes it at the end of the test.
func OpenWith(
	t testing.TB, conn wamqp.ConnectionConfig, strategy topology.Strategy,
	options ...topology.Option,
) *topology.Client {
	t.Helper()
	client, err := topology.Open(t.Context(), conn, strategy, options...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}
