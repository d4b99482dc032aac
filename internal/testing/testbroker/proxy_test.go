package testbroker_test

import (
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

const limit = 10 * time.Second

// echo is a peer that sends back every byte and counts its connections.
type echo struct {
	listener net.Listener
	mu       sync.Mutex
	conns    []net.Conn
	wait     sync.WaitGroup
}

func startEcho(t *testing.T) *echo {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	e := &echo{listener: l}
	e.wait.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			e.mu.Lock()
			e.conns = append(e.conns, conn)
			e.mu.Unlock()
			e.wait.Go(func() { _, _ = io.Copy(conn, conn) })
		}
	})
	t.Cleanup(e.close)
	return e
}

func (e *echo) url() string { return "amqp://user:secret@" + e.listener.Addr().String() + "/vhost" }

func (e *echo) accepted() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.conns)
}

func (e *echo) hangUp() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.conns {
		_ = c.Close()
	}
}

func (e *echo) close() {
	_ = e.listener.Close()
	e.hangUp()
	e.wait.Wait()
}

func dialProxy(t *testing.T, p *testbroker.Proxy) net.Conn {
	t.Helper()
	u, err := url.Parse(p.URL())
	require.NoError(t, err)
	conn, err := net.Dial("tcp4", u.Host)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(limit)))
	return conn
}

func send(t *testing.T, conn net.Conn, s string) {
	t.Helper()
	_, err := conn.Write([]byte(s))
	require.NoError(t, err)
}

func receive(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	_, err := io.ReadFull(conn, got)
	require.NoError(t, err)
	require.Equal(t, want, string(got))
}

// echoes sends a text and receives it again.
func echoes(t *testing.T, conn net.Conn, s string) {
	t.Helper()
	send(t, conn, s)
	receive(t, conn, s)
}

// silent asserts that neither bytes nor an end arrive for a while.
func silent(t *testing.T, conn net.Conn) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err := conn.Read(make([]byte, 1))
	var timeout net.Error
	require.ErrorAs(t, err, &timeout)
	require.True(t, timeout.Timeout(), "read ended with %v", err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(limit)))
}

func ended(t *testing.T, conn net.Conn) {
	t.Helper()
	_, err := conn.Read(make([]byte, 1))
	require.Error(t, err)
	var timeout net.Error
	require.False(t, errors.As(err, &timeout) && timeout.Timeout(), "still open after %s", limit)
}

func TestProxyBlackholeSwallowsAndClosesNothing(t *testing.T) {
	t.Parallel()
	peer := startEcho(t)
	p := testbroker.NewProxy(t, peer.url())
	quiet, talking := dialProxy(t, p), dialProxy(t, p)
	for _, conn := range []net.Conn{quiet, talking} {
		echoes(t, conn, "a")
	}
	p.Blackhole(true)
	fresh := dialProxy(t, p)
	send(t, talking, "lost")
	send(t, fresh, "lost")
	testbroker.WaitFor(t, "swallowed bytes", limit, func() bool { return p.Lossy() == 1 })
	for _, conn := range []net.Conn{quiet, talking, fresh} {
		silent(t, conn)
	}
	require.Equal(t, 2, peer.accepted(), "new connections must not reach the target")

	p.Blackhole(false)
	ended(t, talking)
	ended(t, fresh)
	echoes(t, quiet, "b")
}

func TestProxyBlackholeHidesThatAPeerHungUp(t *testing.T) {
	t.Parallel()
	peer := startEcho(t)
	p := testbroker.NewProxy(t, peer.url())
	conn := dialProxy(t, p)
	echoes(t, conn, "a")
	p.Blackhole(true)
	peer.hangUp()
	silent(t, conn)
	p.Blackhole(false)
	ended(t, conn)
}

// It is not parallel, because goroutines of other tests would count.
func TestProxyLeavesNoGoroutine(t *testing.T) {
	before := goleak.IgnoreCurrent()
	peer := startEcho(t)
	p := testbroker.NewProxy(t, peer.url())
	live := dialProxy(t, p)
	echoes(t, live, "a")
	p.Delay(time.Hour)
	send(t, live, "held back")
	p.Blackhole(true)
	send(t, dialProxy(t, p), "kept")
	testbroker.WaitFor(t, "both connections", limit, func() bool { return p.Live() == 2 })
	p.Close()
	p.Close()
	peer.close()
	goleak.VerifyNone(t, before)
}

// Given confirms that are held, then everything else on the connection is answered: another channel
// opens, a queue is declared, a message is delivered, heartbeats come. Afterwards the confirms come
// in their order.
func TestHeldConfirmsComeLater(t *testing.T) {
	t.Parallel()
	beats := make(chan struct{}, 100)
	var confirms atomic.Int32
	p := testbroker.NewProxy(t, testbroker.URL(t))
	p.Tap(func(s testbroker.Seen) testbroker.Fault {
		switch {
		case s.Up:
		case s.Kind() == frame.KindHeartbeat:
			beats <- struct{}{}
		case s.Method() == frame.BasicAck || s.Method() == frame.BasicReturn:
			confirms.Add(1)
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
	assert.Zero(t, confirms.Load())
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
	assert.Equal(t, 3, p.Publishes())
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
