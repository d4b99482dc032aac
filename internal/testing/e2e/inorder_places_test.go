package e2e_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/inorder"
)

// Given a handler that hangs at the only place, and a message that waits for the place, when the
// process loses the queue, then it gives the lead away, and another process goes on.
func TestALeaderWithoutAFreePlaceLosesItsQueue(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		h := newHandler()
		cfg := orderedBy(inorder.Strategy{}, often(100*time.Millisecond), h.handle)
		cfg.URL, cfg.Queue, cfg.Keep = broker.URL(), "orders", true
		cfg.SubscriberOptions = []topology.SubscriberOption{topology.WithConcurrency(1)}
		leader := rig.Start(t, cfg)
		rig.Start(t, cfg)
		t.Cleanup(func() { close(h.hang) })
		leader.Send("hang:0")
		time.Sleep(time.Second)
		require.True(t, h.hangs.Load())
		leader.Send("b:0")
		time.Sleep(time.Second)
		broker.Vanish("orders")
		time.Sleep(15 * time.Second) // the patience with handlers, and the pauses of both processes
		leader.Send("b:1")
		time.Sleep(time.Second)
		require.Equal(t, []string{"b:1"}, h.of("b"))
	})
}

// Given a message in the line, when a process takes the lead, then it handles the message while it
// opens the queue.
func TestTheLineBeginsBeforeTheQueue(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		h := newHandler()
		cfg := orderedBy(inorder.Strategy{}, often(time.Minute), h.handle)
		cfg.URL, cfg.Queue, cfg.Keep = broker.URL(), "orders", true
		before := rig.Start(t, cfg)
		before.Send("a:0")
		time.Sleep(time.Second)
		before.Stop()
		time.Sleep(time.Minute)
		h.open.Store(true)
		rig.Start(t, cfg)
		time.Sleep(time.Second)
		require.Equal(t, []string{"a:0"}, h.of("a"))
	})
}
