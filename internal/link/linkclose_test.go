package link_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// goodbye is how long a Close may wait for the broker.
const goodbye = 2 * time.Second

func connectFor(d time.Duration) func(*link.Config) {
	return func(cfg *link.Config) { cfg.ConnectTimeout = d }
}

// publish sends size bytes to a missing queue.
func publish(t *testing.T, ch *amqp.Channel, size int) {
	t.Helper()
	within(t, time.Minute, "the publish", func() { // a publish that blocks ends never
		msg := amqp.Publishing{Body: make([]byte, size)}
		assert.NoError(t, ch.Publish("", "missing", false, false, msg))
	})
}

func TestCloseEndsEverything(t *testing.T) {
	t.Parallel()
	l, conn := open(t, config(testbroker.URL(t)))
	var closing sync.WaitGroup
	for range 4 {
		closing.Go(l.Close)
	}
	within(t, goodbye, "Close", closing.Wait)
	<-conn.Gone()
	assert.ErrorIs(t, conn.Cause(), link.ErrLost)
	assert.True(t, conn.IsClosed())
	_, err := l.Conn(t.Context())
	assert.ErrorIs(t, err, link.ErrClosed)
}

func TestCloseWakesThoseWhoWait(t *testing.T) {
	t.Parallel()
	proxy, l, conn := behindProxy(t)
	proxy.Refuse(true)
	proxy.Cut()
	<-conn.Gone()
	result := make(chan error, 1)
	go func() {
		_, err := l.Conn(context.Background())
		result <- err
	}()
	l.Close()
	within(t, 0, "waking up", func() { assert.ErrorIs(t, <-result, link.ErrClosed) })
}

func TestCloseBetweenDials(t *testing.T) {
	t.Parallel()
	proxy, l, conn := behindProxy(t, func(cfg *link.Config) {
		cfg.Reconnect = link.Backoff{Initial: time.Hour, Max: time.Hour}
	})
	proxy.Cut()
	<-conn.Gone()
	within(t, 0, "Close", l.Close)
	assert.Equal(t, 1, proxy.Connections())
}

func TestCloseDuringABlackholedHandshake(t *testing.T) {
	t.Parallel()
	proxy, l, _ := behindProxy(t, connectFor(time.Hour))
	proxy.Blackhole(true)
	proxy.Cut()
	dials(t, proxy, 2)
	within(t, 0, "Close", l.Close)
}

func TestCloseWhileADialOfTheUserHangs(t *testing.T) {
	t.Parallel()
	hanging, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	dial, tries := amqp.DefaultDial(patience), 0
	hang := func(network, address string) (net.Conn, error) {
		if tries++; tries > 1 { // dials come one after the other
			close(hanging)
			<-release
			return nil, errors.New("released")
		}
		return dial(network, address)
	}
	proxy, l, _ := behindProxy(t, connectFor(time.Hour), func(cfg *link.Config) {
		cfg.AMQP = &amqp.Config{Dial: hang}
	})
	proxy.Cut()
	within(t, 0, "a second dial", func() { <-hanging })
	within(t, 0, "Close", l.Close)
}

func TestCloseOfABlackholedConnection(t *testing.T) {
	t.Parallel()
	proxy, l, _ := behindProxy(t)
	proxy.Blackhole(true)
	within(t, goodbye, "Close", l.Close)
}

func TestCloseOfABlackholedTLSConnection(t *testing.T) {
	t.Parallel()
	address, roots, proxy := terminateTLS(t)
	cfg := config(address)
	cfg.TLS = &tls.Config{RootCAs: roots}
	l, conn := open(t, cfg)
	ch, err := conn.Channel()
	require.NoError(t, err)
	proxy.Blackhole(true)
	publish(t, ch, 0)
	within(t, goodbye, "Close", l.Close)
}

// Given a frame that makes no sense, amqp091-go closes the connection itself and waits for the
// broker's answer without a limit. Close ends that wait.
func TestCloseOfAConnectionThatIsBeingClosed(t *testing.T) {
	t.Parallel()
	inner, outer := net.Pipe()
	closing := make(chan struct{})
	cfg := config(testbroker.URL(t))
	cfg.AMQP = &amqp.Config{Dial: func(network, address string) (net.Conn, error) {
		broker, err := net.Dial(network, address)
		if err != nil {
			return nil, err
		}
		go func() { _, _ = io.Copy(outer, broker) }()
		go func() {
			defer broker.Close()
			buffer := make([]byte, 4096)
			for {
				n, err := outer.Read(buffer)
				switch {
				case err != nil:
					return
				case bytes.Contains(buffer[:n], []byte("\x00\x0a\x00\x32")): // connection.close
					close(closing)
					_, _ = io.Copy(io.Discard, outer) // no answer
					return
				}
				_, _ = broker.Write(buffer[:n])
			}
		}()
		return inner, nil
	}}
	l, _ := open(t, cfg)
	header := "\x02\x00\x00\x00\x00\x00\x0e" + "\x00\x3c\x00\x00" + strings.Repeat("\x00", 10) + "\xce"
	_, err := outer.Write([]byte(header)) // on channel 0
	require.NoError(t, err)
	within(t, 0, "its own goodbye", func() { <-closing })
	within(t, goodbye, "Close", l.Close)
}

// The broker has gone silent while a write is blocked. The end of the connection frees the write,
// long before its own timeout does.
func TestBlockedWriteEndsWithItsConnection(t *testing.T) {
	t.Parallel()
	inner, outer := net.Pipe()
	silence := make(chan struct{})
	pass := func(to io.WriteCloser, from io.Reader) {
		buffer := make([]byte, 4096)
		for {
			n, err := from.Read(buffer)
			if err != nil {
				_ = to.Close()
				return
			}
			select {
			case <-silence:
				return
			default:
				_, _ = to.Write(buffer[:n])
			}
		}
	}
	cfg := config(testbroker.URL(t))
	cfg.WriteTimeout = time.Hour
	cfg.AMQP = &amqp.Config{Heartbeat: time.Second}
	tries := 0
	cfg.AMQP.Dial = func(network, address string) (net.Conn, error) {
		if tries++; tries > 1 {
			return nil, errors.New("no second one")
		}
		broker, err := net.Dial(network, address)
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { _ = broker.Close() })
		go pass(outer, broker)
		go pass(broker, outer)
		return inner, nil
	}
	_, conn := open(t, cfg)
	ch, err := conn.Channel()
	require.NoError(t, err)
	close(silence)
	publish(t, ch, 1<<20)
	within(t, 10*time.Second, "the end of the connection", func() { <-conn.Gone() })
}

// The buffers are full, so that even the goodbye cannot be written.
func TestCloseWhileTheBrokerIsFrozen(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	l, conn := open(t, config(node.URL()))
	ch, err := conn.Channel()
	require.NoError(t, err)
	node.Freeze(t)
	publish(t, ch, 32<<20)
	assert.NotNil(t, conn.Backlog(), "32 MiB went to a frozen broker")
	within(t, goodbye, "Close", l.Close)
}
