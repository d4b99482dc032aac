package topology_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
	before, after *rig
	handled       *ledger
}

// Under traffic for a minute, 200 a second.
func TestPerQueueToSharedUnderTraffic(t *testing.T) {
	t.Parallel()
	length := time.Minute
	if testing.Short() {
		length = 5 * time.Second
	}
	changeUnderTraffic(t, 200, length, &change{from: topology.PerQueue{}, to: shared(t, topology.Quorum)})
}

// Every strategy to every other one, all at once.
func TestAnyStrategyToAnyOtherUnderTraffic(t *testing.T) {
	t.Parallel()
	kinds := []string{"quorum", "attempt quorum", "shared quorum", "levels quorum", "returning quorum"}
	var changes []*change
	for _, from := range kinds {
		for _, to := range kinds {
			if from != to {
				changes = append(changes, &change{name: from + " to " + to, from: strategies[from](t), to: strategies[to](t)})
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
	run := func(c *change, strategy topology.Strategy) *rig {
		return newRig(t, rigConfig{url: url, queue: c.queue, strategy: strategy, policy: policy, config: prefetch(20),
			handler: func(msg *message.Message) ([]*message.Message, error) {
				body := string(msg.Payload)
				if last := body[len(body)-1]; middleware.Attempt(msg.Context()) == 1 && (last == '3' || last == '7') {
					return nil, errFailed
				}
				c.handled.handle(body)
				return nil, nil
			}})
	}
	for _, c := range changes {
		c.queue, c.handled = testbroker.Queue(t), newLedger()
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
				confirm, err := ch.PublishWithDeferredConfirm("", c.queue, true, false, amqp.Publishing{Body: []byte(fmt.Sprint(i)), DeliveryMode: amqp.Persistent})
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

	testbroker.WaitFor(t, "a third of the traffic", patience, func() bool { return sent.Load() >= int64(total/3) })
	for _, c := range changes {
		c.after = run(c, c.to)
	}
	testbroker.WaitFor(t, "half of the traffic", patience, func() bool { return sent.Load() >= int64(total/2) })
	var stopped sync.WaitGroup
	for _, c := range changes {
		stopped.Go(c.before.stop)
	}
	select {
	case err := <-published:
		require.NoError(t, err)
	case <-time.After(length + patience):
		t.Fatal("the traffic does not end")
	}
	stopped.Wait()
	duplicates := 0
	for _, c := range changes {
		testbroker.WaitFor(t, "every message is handled: "+c.name, patience, func() bool { return c.handled.count() == total })
		c.after.stop()
		require.NotContains(t, c.before.logs.text()+c.after.logs.text(), "PRECONDITION_FAILED", c.name)
		require.Zero(t, testbroker.Depth(t, url, c.queue+".dlq"), c.name)
		for _, n := range c.handled.handled {
			duplicates += n - 1
		}
	}
	t.Logf("%d messages through %d changes, %d duplicates", total*len(changes), len(changes), duplicates)
}
