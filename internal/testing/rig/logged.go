package rig

import (
	"testing"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
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

// DeleteQueue deletes a queue at once.
func DeleteQueue(t testing.TB, url, queue string) {
	t.Helper()
	_, err := testbroker.Channel(t, url).QueueDelete(queue, false, false, false)
	require.NoError(t, err)
}

// RequireTexts requires an error that contains every text, and logs it.
func RequireTexts(t testing.TB, err error, texts ...string) {
	t.Helper()
	for _, text := range texts {
		require.ErrorContains(t, err, text)
	}
	t.Log(err)
}
