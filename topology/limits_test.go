package topology_test

import (
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

// Not promised: the message behind one that fails overtakes it.
func TestOrderIsNotKept(t *testing.T) {
	t.Parallel()
	handled := make(chan string, 10)
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		Configure: rig.QuorumQueue, Policy: backoff.List{time.Second},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			if calls.Add() == 1 {
				return nil, rig.ErrFailed
			}
			handled <- string(msg.Payload)
			return nil, nil
		},
	})
	r.Publish(amqp.Publishing{Body: []byte("first")})
	r.Publish(amqp.Publishing{Body: []byte("second")})
	require.Equal(t, "second", <-handled)
	require.Equal(t, "first", <-handled)
}

// Not promised: a wait queue that is deleted takes along what is inside (F10).
func TestDeletedWaitQueueLosesWhatIsInside(t *testing.T) {
	t.Parallel()
	for _, kind := range []topology.QueueType{topology.Quorum, topology.Classic} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			const delay = 2 * time.Second
			var calls rig.Timeline
			r := rig.Start(t, rig.Config{
				Strategy: topology.PerQueue{Type: kind}, Policy: backoff.List{delay},
				Handler: func(*message.Message) ([]*message.Message, error) {
					calls.Add()
					return nil, rig.ErrFailed
				},
			})
			r.Send("gone")
			waits := r.Plan.Queues[0].Name
			rig.WaitFor(t, "the message waits", func() bool { return testbroker.Depth(t, r.URL, waits) == 1 })
			lost, err := testbroker.Channel(t, r.URL).QueueDelete(waits, false, false, false)
			require.NoError(t, err)
			require.Equal(t, 1, lost)
			<-time.After(2 * delay)
			require.Equal(t, 1, calls.Count())
			require.Zero(t, r.Depth(""))
			require.Zero(t, r.Depth(".dlq"))
		})
	}
}
