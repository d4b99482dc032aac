package e2e_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// interrupt takes all messages of a queue and loses the connection, several times, as a process
// does that is killed with the messages.
func interrupt(t *testing.T, url, queue string, messages, times int) {
	t.Helper()
	awaitAll := func() {
		t.Helper()
		rig.WaitFor(t, "all to be back", func() bool {
			return testbroker.Depth(t, url, queue) == messages
		})
	}
	for range times {
		awaitAll()
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
	awaitAll()
}

// Given messages that were in progress when the process died five times, then they are tried one
// at a time by all Subscribers of the process, while fresh messages go on beside them. Close gives
// back the messages whose turn has not come.
func TestSuspectsAreTriedOneAtATime(t *testing.T) {
	t.Parallel()
	const suspects, fresh = 10, 30
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	rig.DeclareQueue(t, url, queue, amqp.Table{"x-queue-type": "quorum"})
	rig.Fill(t, url, queue, suspects)
	interrupt(t, url, queue, suspects, 5)

	tried, done := rig.NewBusy(), rig.NewLedger()
	next := make(chan struct{})
	run := func() *rig.Service {
		return rig.Start(t, rig.Config{
			URL: url, Queue: queue, Configure: rig.QuorumQueue, Policy: backoff.List{time.Second},
			SubscriberOptions: rig.InFlight(64),
			Handle: func(msg *message.Message) error {
				body := string(msg.Payload)
				// A suspect that was snoozed comes back, but not as a redelivery.
				if raw, _ := topology.Received(msg.Context()); raw.Redelivered {
					defer tried.Enter(body)()
					select {
					case <-next:
					case <-msg.Context().Done():
						return msg.Context().Err()
					}
				}
				done.Handle(body)
				return nil
			},
		})
	}
	r := run()
	rig.WaitFor(t, "the first try", func() bool { return tried.Now() == 1 && r.Depth("") == 0 })
	for i := range fresh {
		r.Publish(amqp.Publishing{Body: []byte(fmt.Sprint("fresh ", i))})
	}
	rig.WaitFor(t, "the fresh messages", func() bool { return done.Count() == fresh })
	for range 3 {
		before := tried.Distinct()
		next <- struct{}{}
		rig.WaitFor(t, "the next try", func() bool { return tried.Distinct() > before })
	}

	stopped := make(chan struct{})
	go func() { defer close(stopped); r.Stop() }()
	rig.WaitFor(t, "the others to be given back", func() bool { return r.Depth("") > 0 })
	require.Equal(t, 1, tried.Now(), "the message in progress goes on")
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
	rig.WaitFor(t, "all to be handled", func() bool { return done.Count() == suspects+fresh })
	r.RequireNothingLeft(0)
	require.Equal(t, 1, tried.Peak())
}
