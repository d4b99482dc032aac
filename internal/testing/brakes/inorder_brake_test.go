package brakes_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/budget"
	"github.com/millpond-go/millpond/middleware/outage"
	"github.com/millpond-go/millpond/topology/inorder"
)

// newOrderedFleet is a fleet whose queue is handled in order. Each message has its own key.
func newOrderedFleet(t *testing.T, p plan) *fleet {
	t.Helper()
	p.queue = testbroker.Queue(t)
	p.strategy = inorder.Strategy{
		KeyBy: func(msg *message.Message) string { return string(msg.Payload) },
	}
	p.arguments = rig.OneActive()
	rig.RemovePlan(t, testbroker.URL(t), p.strategy, p.queue, nil)
	return newFleet(t, p)
}

// Given a dozen instances and failed messages that wait in the line for longer than a prober waits
// for a message, when they are due, then the instance that may probe leads the queue.
func TestManyInstancesProbeALine(t *testing.T) {
	t.Parallel()
	f := newOrderedFleet(t, plan{
		budget: func(cfg *budget.Config) { cfg.Delay = 20 * time.Second },
		brake: func(b *outage.Brake) {
			b.Probe = backoff.Constant{Interval: 500 * time.Millisecond}
		},
	})
	for range 12 {
		f.add()
	}
	f.setOut(true)
	f.send(6)
	f.awaitStopped(true)
	stopped := time.Now()
	rig.WaitFor(t, "all messages to be snoozed after a probe", func() bool {
		return testbroker.Depth(t, f.url, f.queue) == 0 && len(f.since(stopped)) >= 6
	})
	f.setOut(false)
	back := time.Now()
	f.awaitStopped(false)
	took := time.Since(back)
	t.Logf("the brake starts %v after the downstream is back", took)
	require.Less(t, took, 20*time.Second+2*rig.Ceiling)
	f.awaitHandled()
}
