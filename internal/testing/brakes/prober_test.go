package brakes_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// Given that the process that probes is killed, frozen or cut off, when the broker has noticed,
// then another instance probes, the first one does not go on beside it, and everything is handled
// in the end.
func TestTheProberIsLost(t *testing.T) {
	t.Parallel()
	kill := func(p *process, _ *testbroker.Proxy) error { return p.cmd.Process.Kill() }
	for name, c := range map[string]struct {
		lose, back func(p *process, proxy *testbroker.Proxy) error
		classic    bool // the queue
	}{
		"killed":                       {lose: kill},
		"killed, with a classic queue": {lose: kill, classic: true},
		"frozen": {
			lose: func(p *process, _ *testbroker.Proxy) error { return p.signal(syscall.SIGSTOP) },
			back: func(p *process, _ *testbroker.Proxy) error { return p.signal(syscall.SIGCONT) },
		},
		"cut off": {
			lose: func(_ *process, proxy *testbroker.Proxy) error { proxy.Freeze(true); return nil },
			back: func(_ *process, proxy *testbroker.Proxy) error { proxy.Freeze(false); return nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queue := amqp.Table{"x-queue-type": "quorum"}
			if c.classic {
				queue = amqp.Table{"x-queue-type": "classic"}
			}
			f := newFleet(t, plan{heartbeat: quickHeartbeat, arguments: queue})
			proxy := testbroker.NewProxy(t, f.url)
			p := f.addProcess("the prober", proxy.URL())
			f.setOut(true)
			f.send(30)
			rig.WaitFor(t, "the process to probe", func() bool { return len(f.since(time.Time{})) > 10 })
			a, b := f.add(), f.add()
			// On a busy machine the token may have gone on: news of the process came back too late.
			rig.WaitFor(t, "the process to probe still", func() bool {
				switch f.watching(a, b) { // the prober comes again, behind the process
				case a.name:
					a.stop()
					a = f.add()
				case b.name:
					b.stop()
					b = f.add()
				}
				return a.sees(p.name) && b.sees(p.name)
			})
			f.instances = []*instance{a, b}

			lost := time.Now()
			require.NoError(t, c.lose(p, proxy))
			rig.WaitFor(t, "another instance to probe", func() bool { return f.watching(a, b) != "" })
			took := time.Since(lost)
			if c.back != nil {
				require.NoError(t, c.back(p, proxy))
			}
			back := time.Now()
			rig.WaitFor(t, "so many probes that the first one's would show", func() bool {
				return len(f.since(back)) >= 6
			})
			after := 0
			for _, call := range f.since(lost) {
				if call.instance == p.name && call.prober != "" {
					after++
				}
			}
			t.Logf("another instance probes after %v; the first one made %d calls beside it", took, after)
			require.LessOrEqual(t, after, 1, "a probe that had begun may end")
			for _, in := range f.instances {
				require.True(t, in.budget.State().Stopped)
			}

			f.setOut(false)
			f.awaitStopped(false)
			f.awaitHandled()
			require.Zero(t, testbroker.Depth(t, f.url, f.queue+".dlq"))
		})
	}
}

// Given a stopped fleet, when the broker restarts, then the fleet is still stopped, one instance
// probes, and everything is handled when the downstream is back.
func TestTheBrokerRestartsDuringAStop(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"quorum", "classic"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			node := testbroker.Private(t)
			f := newFleet(t, plan{
				url: node.URL(), heartbeat: quickHeartbeat, arguments: amqp.Table{"x-queue-type": kind},
			})
			f.add()
			f.add()
			f.setOut(true)
			f.send(30)
			f.awaitStopped(true)

			node.Stop(t)
			node.Start(t)
			restarted := time.Now()
			rig.WaitFor(t, "an instance to probe", func() bool { return len(f.since(restarted)) >= 3 })
			f.awaitStopped(true)
			calls := f.since(restarted)
			spent := time.Since(restarted).Seconds()
			require.LessOrEqual(t, float64(len(calls)), 5*spent+5, "probes alone")

			f.setOut(false)
			f.awaitStopped(false)
			f.awaitHandled()
			retried := 0
			for _, in := range f.instances {
				retried += len(in.events.of("retried"))
			}
			require.LessOrEqual(t, retried, 30, "an attempt that the outage spent: %s", fmt.Sprint(retried))
		})
	}
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

// Given a stopped fleet, when a memory alarm of the broker keeps the prober from telling its news
// for a while, then the instances stay stopped, and afterwards everything is handled.
func TestAnAlarmDuringAStop(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	f := newFleet(t, plan{url: node.URL(), heartbeat: quickHeartbeat})
	f.add()
	f.add()
	f.setOut(true)
	f.send(30)
	f.awaitStopped(true)

	node.Ctl(t, "set_vm_memory_high_watermark", "0.000001")
	rig.WaitFor(t, "the prober to hear nothing of itself", func() bool {
		return f.instances[0].logs.Said("cannot reach each other")+
			f.instances[1].logs.Said("cannot reach each other") > 0
	})
	for _, in := range f.instances {
		require.True(t, in.budget.State().Stopped)
	}
	node.Ctl(t, "set_vm_memory_high_watermark", "0.4")
	over := time.Now()
	rig.WaitFor(t, "an instance to probe", func() bool { return len(f.since(over)) >= 3 })
	for _, in := range f.instances {
		require.True(t, in.budget.State().Stopped)
	}

	f.setOut(false)
	f.awaitStopped(false)
	f.awaitHandled()
}
