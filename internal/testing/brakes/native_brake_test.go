package brakes_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// Given a queue that holds rejected messages, when a brake stops, then prefetched messages go back,
// probes are rejected until the downstream is back, and no message is dead.
func TestAQueueThatHoldsRejectsIsProbed(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	strategy, arguments := rig.Native(t, url, time.Second, time.Minute)
	f := newFleet(t, plan{
		url: url, strategy: strategy, arguments: arguments, queue: testbroker.Queue(t), concurrency: 4,
	})
	rig.RemovePlan(t, url, strategy, f.queue, []time.Duration{time.Second})
	f.add()
	f.add()
	f.setOut(true)
	f.send(40)
	f.awaitStopped(true)
	stopped := time.Now()
	rig.WaitFor(t, "probes", func() bool { return len(f.since(stopped)) >= 5 })
	f.setOut(false)
	f.awaitStopped(false)
	f.awaitHandled()
	require.Zero(t, testbroker.Depth(t, f.url, f.queue+".dlq"))
}
