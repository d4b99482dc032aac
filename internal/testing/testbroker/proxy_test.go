//go:build unix

package testbroker_test

import (
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

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
	fresh, freshTalking := dialProxy(t, p), dialProxy(t, p)
	send(t, talking, "lost")
	send(t, freshTalking, "lost")
	testbroker.WaitFor(t, "eight swallowed bytes", limit, func() bool { return p.BytesUp() == 2+8 })
	for _, conn := range []net.Conn{quiet, talking, fresh, freshTalking} {
		silent(t, conn)
	}
	require.EqualValues(t, 2, p.BytesDown())
	require.Equal(t, 2, peer.accepted(), "new connections must not reach the target")

	p.Blackhole(false)
	ended(t, talking)
	ended(t, freshTalking)
	for _, conn := range []net.Conn{quiet, fresh} {
		echoes(t, conn, "b")
	}
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
	send(t, dialProxy(t, p), "swallowed")
	testbroker.WaitFor(t, "all bytes at the proxy", limit, func() bool { return p.BytesUp() == 1+9+9 })
	p.Close()
	p.Close()
	peer.close()
	goleak.VerifyNone(t, before)
}
