package topology_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// However many subscriptions a Client has, each growth of their stranded queue is one
// line. One that shrinks is none.
func TestStrandedMessagesAreSaidOnceForAClient(t *testing.T) {
	t.Parallel()
	url, strategy := testbroker.URL(t), rig.Shared(t, topology.Quorum)
	stranded, policy, logs := strategy.Prefix+".stranded", backoff.List{time.Second}, &rig.Logs{}
	client, sub := rig.OpenSubscriber(t, url, strategy, policy, topology.WithLogger(logs), topology.WithStrandedPause(50*time.Millisecond))
	queues := []string{testbroker.Queue(t), testbroker.Queue(t)}
	for _, queue := range queues {
		rig.RemovePlan(t, url, strategy, queue, policy)
		require.NoError(t, sub.SubscribeInitialize(queue))
	}
	rig.Fill(t, url, stranded, 2)
	subscribe := func() {
		for _, queue := range queues {
			_, err := sub.Subscribe(t.Context(), queue)
			require.NoError(t, err)
		}
	}
	said := func(want ...int) {
		t.Helper()
		rig.WaitFor(t, "the log to say it", func() bool { return len(logs.Saying("Messages are stranded")) >= len(want) })
		lines := logs.Saying("Messages are stranded")
		require.Len(t, lines, len(want))
		for i, n := range want {
			require.Contains(t, lines[i], fmt.Sprintf("messages:%d queue:%s", n, stranded))
		}
	}
	rig.WaitFor(t, "two messages", func() bool { return testbroker.Depth(t, url, stranded) == 2 })
	subscribe()
	said(2)
	rig.Fill(t, url, stranded, 1)
	said(2, 3)
	ch := testbroker.Channel(t, url)
	_, err := ch.QueuePurge(stranded, false)
	require.NoError(t, err)
	rig.WaitFor(t, "none", func() bool { return testbroker.Depth(t, url, stranded) == 0 })
	require.NoError(t, client.Close())
	said(2, 3)
}
