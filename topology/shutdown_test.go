package topology_test

import (
	"strings"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

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
		r := rig.Start(t, rig.Config{
			Policy: backoff.List{30 * time.Second},
			Handler: func(msg *message.Message) ([]*message.Message, error) {
				close(handling)
				<-closing
				return nil, rig.ErrFailed
			},
		})
		r.Publish(amqp.Publishing{Body: []byte("late")})
		<-handling
		done := make(chan struct{})
		go func() { defer close(done); r.Stop() }()
		rig.WaitFor(t, "the router closes", func() bool { return strings.Contains(r.Logs.Text(), "Closing router") })
		close(closing)
		<-done
		require.Equal(t, 1, r.Depth(".wait.30s"))
		require.Zero(t, r.Depth(""))
	})
	t.Run("too slow goes back", func(t *testing.T) {
		t.Parallel()
		handling := make(chan struct{})
		r := rig.Start(t, rig.Config{
			Policy:            backoff.List{30 * time.Second},
			SubscriberOptions: []topology.SubscriberOption{topology.WithDrainTimeout(500 * time.Millisecond)},
			Handler: func(msg *message.Message) ([]*message.Message, error) {
				close(handling)
				<-msg.Context().Done()
				return nil, msg.Context().Err()
			},
		})
		r.Publish(amqp.Publishing{Body: []byte("slow")})
		<-handling
		r.Stop()
		back := rig.Take(t, r.URL, r.Queue)
		require.Equal(t, "slow", string(back.Body))
		require.NotContains(t, back.Headers, header.Failures)
		require.Zero(t, r.Depth(".wait.30s"))
	})
}

// Close is bounded in time also where the broker has stopped answering.
func TestCloseReturnsFromAFrozenBroker(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	handling, confirmed := make(chan struct{}), make(chan struct{})
	r := rig.Start(t, rig.Config{
		URL: node.URL(), Queue: "orders", Policy: backoff.List{time.Second},
		ClientOptions:     []topology.Option{topology.WithConfirmTimeout(time.Second)},
		SubscriberOptions: []topology.SubscriberOption{topology.WithDrainTimeout(time.Second)},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			<-confirmed
			node.Freeze(t)
			close(handling)
			return nil, rig.ErrFailed
		},
	})
	r.Send("stuck")
	close(confirmed)
	<-handling
	begun := time.Now()
	r.Stop()
	require.Less(t, time.Since(begun), 20*time.Second)
	node.Thaw(t)
	require.Equal(t, "stuck", string(rig.Take(t, node.URL(), "orders").Body))
}
