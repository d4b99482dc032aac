package topology_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// change is a change of the strategy on a live queue.
type change struct {
	name          string
	from, to      topology.Strategy
	queue         string
	before, after *rig.Service
	handled       *rig.Ledger
}

// Under traffic for a minute, 200 a second.
func TestPerQueueToSharedUnderTraffic(t *testing.T) {
	t.Parallel()
	length := time.Minute
	if testing.Short() {
		length = 5 * time.Second
	}
	changeUnderTraffic(t, 200, length, &change{from: topology.PerQueue{}, to: rig.Shared(t, topology.Quorum)})
}

// Every strategy to every other one, all at once.
func TestAnyStrategyToAnyOtherUnderTraffic(t *testing.T) {
	t.Parallel()
	kinds := []string{"quorum", "attempt quorum", "shared quorum", "levels quorum", "returning quorum"}
	var changes []*change
	for _, from := range kinds {
		for _, to := range kinds {
			if from != to {
				changes = append(changes, &change{name: from + " to " + to, from: rig.Strategies[from](t), to: rig.Strategies[to](t)})
			}
		}
	}
	changeUnderTraffic(t, 15, 6*time.Second, changes...)
}

// changeUnderTraffic changes strategies under traffic of which a fifth fails once, as
// a rolling deploy does: the new instance first, then the old one goes. Every message
// is handled, and nothing conflicts.
func changeUnderTraffic(t *testing.T, rate int, length time.Duration, changes ...*change) {
	t.Helper()
	url := testbroker.URL(t)
	policy := backoff.List{time.Second, 2 * time.Second}
	run := func(c *change, strategy topology.Strategy) *rig.Service {
		return rig.Start(t, rig.Config{
			URL: url, Queue: c.queue, Strategy: strategy, Policy: policy, Configure: rig.Prefetch(20),
			Handler: func(msg *message.Message) ([]*message.Message, error) {
				body := string(msg.Payload)
				if last := body[len(body)-1]; middleware.Attempt(msg.Context()) == 1 && (last == '3' || last == '7') {
					return nil, rig.ErrFailed
				}
				c.handled.Handle(body)
				return nil, nil
			},
		})
	}
	for _, c := range changes {
		c.queue, c.handled = testbroker.Queue(t), rig.NewLedger()
		c.before = run(c, c.from)
	}

	total := rate * int(length/time.Second)
	ch := testbroker.Channel(t, url)
	require.NoError(t, ch.Confirm(false))
	var sent atomic.Int64 // to each of the queues
	published := make(chan error, 1)
	go func() {
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		var confirms []*amqp.DeferredConfirmation
		for i := range total {
			<-tick.C
			for _, c := range changes {
				confirm, err := ch.PublishWithDeferredConfirm("", c.queue, true, false, rig.Message(fmt.Sprint(i)))
				if err != nil {
					published <- err
					return
				}
				confirms = append(confirms, confirm)
			}
			sent.Store(int64(i + 1))
		}
		for i, confirm := range confirms {
			if !confirm.Wait() {
				published <- fmt.Errorf("publish %d is not confirmed", i)
				return
			}
		}
		published <- nil
	}()

	rig.WaitFor(t, "a third of the traffic", func() bool { return sent.Load() >= int64(total/3) })
	for _, c := range changes {
		c.after = run(c, c.to)
	}
	rig.WaitFor(t, "half of the traffic", func() bool { return sent.Load() >= int64(total/2) })
	var stopped sync.WaitGroup
	for _, c := range changes {
		stopped.Go(c.before.Stop)
	}
	select {
	case err := <-published:
		require.NoError(t, err)
	case <-time.After(length + rig.Patience):
		t.Fatal("the traffic does not end")
	}
	stopped.Wait()
	duplicates := 0
	for _, c := range changes {
		rig.WaitFor(t, "every message is handled: "+c.name, func() bool { return c.handled.Count() == total })
		c.after.Stop()
		require.NotContains(t, c.before.Logs.Text()+c.after.Logs.Text(), "PRECONDITION_FAILED", c.name)
		require.Zero(t, testbroker.Depth(t, url, c.queue+".dlq"), c.name)
		for _, n := range c.handled.Handled {
			duplicates += n - 1
		}
	}
	t.Logf("%d messages through %d changes, %d duplicates", total*len(changes), len(changes), duplicates)
}
