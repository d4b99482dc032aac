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
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/testing/memnet"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

const lost = "Connection to RabbitMQ lost, reconnecting"

func TestReconnectsAfterACut(t *testing.T) {
	t.Parallel()
	logs := new(capture)
	proxy, l, conn := behindProxy(t, logs.into)
	for cut := range 3 {
		assert.NoError(t, conn.Cause())
		proxy.Cut()
		ends(t, conn)
		assert.ErrorIs(t, conn.Cause(), link.ErrLost)

		again := live(t, l)
		assert.NotSame(t, conn, again)
		assert.False(t, again.IsClosed())
		works(t, again)
		assert.Equal(t, cut+2, proxy.Connections())
		conn = again
	}
	assert.ErrorIs(t, logs.logged(t, lost), link.ErrLost)
}

// Given a broker that has ended the connection, then a call after that names the broker's reason.
func TestAnErrorNamesWhyTheConnectionEnded(t *testing.T) {
	t.Parallel()
	_, conn := open(t, config(testbroker.URL(t)))
	err := conn.Do(t.Context(), func(ch *amqp.Channel) error {
		immediate := true // RabbitMQ ends a connection that asks for it
		assert.NoError(t, ch.Publish("", "missing", false, immediate, amqp.Publishing{}))
		ends(t, conn)
		return ch.Qos(1, 0, false)
	})
	reason := new(amqp.Error)
	require.ErrorAs(t, err, &reason)
	assert.Equal(t, amqp.NotImplemented, reason.Code)
	assert.ErrorIs(t, err, amqp.ErrClosed)
}

// Given a connection that is lost during a call, then the call is made once more on the next one; a
// call that fails on a connection that lives is not.
func TestDoGoesOnOnTheNextConnection(t *testing.T) {
	t.Parallel()
	_, l, first := behindProxy(t)
	var used []*link.Conn
	require.NoError(t, l.Do(t.Context(), func(conn *link.Conn) error {
		if used = append(used, conn); conn == first {
			conn.Kill(errors.New("lost in the middle"))
			ends(t, conn)
		}
		return conn.Do(t.Context(), func(*amqp.Channel) error { return nil })
	}))
	require.Len(t, used, 2)
	assert.Same(t, first, used[0])

	calls, failed := 0, errors.New("failed")
	assert.ErrorIs(t, l.Do(t.Context(), func(*link.Conn) error { calls++; return failed }), failed)
	assert.Equal(t, 1, calls)
}

// Given credentials that hang and do not heed their context, then each dial ends at its timeout,
// the function is called once, and Close returns. Once it answers, its answer is used.
func TestCredentialsThatHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		free := make(chan struct{})
		logs := new(capture)
		cfg := config(peer.Start(t, nil).URL())
		logs.into(&cfg)
		cfg.AMQP = &amqp.Config{Dial: memnet.Dial}
		cfg.Credentials = func(context.Context) (string, string, error) {
			if asked.Add(1) == 2 {
				<-free
			}
			return "guest", "guest", nil
		}
		l, err := link.Open(t.Context(), cfg)
		require.NoError(t, err)
		for range 2 {
			free = make(chan struct{})
			asked.Store(1)
			live(t, l).Kill(errors.New("lost"))
			<-time.After(10 * cfg.ConnectTimeout)
			require.EqualValues(t, 2, asked.Load())
			require.ErrorContains(t, logs.logged(t, "Cannot reconnect to RabbitMQ, trying again"),
				"ask for credentials: context deadline exceeded")
			close(free)
			require.False(t, live(t, l).IsClosed())
		}
		free = make(chan struct{})
		asked.Store(1)
		live(t, l).Kill(errors.New("lost"))
		<-time.After(time.Second)
		began := time.Now()
		l.Close()
		require.Zero(t, time.Since(began))
		close(free)
	})
}

func TestTriesAgainUntilTheBrokerIsBack(t *testing.T) {
	t.Parallel()
	logs := new(capture)
	proxy, l, _ := behindProxy(t, logs.into)
	proxy.Refuse(true)
	proxy.Cut()
	dials(t, proxy, 4)

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := l.Conn(ctx)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, "not connected to RabbitMQ: ")
	err = logs.logged(t, "Cannot reconnect to RabbitMQ, trying again")
	assert.ErrorContains(t, err, "connect to RabbitMQ at 127.0.0.1:")

	proxy.Refuse(false)
	assert.False(t, live(t, l).IsClosed())
}

func TestKillSaysWhy(t *testing.T) {
	t.Parallel()
	logs := new(capture)
	cfg := config(testbroker.URL(t))
	logs.into(&cfg)
	l, conn := open(t, cfg)
	reason := errors.New("out of patience")
	conn.Kill(reason)
	conn.Kill(errors.New("again"))
	ends(t, conn)
	assert.ErrorIs(t, conn.Cause(), link.ErrLost)
	assert.ErrorIs(t, conn.Cause(), reason)
	assert.ErrorIs(t, logs.logged(t, lost), reason)
	assert.NotSame(t, conn, live(t, l))
}

func TestDoKeepsAnErrorToItsOwnChannel(t *testing.T) {
	t.Parallel()
	_, conn := open(t, config(testbroker.URL(t)))
	other, err := conn.Channel()
	require.NoError(t, err)
	queue := testbroker.Queue(t)

	err = conn.Do(t.Context(), func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		return err
	})
	var refused *amqp.Error
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, amqp.NotFound, refused.Code)
	assert.False(t, other.IsClosed())

	own := errors.New("own")
	var used *amqp.Channel
	assert.ErrorIs(t, conn.Do(t.Context(), func(ch *amqp.Channel) error {
		used = ch
		return own
	}), own)
	assert.True(t, used.IsClosed(), "the channel stays open")
	assert.False(t, conn.IsClosed())
}

func TestDoEndsWithItsContext(t *testing.T) {
	t.Parallel()
	proxy, _, conn := behindProxy(t)
	proxy.Blackhole(true)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	within(t, 200*time.Millisecond, "Do", func() {
		err := conn.Do(ctx, func(*amqp.Channel) error { return nil })
		assert.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestDoBeginsNothingAfterItsContext(t *testing.T) {
	t.Parallel()
	proxy, _, conn := behindProxy(t)
	proxy.Delay(300 * time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begun := make(chan struct{}, 1)
	assert.ErrorIs(t, conn.Do(ctx, func(*amqp.Channel) error {
		begun <- struct{}{}
		return nil
	}), context.DeadlineExceeded)
	// A second one, whose channel is opened later, ends after the first.
	proxy.Delay(0)
	works(t, conn)
	assert.Empty(t, begun)
}

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
