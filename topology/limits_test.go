package topology_test

import (
	"testing"
	"time"

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
	var calls timeline
	r := newRig(t, rigConfig{
		config: quorumQueue, policy: backoff.List{time.Second},
		handler: func(msg *message.Message) ([]*message.Message, error) {
			if calls.add() == 1 {
				return nil, errFailed
			}
			handled <- string(msg.Payload)
			return nil, nil
		},
	})
	r.publish(amqp.Publishing{Body: []byte("first")})
	r.publish(amqp.Publishing{Body: []byte("second")})
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
			var calls timeline
			r := newRig(t, rigConfig{
				strategy: topology.PerQueue{Type: kind}, policy: backoff.List{delay},
				handler: func(*message.Message) ([]*message.Message, error) {
					calls.add()
					return nil, errFailed
				},
			})
			r.publish(amqp.Publishing{Body: []byte("gone"), DeliveryMode: amqp.Persistent})
			waits := r.plan.Queues[0].Name
			testbroker.WaitFor(t, "the message waits", patience, func() bool { return testbroker.Depth(t, r.url, waits) == 1 })
			lost, err := testbroker.Channel(t, r.url).QueueDelete(waits, false, false, false)
			require.NoError(t, err)
			require.Equal(t, 1, lost)
			<-time.After(2 * delay)
			require.Equal(t, 1, calls.count())
			require.Zero(t, testbroker.Depth(t, r.url, r.queue))
			require.Zero(t, testbroker.Depth(t, r.url, r.queue+".dlq"))
		})
	}
}
