package brakes_test

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
)

// Given three instances, when their downstream is out, then all stop and probe, on each kind of
// queue, and when it is back, then all start again. No message has spent an attempt by then.
func TestTheFleetStopsAndStartsTogether(t *testing.T) {
	t.Parallel()
	rig.Each(t, map[string]amqp.Table{
		"quorum": {"x-queue-type": "quorum"}, "single active consumer": rig.OneActive(), "classic": {},
	}, func(t *testing.T, arguments amqp.Table) {
		f := newFleet(t, plan{arguments: arguments})
		for range 3 {
			f.add()
		}
		f.send(20)
		f.awaitHandled()

		f.setOut(true)
		f.send(20)
		f.awaitStopped(true)
		stopped := time.Now()
		rig.WaitFor(t, "three probes", func() bool { return len(f.since(stopped)) >= 3 })
		f.send(20)
		rig.WaitFor(t, "the messages to stay in their queue", func() bool {
			return testbroker.Depth(t, f.url, f.queue) >= 20
		})
		for _, in := range f.instances {
			state := in.budget.State()
			require.True(t, state.Stopped)
			require.NotEmpty(t, state.By)
			require.Contains(t, state.Cause, "deliveries failed within 10s")
			require.NotEmpty(t, state.Prober)
		}

		f.setOut(false)
		f.awaitStopped(false)
		f.awaitHandled()
		for _, in := range f.instances {
			require.Len(t, in.events.of(middleware.EventBudgetOpened), 1)
			require.NotEmpty(t, in.events.of(middleware.EventBudgetClosed))
			require.Equal(t, 1, in.logs.Said("Consuming is stopped"))
			require.Equal(t, 1, in.logs.Said("Consuming again"))
			for _, e := range in.events.of(middleware.EventRetried) {
				require.False(t, e.At.After(stopped), "an attempt that a probe has spent")
			}
		}
		require.Zero(t, testbroker.Depth(t, f.url, f.queue+".dlq"))
	})
}

// Given a stopped fleet, when all instances restart, then the new ones do not call the downstream
// beyond their probes.
func TestAFleetThatRestartsStaysStopped(t *testing.T) {
	t.Parallel()
	f := newFleet(t, plan{})
	f.add()
	f.setOut(true)
	f.send(30)
	f.awaitStopped(true)
	f.instances[0].stop()
	f.instances = nil

	restarted := time.Now()
	for range 3 {
		f.add()
	}
	f.awaitStopped(true)
	rig.WaitFor(t, "an instance to probe", func() bool { return len(f.since(restarted)) >= 5 })
	require.LessOrEqual(t, float64(len(f.since(restarted))), 5*time.Since(restarted).Seconds()+5)

	f.setOut(false)
	f.awaitStopped(false)
	f.awaitHandled()
}
