//go:build unix

package testbroker_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// tapped returns a proxy with the faults of decide, and a function that returns the frames so far.
func tapped(t *testing.T, target string, decide func(testbroker.Seen) testbroker.Fault,
) (p *testbroker.Proxy, seen func() []string) {
	t.Helper()
	p = testbroker.NewProxy(t, target)
	var mu sync.Mutex
	var names []string
	p.Tap(func(s testbroker.Seen) testbroker.Fault {
		mu.Lock()
		defer mu.Unlock()
		if s.Kind() != frame.KindHeartbeat {
			names = append(names, s.String())
		}
		return decide(s)
	})
	return p, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), names...)
	}
}

func method(m frame.Method, rest string) []byte { return frame.NewMethod(1, m, []byte(rest)) }

func TestPublishesAreCountedHoweverTheStreamIsCut(t *testing.T) {
	t.Parallel()
	publish := method(frame.BasicPublish, "\x00\x00\x00\x05queue\x00")
	look := append([]byte{0, 60, 0, 40}, "a body that looks like a publish"...)
	stream := []byte("AMQP\x00\x00\x09\x01")
	for _, part := range [][]byte{
		method(frame.ConnectionStartOk, "start-ok"), frame.New(frame.KindHeartbeat, 1, nil), publish,
		// Header and body frames are no publishes, also with its bytes.
		frame.New(frame.KindHeader, 1, look), frame.New(frame.KindBody, 1, look),
		frame.New(frame.KindBody, 1, publish), method(frame.BasicAck, "ack"),
		method(50<<16|40, "queue class, same method id"), frame.New(frame.KindMethod, 1, []byte{0, 60}),
		publish, publish, frame.New(frame.KindHeartbeat, 1, nil),
	} {
		stream = append(stream, part...)
	}
	for _, n := range []int{1, 2, 3, 7, 8, 11, 64, len(stream)} {
		t.Run(fmt.Sprintf("pieces of %d", n), func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, 3, testbroker.CountPublishes(stream, n))
		})
	}
	assert.Zero(t, testbroker.CountPublishes(append([]byte("HTTP/1.1"), publish...), 5), "not AMQP")
}

// Given confirms that are held, then everything else on the connection is answered: another channel
// opens, a queue is declared, a message is delivered, heartbeats come. Afterwards the confirms come
// in their order.
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
	send := func(body string) *amqp.DeferredConfirmation {
		confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false,
			amqp.Publishing{Body: []byte(body)})
		require.NoError(t, err)
		return confirm
	}
	returned := send("")
	other, err := conn.Channel()
	require.NoError(t, err)
	_, err = other.QueueDeclare(queue, false, true, false, false, nil)
	require.NoError(t, err)
	taken := send("x")
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
	confirmed(t, returned)
	confirmed(t, taken)
	assert.Len(t, returns, 1)
	confirmed(t, send("")) // the channel goes on as before
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
		echoes(t, conn, "x")
		if how.end == nil {
			require.NoError(t, conn.Close())
		} else {
			how.end()
		}
		assert.Equal(t, end{i + 1, how.by}, <-ends, how.by)
	}
}
