package main

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/internal/shop"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// Given two services that share a brake, when their downstream is out, then a person who knows only
// the URL sees since when the brake is stopped, by whom, why and who probes. When an operator stops
// and starts it, then both services do.
func TestAStoppedBrakeIsShownByTheTool(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	ask := func(args ...string) string {
		t.Helper()
		o := tool(t, h.url, "", append([]string{"--url", h.url}, args...)...)
		require.Zero(t, o.code, o.err)
		require.Empty(t, o.err)
		return o.out
	}
	var out atomic.Bool
	handled := map[string]*atomic.Int64{"orders": {}, "mail": {}}
	var logs *rig.Logs // of one of them
	for queue, count := range handled {
		logs = rig.StartBraked(t, rig.Braked{
			URL: h.URL, Queue: queue, Name: "payments", Instance: "shop " + queue,
			Handle: func(*message.Message) error {
				if out.Load() {
					return shop.ErrClosed
				}
				count.Add(1)
				return nil
			},
		})
	}
	send := func(n int) {
		t.Helper()
		for queue := range handled {
			h.Post(queue, slices.Repeat([]amqp.Publishing{rig.Message("an order")}, n)...)
		}
	}
	both := func(n int64) bool {
		return handled["orders"].Load() >= n && handled["mail"].Load() >= n
	}
	require.Contains(t, ask("brake", "list"), "payments  open   -      -   -      -\n")
	require.NotContains(t, ask("status"), "stopped")

	out.Store(true)
	send(10)
	testbroker.WaitFor(t, "status to show the stop", patience, func() bool {
		return strings.Contains(ask("status"), " probes\n")
	})
	line := firstLine(ask("status"))
	require.Regexp(t, `^stopped: brake payments since \S+ \S+Z by shop (orders|mail)@\S+: .+; `+
		`shop (orders|mail)@\S+ probes\n$`, line)
	require.Equal(t, line, firstLine(ask("status", "orders")))
	require.Regexp(t, `payments  stopped  \S+ \S+Z  shop \S+  .+  shop \S+\n`, ask("brake", "list"))

	require.Contains(t, logs.Text(), "Consuming is stopped in all instances until probes succeed")

	// By hand: no process probes.
	require.NotContains(t, ask("brake", "stop", "payments", "--for", "1h", "--by", "anna",
		"--cause", "the provider moves"), "no process shares this brake")
	testbroker.WaitFor(t, "the stop by hand", patience, func() bool {
		return strings.Contains(ask("status"), "by anna, by hand, until ")
	})
	out.Store(false)
	send(1)
	before := handled["orders"].Load() + handled["mail"].Load()
	rig.WaitFor(t, "a look at both queues that are not consumed", func() bool {
		report := ask("status")
		return strings.Count(report, "no consumer") == 2
	})
	require.Equal(t, before, handled["orders"].Load()+handled["mail"].Load())

	began := time.Now()
	require.Equal(t, "brake payments is open: the processes start\n",
		ask("brake", "start", "payments"))
	require.Less(t, time.Since(began), 5*time.Second)
	testbroker.WaitFor(t, "all messages to be handled", patience, func() bool { return both(11) })
	require.NotContains(t, ask("status"), "stopped")
	require.Equal(t, "brake payments was not stopped\n", ask("brake", "start", "payments"))
}
