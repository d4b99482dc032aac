package topology_test

import (
	"fmt"
	"testing"
	"time"

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
		testbroker.WaitFor(t, "all are back", patience, func() bool { return testbroker.Depth(t, url, queue) == messages })
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
	testbroker.WaitFor(t, "all are back", patience, func() bool { return testbroker.Depth(t, url, queue) == messages })
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
	fill(t, url, queue, suspects)
	interrupt(t, url, queue, suspects, 5)

	tried, done := newBusy(), newLedger()
	next := make(chan struct{})
	run := func() *rig {
		return newRig(t, rigConfig{
			url: url, queue: queue, config: quorumQueue, policy: backoff.List{time.Second}, subOptions: inFlight(64),
			handler: func(msg *message.Message) ([]*message.Message, error) {
				body := string(msg.Payload)
				// One that was set aside comes back as a suspect, but not redelivered.
				if raw, _ := topology.Received(msg.Context()); raw.Redelivered {
					defer tried.enter(body)()
					select {
					case <-next:
					case <-msg.Context().Done():
						return nil, msg.Context().Err()
					}
				}
				done.handle(body)
				return nil, nil
			},
		})
	}
	r := run()
	testbroker.WaitFor(t, "one is tried", patience, func() bool { return tried.now() == 1 && testbroker.Depth(t, url, queue) == 0 })
	for i := range fresh {
		r.publish(amqp.Publishing{Body: []byte(fmt.Sprint("fresh ", i))})
	}
	testbroker.WaitFor(t, "the fresh ones are handled beside it", patience, func() bool { return done.count() == fresh })
	for range 3 {
		before := tried.distinct()
		next <- struct{}{}
		testbroker.WaitFor(t, "the next is tried", patience, func() bool { return tried.distinct() > before })
	}

	stopped := make(chan struct{})
	go func() { defer close(stopped); r.stop() }()
	testbroker.WaitFor(t, "those whose turn has not come are back", patience, func() bool { return testbroker.Depth(t, url, queue) > 0 })
	require.Equal(t, 1, tried.now(), "the one in progress goes on")
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
	testbroker.WaitFor(t, "all are handled", patience, func() bool { return done.count() == suspects+fresh })
	r.stop()
	require.Equal(t, 1, tried.peak())
	require.Zero(t, testbroker.Depth(t, url, queue))
	require.Zero(t, testbroker.Depth(t, url, queue+".dlq"))
}
