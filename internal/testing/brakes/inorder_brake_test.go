package brakes_test

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/budget"
	"github.com/millpond-go/millpond/middleware/outage"
	"github.com/millpond-go/millpond/topology/inorder"
)

// keyOf is the body of a message up to the colon.
func keyOf(msg *message.Message) string {
	key, _, _ := strings.Cut(string(msg.Payload), ":")
	return key
}

// newOrderedFleet is a fleet whose queue is handled in order.
func newOrderedFleet(t *testing.T, p plan) *fleet {
	t.Helper()
	p.queue = testbroker.Queue(t)
	p.strategy = inorder.Strategy{KeyBy: keyOf}
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

// Given a brake, when the downstream of all messages fails, then consuming stops, probes go
// through the line, and afterwards everything is handled in its order.
func TestABrakeKeepsTheOrder(t *testing.T) {
	t.Parallel()
	const keys, each = 8, 5
	var mu sync.Mutex
	handled := map[string][]string{}
	var f *fleet
	f = newOrderedFleet(t, plan{concurrency: 4, handle: func(msg *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		key, body := keyOf(msg), string(msg.Payload)
		err := f.call(msg)
		if err == nil && !slices.Contains(handled[key], body) { // an ack that is lost repeats one
			handled[key] = append(handled[key], body)
		}
		return err
	}})
	f.retries = 500
	f.add()
	f.setOut(true)
	var messages []amqp.Publishing
	want := map[string][]string{}
	for i := range each {
		for k := range keys {
			key := string(rune('a' + k))
			body := key + ":" + strconv.Itoa(i)
			messages, want[key] = append(messages, rig.Message(body)), append(want[key], body)
		}
	}
	rig.Post(t, f.url, f.queue, messages...)
	f.sent += len(messages)
	f.awaitStopped(true)
	stopped := time.Now()
	rig.WaitFor(t, "a probe", func() bool { return len(f.since(stopped)) > 0 })
	f.setOut(false)
	f.awaitHandled()
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, want, handled)
}
