package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

func TestMain(m *testing.M) { testbroker.Main(m, func() error { return goleak.Find() }) }

func TestQueueGainsRetriesAndLosesThemAgain(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), url, queue, &out), "%s", &out)
	t.Log(out.String())
	for _, step := range steps {
		require.Contains(t, out.String(), step.title+"\n")
		for _, o := range step.orders {
			require.Equal(t, o.fails, strings.Count(out.String(), "  "+o.name+" fails at "), o.name)
			require.Equal(t, 1, strings.Count(out.String(), "  "+o.name+" is handled "), o.name)
		}
	}
	// Old instances count no attempts.
	require.Contains(t, out.String(), "order-2 is handled at attempt 2, which no count says\n")
	require.Contains(t, out.String(), "order-6 is handled at attempt 2, counted as 2\n")
}

func TestBrokerThatIsAwayIsAnError(t *testing.T) {
	t.Parallel()
	require.Error(t, run(context.Background(), "amqp://127.0.0.1:1/", "orders", &bytes.Buffer{}))
}
