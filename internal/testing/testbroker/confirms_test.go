//go:build unix

package testbroker_test

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// While confirms are held, everything else on the connection is answered: another channel opens, a
// queue is declared, a message is delivered, heartbeats come. Then the confirms come in their
// order.
func TestHeldConfirmsComeLater(t *testing.T) {
	t.Parallel()
	beats := make(chan struct{}, 100)
	p, seen := tapped(t, testbroker.URL(t), func(s testbroker.Seen) testbroker.Fault {
		if !s.Up && s.Kind() == frame.KindHeartbeat {
			beats <- struct{}{}
		}
		return testbroker.Fault{}
	})
	conn, err := amqp.DialConfig(p.URL(), amqp.Config{Heartbeat: time.Second})
	require.NoError(t, err)
	defer conn.Close()
	ch, err := conn.Channel()
	require.NoError(t, err)
	require.NoError(t, ch.Confirm(false))
	returns := ch.NotifyReturn(make(chan amqp.Return, 2))
	queue := testbroker.Queue(t)

	p.HoldConfirms(true)
	p.HoldConfirms(true)
	returned, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{})
	require.NoError(t, err)
	other, err := conn.Channel()
	require.NoError(t, err)
	_, err = other.QueueDeclare(queue, false, true, false, false, nil)
	require.NoError(t, err)
	taken, err := ch.PublishWithDeferredConfirm("", queue, true, false,
		amqp.Publishing{Body: []byte("x")})
	require.NoError(t, err)
	testbroker.WaitFor(t, "the message", limit, func() bool {
		_, ok, err := other.Get(queue, true)
		return assert.NoError(t, err) && ok
	})
	for range 2 {
		<-beats
	}
	assert.NotContains(t, seen(), "↓basic.ack")
	assert.NotContains(t, seen(), "↓basic.return")
	for _, confirm := range []*amqp.DeferredConfirmation{returned, taken} {
		select {
		case <-confirm.Done():
			t.Error("confirmed while confirms are held")
		default:
		}
	}

	p.HoldConfirms(false)
	p.HoldConfirms(false)
	for _, confirm := range []*amqp.DeferredConfirmation{returned, taken} {
		ok, err := confirm.WaitContext(t.Context())
		require.NoError(t, err)
		assert.True(t, ok)
	}
	assert.Len(t, returns, 1)

	again, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{})
	require.NoError(t, err)
	ok, err := again.WaitContext(t.Context())
	require.NoError(t, err)
	assert.True(t, ok, "the channel goes on as before")
}

func TestEndOfAConnectionIsToldWithWhoEndedIt(t *testing.T) {
	t.Parallel()
	server := startEcho(t)
	p := testbroker.NewProxy(t, server.url())
	type end struct {
		number int
		by     testbroker.Party
	}
	ends := make(chan end, 1)
	p.OnEnd(func(number int, by testbroker.Party) { ends <- end{number, by} })
	for i, how := range []struct {
		by  testbroker.Party
		end func()
	}{
		{testbroker.Client, nil},
		{testbroker.Broker, server.hangUp},
		{testbroker.Network, p.Cut},
	} {
		conn := dialProxy(t, p)
		send(t, conn, "x")
		receive(t, conn, "x")
		if how.end == nil {
			require.NoError(t, conn.Close())
		} else {
			how.end()
		}
		assert.Equal(t, end{i + 1, how.by}, <-ends, how.by)
	}
}
