package operate_test

import (
	"context"
	"log"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// The wrong letters were replayed, and the service is stopped: take them back.
func ExampleOperator_TakeBack() {
	var operator *operate.Operator // of Open
	ctx := context.Background()
	plan, err := topology.PlanFor(topology.PerQueue{}, "orders", backoff.List{time.Second})
	if err != nil {
		log.Print(err)
		return
	}
	result, err := operator.Ramp(ctx, plan, operate.RampOptions{})
	log.Print(result, err)
	back, err := operator.TakeBack(ctx, plan, operate.TakeBackOptions{Run: result.Run})
	log.Print(back.Done, " letters are dead letters again: ", err)
}

// ramped replays all letters of the box and returns the name of the run.
func (b *box) ramped() string {
	b.t.Helper()
	result, err := b.Ramp(b.t.Context(), b.plan, operate.RampOptions{
		Canary: -1, StopAt: 1, Settle: 100 * time.Millisecond, Watch: 200 * time.Millisecond,
	})
	require.NoError(b.t, err)
	return result.Run
}

// A letter that a handler had stays: in a later attempt it is no dead letter.
func TestTakeBackLeavesLettersThatHadAnAttempt(t *testing.T) {
	t.Parallel()
	b := newBox(t, topology.Classic)
	b.die(5)
	run := b.ramped()
	first := b.drain(b.queue, 5)
	for i, d := range first {
		m := amqp.Publishing{Headers: d.Headers, Body: d.Body}
		if i == 0 { // it failed, and its wait is over
			state := header.RetryState{Failures: 1, FirstSeen: time.Now(), Delay: time.Second}
			for key, value := range state.Headers(b.queue) {
				m.Headers[key] = value
			}
		}
		b.publish(b.queue, m)
	}
	options := operate.TakeBackOptions{Run: run, DryRun: true}
	p, err := b.TakeBack(t.Context(), b.plan, options)
	require.NoError(t, err)
	require.Equal(t, operate.Progress{Total: 5, Seen: 5, Chosen: 4, Refused: 1}, p)
	b.depth(b.queue, 5)
	options.DryRun, options.Limit = false, 3
	p, err = b.TakeBack(t.Context(), b.plan, options)
	require.NoError(t, err)
	require.Equal(t, 3, p.Done)
	options.Limit = 0
	_, err = b.TakeBack(t.Context(), b.plan, options)
	require.NoError(t, err)
	require.Equal(t, numbered(1, 5), b.bodies(b.dead, 4))
	require.Equal(t, numbered(0, 1), b.bodies(b.queue, 1))
}

// TakeBack takes no message where that could harm it or its neighbours.
func TestTakeBackRefuses(t *testing.T) {
	t.Parallel()
	b := newBox(t, topology.Classic)
	b.die(2)
	run := b.ramped()
	for _, run := range []string{"", "a.1"} {
		_, err := b.TakeBack(t.Context(), b.plan, operate.TakeBackOptions{Run: run})
		require.ErrorIs(t, err, operate.ErrInvalidOptions)
	}
	other := testbroker.Channel(t, b.url)
	_, err := other.Consume(b.queue, "service", false, false, false, false, nil)
	require.NoError(t, err)
	_, err = b.TakeBack(t.Context(), b.plan, operate.TakeBackOptions{Run: run})
	require.ErrorIs(t, err, operate.ErrUnsafe)
	require.ErrorContains(t, err, "1 consumer")
	require.NoError(t, other.Close())
	rig.WaitFor(t, "the messages that the service gives back", func() bool {
		p, err := b.TakeBack(t.Context(), b.plan, operate.TakeBackOptions{Run: run, DryRun: true})
		return err == nil && p.Chosen == 2
	})

	fleeting := b.queue + ".fleeting" // ends with its last consumer, which would be the look
	_, err = b.ch.QueueDeclare(fleeting, true, true, false, false, nil)
	require.NoError(t, err)
	t.Cleanup(func() { testbroker.Delete(t, fleeting) })
	b.publish(fleeting, amqp.Publishing{Headers: amqp.Table{header.Replay: run + ".1"}})
	plan := b.plan
	plan.Queue = fleeting
	_, err = b.TakeBack(t.Context(), plan, operate.TakeBackOptions{Run: run})
	require.ErrorIs(t, err, operate.ErrUnsafe)
	require.ErrorContains(t, err, "ends with its last consumer")
	b.depth(fleeting, 1)
}

// A service that comes back in the middle gets the rest.
func TestTakeBackEndsWhenAConsumerComes(t *testing.T) {
	t.Parallel()
	const n = 3000
	b := newBox(t, topology.Classic)
	b.die(n)
	run := b.ramped()
	b.depth(b.queue, n)
	service := testbroker.Channel(t, b.url)
	require.NoError(t, service.Qos(1, 0, false))
	came := false
	p, err := b.TakeBack(t.Context(), b.plan, operate.TakeBackOptions{
		Run: run, Progress: func(p operate.Progress) {
			if p.Done >= 100 && !came {
				came = true
				_, err := service.Consume(b.queue, "service", false, false, false, false, nil)
				require.NoError(t, err)
			}
		},
	})
	require.ErrorIs(t, err, operate.ErrUnsafe)
	require.NoError(t, service.Close())
	b.depth(b.dead, p.Done)
	b.depth(b.queue, n-p.Done)
}
