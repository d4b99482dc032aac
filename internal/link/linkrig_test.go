package link_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/testing/memnet"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

const (
	// patience bounds every wait on a condition.
	patience = 30 * time.Second
	// slack is the time that a busy machine may add to a bound.
	slack = 3 * time.Second
)

func TestMain(m *testing.M) {
	testbroker.Main(m, func() error { return goleak.Find() })
}

func config(url string) link.Config {
	const ms = time.Millisecond
	return link.Config{
		URL: url, Name: "millpond test",
		ConnectTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
		Reconnect: link.Backoff{Initial: 20 * ms, Max: 100 * ms, Multiplier: 2},
		Logger:    watermill.NopLogger{},
	}
}

// open opens a link that is closed at the end of the test, and returns it with its connection.
func open(t *testing.T, cfg link.Config) (*link.Link, *link.Conn) {
	t.Helper()
	l, err := link.Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(l.Close)
	return l, live(t, l)
}

// behindProxy opens a link through a proxy, with the settings of change.
func behindProxy(
	t *testing.T, change ...func(*link.Config),
) (*testbroker.Proxy, *link.Link, *link.Conn) {
	t.Helper()
	proxy := testbroker.NewProxy(t, testbroker.URL(t))
	cfg := config(proxy.URL())
	for _, f := range change {
		f(&cfg)
	}
	l, conn := open(t, cfg)
	return proxy, l, conn
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

// dials waits for the nth dial, the first one and refused ones included.
func dials(t *testing.T, proxy *testbroker.Proxy, n int) {
	t.Helper()
	testbroker.WaitFor(t, "another dial", patience, func() bool { return proxy.Connections() >= n })
}

// works fails the test if conn does not open a channel.
func works(t *testing.T, conn *link.Conn) {
	t.Helper()
	require.NoError(t, conn.Do(t.Context(), func(*amqp.Channel) error { return nil }))
}

// within fails the test if f takes longer than limit and slack.
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

// ends waits for the end of a connection.
func ends(t *testing.T, conn *link.Conn) {
	t.Helper()
	within(t, 0, "noticing the end", func() { <-conn.Gone() })
}

// silent is the configuration of a link to a peer in memory that accepts a connection and says
// nothing.
func silent(t *testing.T, scheme string) link.Config {
	t.Helper()
	l := memnet.Listen()
	t.Cleanup(func() { _ = l.Close() })
	go func() { _, _ = l.Accept() }()
	cfg := config(scheme + "://guest:hunter2@" + l.Addr().String() + "/")
	cfg.AMQP = &amqp.Config{Dial: memnet.Dial}
	return cfg
}

// capture is a logger that keeps the errors that it is given, by their text.
type capture struct {
	watermill.NopLogger
	mu   sync.Mutex
	errs map[string]error
}

func (c *capture) into(cfg *link.Config) { cfg.Logger = c }

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
