package link_test

import (
	"bytes"
	"context"
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

func TestCloseEndsEverything(t *testing.T) {
	t.Parallel()
	l := open(t, config(testbroker.URL(t)))
	conn := live(t, l)
	var closing sync.WaitGroup
	for range 4 {
		closing.Go(l.Close)
	}
	within(t, 2*time.Second, "Close", closing.Wait)
	<-conn.Gone()
	assert.ErrorIs(t, conn.Cause(), link.ErrLost)
	assert.True(t, conn.IsClosed())
	_, err := l.Conn(t.Context())
	assert.ErrorIs(t, err, link.ErrClosed)
}

func TestCloseWakesThoseWhoWait(t *testing.T) {
	t.Parallel()
	proxy := testbroker.NewProxy(t, testbroker.URL(t))
	l := open(t, config(proxy.URL()))
	conn := live(t, l)
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
	proxy := testbroker.NewProxy(t, testbroker.URL(t))
	cfg := config(proxy.URL())
	cfg.Reconnect = link.Backoff{Initial: time.Hour, Max: time.Hour}
	l := open(t, cfg)
	conn := live(t, l)
	proxy.Cut()
	<-conn.Gone()
	within(t, 0, "Close", l.Close)
	assert.Equal(t, 1, proxy.Connections())
}

func TestCloseDuringABlackholedHandshake(t *testing.T) {
	t.Parallel()
	proxy := testbroker.NewProxy(t, testbroker.URL(t))
	cfg := config(proxy.URL())
	cfg.ConnectTimeout = time.Hour
	l := open(t, cfg)
	proxy.Blackhole(true)
	proxy.Cut()
	testbroker.WaitFor(t, "a dial into the hole", patience, func() bool { return proxy.Connections() == 2 })
	within(t, 0, "Close", l.Close)
}

func TestCloseWhileADialOfTheUserHangs(t *testing.T) {
	t.Parallel()
	proxy := testbroker.NewProxy(t, testbroker.URL(t))
	hanging, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	dial, dials := amqp.DefaultDial(patience), 0
	cfg := config(proxy.URL())
	cfg.ConnectTimeout = time.Hour
	cfg.AMQP = &amqp.Config{Dial: func(network, address string) (net.Conn, error) {
		if dials++; dials > 1 { // dials come one after the other
			close(hanging)
			<-release
			return nil, errors.New("released")
		}
		return dial(network, address)
	}}
	l := open(t, cfg)
	proxy.Cut()
	within(t, 0, "a second dial", func() { <-hanging })
	within(t, 0, "Close", l.Close)
}

func TestCloseOfABlackholedConnection(t *testing.T) {
	t.Parallel()
	proxy := testbroker.NewProxy(t, testbroker.URL(t))
	l := open(t, config(proxy.URL()))
	proxy.Blackhole(true)
	within(t, 2*time.Second, "Close", l.Close)
}

func TestCloseOfAConnectionThatIsBeingClosed(t *testing.T) {
	t.Parallel()
	inner, outer := net.Pipe()
	goodbye := make(chan struct{})
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
					close(goodbye)
					_, _ = io.Copy(io.Discard, outer) // no answer
					return
				}
				_, _ = broker.Write(buffer[:n])
			}
		}()
		return inner, nil
	}}
	l := open(t, cfg)
	header := "\x02\x00\x00\x00\x00\x00\x0e" + "\x00\x3c\x00\x00" + strings.Repeat("\x00", 10) + "\xce"
	_, err := outer.Write([]byte(header)) // on channel 0
	require.NoError(t, err)
	within(t, 0, "its own goodbye", func() { <-goodbye })
	within(t, 2*time.Second, "Close", l.Close)
}

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
	dials := 0
	cfg.AMQP.Dial = func(network, address string) (net.Conn, error) {
		if dials++; dials > 1 {
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
	l := open(t, cfg)
	conn := live(t, l)
	ch, err := conn.Channel()
	require.NoError(t, err)
	close(silence)
	within(t, 0, "the publish", func() {
		assert.NoError(t, ch.Publish("", "nobody", false, false, amqp.Publishing{Body: make([]byte, 1<<20)}))
	})
	within(t, 10*time.Second, "the end of the connection", func() { <-conn.Gone() })
}

func TestCloseWhileTheBrokerIsFrozen(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	l := open(t, config(node.URL()))
	conn := live(t, l)
	ch, err := conn.Channel()
	require.NoError(t, err)
	node.Freeze(t)

	// Fill the buffers, so that even the goodbye cannot be written.
	within(t, 0, "the publish", func() {
		assert.NoError(t, ch.Publish("", "nobody", false, false, amqp.Publishing{Body: make([]byte, 32<<20)}))
	})
	assert.NotNil(t, conn.Backlog(), "32 MiB went to a frozen broker")
	within(t, 2*time.Second, "Close", l.Close)
}
