package topology_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// interrupt takes all messages of a queue and loses the connection, as often as
// told: what a process does that is killed with them.
func interrupt(t *testing.T, url, queue string, messages, times int) {
	t.Helper()
	for range times {
		rig.WaitFor(t, "all are back", func() bool { return testbroker.Depth(t, url, queue) == messages })
		conn, err := amqp.Dial(url)
		require.NoError(t, err)
		ch, err := conn.Channel()
		require.NoError(t, err)
		for range messages {
			_, ok, err := ch.Get(queue, false)
			require.NoError(t, err)
			require.True(t, ok)
		}
		require.NoError(t, conn.Close())
	}
	rig.WaitFor(t, "all are back", func() bool { return testbroker.Depth(t, url, queue) == messages })
}

// Messages that were there when the process died five times: with many in flight,
// one of them is set aside, the others are tried one at a time, by all Subscribers
// of the process, while fresh messages go on beside them. Close gives back those
// whose turn has not come.
func TestSuspectsAreTriedOneAtATime(t *testing.T) {
	t.Parallel()
	const suspects, fresh = 10, 30
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	_, err := testbroker.Channel(t, url).QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	require.NoError(t, err)
	rig.Fill(t, url, queue, suspects)
	interrupt(t, url, queue, suspects, 5)

	tried, done := rig.NewBusy(), rig.NewLedger()
	next := make(chan struct{})
	run := func() *rig.Service {
		return rig.Start(t, rig.Config{
			URL: url, Queue: queue, Configure: rig.QuorumQueue, Policy: backoff.List{time.Second}, SubscriberOptions: rig.InFlight(64),
			Handler: func(msg *message.Message) ([]*message.Message, error) {
				body := string(msg.Payload)
				// One that was set aside comes back as a suspect, but not redelivered.
				if raw, _ := topology.Received(msg.Context()); raw.Redelivered {
					defer tried.Enter(body)()
					select {
					case <-next:
					case <-msg.Context().Done():
						return nil, msg.Context().Err()
					}
				}
				done.Handle(body)
				return nil, nil
			},
		})
	}
	r := run()
	rig.WaitFor(t, "one is tried", func() bool { return tried.Now() == 1 && testbroker.Depth(t, url, queue) == 0 })
	for i := range fresh {
		r.Publish(amqp.Publishing{Body: []byte(fmt.Sprint("fresh ", i))})
	}
	rig.WaitFor(t, "the fresh ones are handled beside it", func() bool { return done.Count() == fresh })
	for range 3 {
		before := tried.Distinct()
		next <- struct{}{}
		rig.WaitFor(t, "the next is tried", func() bool { return tried.Distinct() > before })
	}

	stopped := make(chan struct{})
	go func() { defer close(stopped); r.Stop() }()
	rig.WaitFor(t, "those whose turn has not come are back", func() bool { return testbroker.Depth(t, url, queue) > 0 })
	require.Equal(t, 1, tried.Now(), "the one in progress goes on")
	next <- struct{}{}
	<-stopped
	r = run()
	go func() {
		for range suspects {
			select {
			case next <- struct{}{}:
			case <-t.Context().Done():
			}
		}
	}()
	rig.WaitFor(t, "all are handled", func() bool { return done.Count() == suspects+fresh })
	r.Stop()
	require.Equal(t, 1, tried.Peak())
	require.Zero(t, testbroker.Depth(t, url, queue))
	require.Zero(t, testbroker.Depth(t, url, queue+".dlq"))
}
