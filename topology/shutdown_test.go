package topology_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// A handler that fails while Close drains is still handed over; one that does
// not end in time goes back to its queue, burning no attempt.
func TestCloseDrains(t *testing.T) {
	t.Parallel()
	t.Run("failure is handed over", func(t *testing.T) {
		t.Parallel()
		handling, closing := make(chan struct{}), make(chan struct{})
		r := newRig(t, rigConfig{
			policy: backoff.List{30 * time.Second},
			handler: func(msg *message.Message) ([]*message.Message, error) {
				close(handling)
				<-closing
				return nil, errFailed
			},
		})
		r.publish(amqp.Publishing{Body: []byte("late")})
		<-handling
		done := make(chan struct{})
		go func() { defer close(done); r.stop() }()
		testbroker.WaitFor(t, "the router closes", patience, func() bool { return strings.Contains(r.logs.text(), "Closing router") })
		close(closing)
		<-done
		require.Equal(t, 1, testbroker.Depth(t, r.url, r.queue+".wait.30s"))
		require.Zero(t, testbroker.Depth(t, r.url, r.queue))
	})
	t.Run("too slow goes back", func(t *testing.T) {
		t.Parallel()
		handling := make(chan struct{})
		r := newRig(t, rigConfig{
			policy:     backoff.List{30 * time.Second},
			subOptions: []topology.SubscriberOption{topology.WithDrainTimeout(500 * time.Millisecond)},
			handler: func(msg *message.Message) ([]*message.Message, error) {
				close(handling)
				<-msg.Context().Done()
				return nil, msg.Context().Err()
			},
		})
		r.publish(amqp.Publishing{Body: []byte("slow")})
		<-handling
		r.stop()
		back := take(t, r.url, r.queue)
		require.Equal(t, "slow", string(back.Body))
		require.NotContains(t, back.Headers, header.Failures)
		require.Zero(t, testbroker.Depth(t, r.url, r.queue+".wait.30s"))
	})
}

// Close is bounded in time also where the broker has stopped answering.
func TestCloseReturnsFromAFrozenBroker(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	handling, confirmed := make(chan struct{}), make(chan struct{})
	r := newRig(t, rigConfig{
		url: node.URL(), queue: "orders", policy: backoff.List{time.Second},
		clientOptions: []topology.Option{topology.WithConfirmTimeout(time.Second)},
		subOptions:    []topology.SubscriberOption{topology.WithDrainTimeout(time.Second)},
		handler: func(msg *message.Message) ([]*message.Message, error) {
			<-confirmed
			node.Freeze(t)
			close(handling)
			return nil, errFailed
		},
	})
	r.publish(amqp.Publishing{Body: []byte("stuck"), DeliveryMode: amqp.Persistent})
	close(confirmed)
	<-handling
	begun := time.Now()
	r.stop()
	require.Less(t, time.Since(begun), 20*time.Second)
	node.Thaw(t)
	require.Equal(t, "stuck", string(take(t, node.URL(), "orders").Body))
}
