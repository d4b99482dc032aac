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

func TestTapSeesEveryFrame(t *testing.T) {
	t.Parallel()
	p, seen := tapped(t, testbroker.URL(t), func(s testbroker.Seen) testbroker.Fault {
		assert.Equal(t, 1, s.Connection)
		return testbroker.Fault{}
	})
	conn, err := amqp.Dial(p.URL())
	require.NoError(t, err)
	assert.Equal(t, 1, p.Live())
	ch, err := conn.Channel()
	require.NoError(t, err)
	require.NoError(t, ch.Confirm(false))
	confirm, err := ch.PublishWithDeferredConfirm("", testbroker.Queue(t), true, false,
		amqp.Publishing{Body: make([]byte, 200_000)})
	require.NoError(t, err)
	ok, err := confirm.WaitContext(t.Context())
	require.NoError(t, err)
	require.True(t, ok, "a return does not hinder it")
	require.NoError(t, conn.Close())
	testbroker.WaitFor(t, "the end of the connection", limit, func() bool { return p.Live() == 0 })
	assert.Equal(t, []string{
		"↓connection.start", "↑connection.start-ok", "↓connection.tune", "↑connection.tune-ok",
		"↑connection.open", "↓connection.open-ok",
		"↑channel.open", "↓channel.open-ok", "↑confirm.select", "↓confirm.select-ok",
		"↑basic.publish", "↑header", "↑body", "↑body", "↓basic.return", "↓header", "↓body", "↓body",
		"↓basic.ack",
		"↑connection.close", "↓connection.close-ok",
	}, seen())
}

func TestFaultsHappenAtTheirFrame(t *testing.T) {
	t.Parallel()
	at := func(method frame.Method, fault testbroker.Fault) func(testbroker.Seen) testbroker.Fault {
		return func(s testbroker.Seen) testbroker.Fault {
			if s.Method() == method {
				return fault
			}
			return testbroker.Fault{}
		}
	}
	for name, c := range map[string]struct {
		method frame.Method
		fault  testbroker.Fault
		opened bool
		last   string
	}{
		"before a request": {
			frame.ChannelOpen, testbroker.Fault{Kind: testbroker.FIN}, false, "↑channel.open",
		},
		"before an answer": {
			frame.ChannelOpenOk, testbroker.Fault{Kind: testbroker.RST}, false, "↓channel.open-ok",
		},
		"after an answer": {
			frame.ChannelOpenOk,
			testbroker.Fault{Kind: testbroker.FIN, After: true},
			true, "↓channel.open-ok",
		},
		"after with RST": {
			frame.ChannelOpenOk,
			testbroker.Fault{Kind: testbroker.RST, After: true},
			true, "↓channel.open-ok",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, seen := tapped(t, testbroker.URL(t), at(c.method, c.fault))
			conn, err := amqp.Dial(p.URL())
			require.NoError(t, err)
			defer conn.Close()
			_, err = conn.Channel()
			assert.Equal(t, c.opened, err == nil, "%v", err)
			testbroker.WaitFor(t, "the end of the connection", limit,
				func() bool { return conn.IsClosed() && p.Live() == 0 })
			assert.Equal(t, c.last, seen()[len(seen())-1])
		})
	}
	for name, after := range map[string]bool{"frozen before": false, "frozen after": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, seen := tapped(t, testbroker.URL(t), at(frame.ChannelOpen,
				testbroker.Fault{Kind: testbroker.Frozen, After: after}))
			conn, err := amqp.Dial(p.URL())
			require.NoError(t, err)
			defer conn.Close()
			opened := make(chan error, 1)
			go func() {
				_, err := conn.Channel()
				opened <- err
			}()
			select {
			case err := <-opened:
				t.Fatalf("the answer came through: %v", err)
			case <-time.After(100 * time.Millisecond):
			}
			fresh := make(chan error, 1)
			go func() {
				conn, err := amqp.Dial(p.URL())
				if err == nil {
					err = conn.Close()
				}
				fresh <- err
			}()
			testbroker.WaitFor(t, "another connection", limit, func() bool { return p.Live() == 2 })
			p.Freeze(false)
			assert.NoError(t, <-opened)
			assert.NoError(t, <-fresh)
			assert.Contains(t, seen(), "↓channel.open-ok")
		})
	}
}

func TestRetargetedProxyLeadsElsewhere(t *testing.T) {
	t.Parallel()
	first, second := startEcho(t), startEcho(t)
	p := testbroker.NewProxy(t, first.url())
	old := dialProxy(t, p)
	echoes(t, old, "a")
	p.Retarget(t, second.url())
	echoes(t, old, "b")
	fresh := dialProxy(t, p)
	echoes(t, fresh, "c")
	assert.Equal(t, 1, first.accepted())
	assert.Equal(t, 1, second.accepted())
	assert.Equal(t, 2, p.Live())
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
