package topology_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

const neverReturns = "Handler does not return: use Watermill's Timeout"

// Two handlers that do not return are named once each, while another one works
// on; when they return at last their messages are acked.
func TestHandlerThatNeverReturnsIsNamed(t *testing.T) {
	t.Parallel()
	release, quick := make(chan struct{}), make(chan struct{}, 100)
	r := newRig(t, rigConfig{
		policy:     quickly(1),
		subOptions: []topology.SubscriberOption{topology.WithConcurrency(3), topology.WithHandlerWarning(time.Second)},
		handler: inside(func(msg *message.Message) ([]*message.Message, error) {
			if string(msg.Payload) == "quick" {
				quick <- struct{}{}
				return nil, nil
			}
			<-release
			return nil, nil
		}, wmiddleware.Timeout(time.Minute)), // which replaces the context meanwhile
	})
	for _, id := range []string{"id-1", "id-2"} {
		r.publish(amqp.Publishing{Body: []byte("stuck"), MessageId: id})
	}
	testbroker.WaitFor(t, "both are named, and quick ones go on", patience, func() bool {
		r.publish(amqp.Publishing{Body: []byte("quick"), MessageId: "id-quick"})
		<-quick
		return r.logs.said(neverReturns) >= 2
	})
	// As long again, in which the ticker has come four times.
	begun := time.Now()
	testbroker.WaitFor(t, "more than a second later", patience, func() bool { return time.Since(begun) > 1500*time.Millisecond })
	close(release)
	requireNothingLeft(t, r, 0)

	require.Equal(t, 2, r.logs.said(neverReturns))
	require.Empty(t, r.logs.about("id-quick"))
	for _, id := range []string{"id-1", "id-2"} {
		lines := r.logs.about(id)
		require.Len(t, lines, 1)
		require.Equal(t, "handler", lines[0].fields["handler"])
		require.Equal(t, r.queue, lines[0].fields["queue"])
		require.Equal(t, 1, lines[0].fields["attempt"])
		require.GreaterOrEqual(t, lines[0].fields["held"], time.Second)
		require.ErrorContains(t, lines[0].err, `handler "handler" has had the message for 1`)
	}
}

func TestHandlerWarningCanBeLeftOut(t *testing.T) {
	t.Parallel()
	release, entered := make(chan struct{}), make(chan struct{})
	r := newRig(t, rigConfig{
		policy: quickly(1), subOptions: []topology.SubscriberOption{topology.WithHandlerWarning(0)},
		handler: func(*message.Message) ([]*message.Message, error) {
			close(entered)
			<-release
			return nil, nil
		},
	})
	r.publish(amqp.Publishing{Body: []byte("order")})
	<-entered
	select {
	case <-time.After(300 * time.Millisecond):
	case <-t.Context().Done():
	}
	close(release)
	requireNothingLeft(t, r, 0)
	require.Zero(t, r.logs.said(neverReturns))
	_, err := r.client.NewSubscriber(queueConfig(r.url), topology.WithHandlerWarning(-time.Second))
	require.ErrorContains(t, err, "WithHandlerWarning: -1s is negative")
}
