package link_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// patience bounds every wait on a condition.
const patience = 30 * time.Second

// slack is what a busy machine may add to a bound.
const slack = 3 * time.Second

func config(url string) link.Config {
	return link.Config{
		URL: url, Name: "millpond test",
		ConnectTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
		Reconnect: link.Backoff{Initial: 20 * time.Millisecond, Max: 100 * time.Millisecond, Multiplier: 2},
		Logger:    watermill.NopLogger{},
	}
}

// open opens a link that is closed at the end of the test.
func open(t *testing.T, cfg link.Config) *link.Link {
	t.Helper()
	l, err := link.Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(l.Close)
	return l
}

// live returns the connection once there is one.
func live(t *testing.T, l *link.Link) *link.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := l.Conn(ctx)
	require.NoError(t, err)
	return conn
}

// within fails the test where f takes longer than limit and slack.
func within(t *testing.T, limit time.Duration, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(limit + slack):
		t.Fatalf("%s takes longer than %v", what, limit+slack)
	}
}

// silent is a peer that accepts connections and says nothing.
type silent struct {
	listener net.Listener
	mu       sync.Mutex
	conns    []net.Conn
	wait     sync.WaitGroup
}

func startSilent(t *testing.T) *silent {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	s := &silent{listener: l}
	s.wait.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns = append(s.conns, conn)
			s.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		s.wait.Wait()
		for _, conn := range s.conns {
			_ = conn.Close()
		}
	})
	return s
}

func (s *silent) url() string { return "amqp://guest:hunter2@" + s.listener.Addr().String() + "/" }

func (s *silent) accepted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// freePort returns an address on which nobody listens.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// capture is a logger that keeps the errors it is given, by their text.
type capture struct {
	watermill.NopLogger
	mu   sync.Mutex
	errs map[string]error
}

func (c *capture) Error(msg string, err error, _ watermill.LogFields) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.errs == nil {
		c.errs = make(map[string]error)
	}
	c.errs[msg] = err
}

// logged waits until an error was logged under this text, and returns it.
func (c *capture) logged(t *testing.T, text string) (found error) {
	t.Helper()
	testbroker.WaitFor(t, "the log "+text, patience, func() (ok bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		found, ok = c.errs[text]
		return ok
	})
	return found
}
