package topology_test

import (
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/topology"
)

const neverReturns = "Handler does not return: give it an end"

// Two handlers that do not return are named once each, while another one works
// on; when they return at last their messages are acked.
func TestHandlerThatNeverReturnsIsNamed(t *testing.T) {
	t.Parallel()
	release, quick := make(chan struct{}), make(chan struct{}, 100)
	r := rig.Start(t, rig.Config{
		Policy:            rig.Quickly(1),
		SubscriberOptions: []topology.SubscriberOption{topology.WithConcurrency(3), topology.WithHandlerWarning(time.Second)},
		Handler: rig.Inside(func(msg *message.Message) ([]*message.Message, error) {
			if string(msg.Payload) == "quick" {
				quick <- struct{}{}
				return nil, nil
			}
			<-release
			return nil, nil
		}, wmiddleware.Timeout(time.Minute)), // which replaces the context meanwhile
	})
	for _, id := range []string{"id-1", "id-2"} {
		r.Publish(amqp.Publishing{Body: []byte("stuck"), MessageId: id})
	}
	rig.WaitFor(t, "both are named, and quick ones go on", func() bool {
		r.Publish(amqp.Publishing{Body: []byte("quick"), MessageId: "id-quick"})
		<-quick
		return r.Logs.Said(neverReturns) >= 2
	})
	// As long again, in which the ticker has come four times.
	begun := time.Now()
	rig.WaitFor(t, "more than a second later", func() bool { return time.Since(begun) > 1500*time.Millisecond })
	close(release)
	r.RequireNothingLeft(0)

	require.Equal(t, 2, r.Logs.Said(neverReturns))
	require.Empty(t, r.Logs.About("id-quick"))
	for _, id := range []string{"id-1", "id-2"} {
		lines := r.Logs.About(id)
		require.Len(t, lines, 1)
		require.Equal(t, "handler", lines[0].Fields["handler"])
		require.Equal(t, r.Queue, lines[0].Fields["queue"])
		require.Equal(t, 1, lines[0].Fields["attempt"])
		require.GreaterOrEqual(t, lines[0].Fields["held"], time.Second)
		require.ErrorContains(t, lines[0].Err, `handler "handler" has had the message for 1`)
	}
}

func TestHandlerWarningCanBeLeftOut(t *testing.T) {
	t.Parallel()
	release, entered := make(chan struct{}), make(chan struct{})
	r := rig.Start(t, rig.Config{
		Policy: rig.Quickly(1), SubscriberOptions: []topology.SubscriberOption{topology.WithHandlerWarning(0)},
		Handler: func(*message.Message) ([]*message.Message, error) {
			close(entered)
			<-release
			return nil, nil
		},
	})
	r.Publish(amqp.Publishing{Body: []byte("order")})
	<-entered
	select {
	case <-time.After(300 * time.Millisecond):
	case <-t.Context().Done():
	}
	close(release)
	r.RequireNothingLeft(0)
	require.Zero(t, r.Logs.Said(neverReturns))
	_, err := r.Client.NewSubscriber(rig.QueueConfig(r.URL), topology.WithHandlerWarning(-time.Second))
	require.ErrorContains(t, err, "WithHandlerWarning: -1s is negative")
}
