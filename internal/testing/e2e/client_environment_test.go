package e2e_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// Given a client with a logger and observers, then a DelayedRetry can take both from it.
func TestClientGivesItsLoggerAndObservers(t *testing.T) {
	t.Parallel()
	url, logger := testbroker.URL(t), watermill.NewCaptureLogger()
	var told []middleware.Observer
	for range 2 {
		told = append(told, middleware.ObserverFunc(func(context.Context, middleware.Event) {}))
	}
	client, err := topology.Open(t.Context(), rig.ConnectionConfig(url), topology.PerQueue{},
		topology.WithLogger(logger), topology.WithObserver(told[0]), topology.WithObserver(told[1]))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	require.Same(t, logger, client.Logger())
	require.Len(t, client.Observers(), 2)
	client.Observers()[0] = nil
	require.NotNil(t, client.Observers()[0], "the caller owns the slice")
}
