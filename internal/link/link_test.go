package link_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

func TestConfigOfTheUserIsNotWrittenTo(t *testing.T) {
	t.Parallel()
	user := &amqp.Config{
		SASL:       []amqp.Authentication{&amqp.PlainAuth{Username: "guest", Password: "guest"}},
		Properties: amqp.Table{"product": "shop"},
		Heartbeat:  7 * time.Second,
	}
	cfg := config(testbroker.URL(t))
	cfg.AMQP = user
	for range 2 { // the second dial would find what the first has written
		open(t, cfg).Close()
	}
	assert.Equal(t, &amqp.Config{
		SASL:       []amqp.Authentication{&amqp.PlainAuth{Username: "guest", Password: "guest"}},
		Properties: amqp.Table{"product": "shop"},
		Heartbeat:  7 * time.Second,
	}, user)
}

func TestReconnectsAfterACut(t *testing.T) {
	t.Parallel()
	proxy := testbroker.NewProxy(t, testbroker.URL(t))
	logs := new(capture)
	cfg := config(proxy.URL())
	cfg.Logger = logs
	l := open(t, cfg)

	for cut := range 3 {
		conn := live(t, l)
		assert.NoError(t, conn.Cause())
		proxy.Cut()
		within(t, 0, "noticing a cut", func() { <-conn.Gone() })
		assert.ErrorIs(t, conn.Cause(), link.ErrLost)

		again := live(t, l)
		assert.NotSame(t, conn, again)
		assert.False(t, again.IsClosed())
		assert.NoError(t, again.Do(t.Context(), func(*amqp.Channel) error { return nil }))
		assert.Equal(t, cut+2, proxy.Connections())
	}
	assert.ErrorIs(t, logs.logged(t, "Connection to RabbitMQ lost, reconnecting"), link.ErrLost)
}

func TestTriesAgainUntilTheBrokerIsBack(t *testing.T) {
	t.Parallel()
	proxy := testbroker.NewProxy(t, testbroker.URL(t))
	logs := new(capture)
	cfg := config(proxy.URL())
	cfg.Logger = logs
	l := open(t, cfg)
	proxy.Refuse(true)
	proxy.Cut()
	testbroker.WaitFor(t, "three refused dials", patience, func() bool { return proxy.Connections() >= 4 })

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := l.Conn(ctx)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, "not connected to RabbitMQ: ")
	assert.ErrorContains(t, logs.logged(t, "Cannot reconnect to RabbitMQ, trying again"), "connect to RabbitMQ at 127.0.0.1:")

	proxy.Refuse(false)
	assert.False(t, live(t, l).IsClosed())
}

func TestManyWaitForTheSameConnection(t *testing.T) {
	t.Parallel()
	proxy := testbroker.NewProxy(t, testbroker.URL(t))
	l := open(t, config(proxy.URL()))
	first := live(t, l)
	proxy.Refuse(true)
	proxy.Cut()
	<-first.Gone()

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conns := make([]*link.Conn, 32)
	var waiting sync.WaitGroup
	for i := range conns {
		waiting.Go(func() {
			conn, err := l.Conn(ctx)
			assert.NoError(t, err)
			conns[i] = conn
		})
	}
	proxy.Refuse(false)
	waiting.Wait()
	for _, conn := range conns {
		assert.NotNil(t, conn)
		assert.Same(t, conns[0], conn)
	}
}

func TestKillSaysWhy(t *testing.T) {
	t.Parallel()
	logs := new(capture)
	cfg := config(testbroker.URL(t))
	cfg.Logger = logs
	l := open(t, cfg)
	conn := live(t, l)
	reason := errors.New("out of patience")
	conn.Kill(reason)
	conn.Kill(errors.New("again"))
	within(t, 0, "the end", func() { <-conn.Gone() })
	assert.ErrorIs(t, conn.Cause(), link.ErrLost)
	assert.ErrorIs(t, conn.Cause(), reason)
	assert.ErrorIs(t, logs.logged(t, "Connection to RabbitMQ lost, reconnecting"), reason)
	assert.NotSame(t, conn, live(t, l))
}

// amqp091-go closes a connection by itself after a frame that makes no sense,

// and then waits for the broker's answer without a limit.

// The broker has gone silent while a write is blocked: the end of the connection

// frees it, long before a timeout of its own does.

func TestReconnectsWhenTheBrokerRestarts(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	l := open(t, config(node.URL()))
	conn := live(t, l)
	node.Stop(t)
	within(t, 0, "noticing it", func() { <-conn.Gone() })
	var reason *amqp.Error
	require.ErrorAs(t, conn.Cause(), &reason)
	// The broker says 320 and goes. Where it is gone before amqp091-go has answered, the failed write may become the reason.
	assert.Contains(t, []int{amqp.ConnectionForced, amqp.FrameError}, reason.Code, "%v", reason)
	node.Start(t)
	assert.NoError(t, live(t, l).Do(t.Context(), func(*amqp.Channel) error { return nil }))
}

func TestDoKeepsAnErrorToItsOwnChannel(t *testing.T) {
	t.Parallel()
	conn := live(t, open(t, config(testbroker.URL(t))))
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
	proxy := testbroker.NewProxy(t, testbroker.URL(t))
	l := open(t, config(proxy.URL()))
	conn := live(t, l)
	proxy.Blackhole(true)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	within(t, 200*time.Millisecond, "Do", func() {
		assert.ErrorIs(t, conn.Do(ctx, func(*amqp.Channel) error { return nil }), context.DeadlineExceeded)
	})
}

func TestDoBeginsNothingAfterItsContext(t *testing.T) {
	t.Parallel()
	proxy := testbroker.NewProxy(t, testbroker.URL(t))
	l := open(t, config(proxy.URL()))
	conn := live(t, l)
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
	require.NoError(t, conn.Do(t.Context(), func(*amqp.Channel) error { return nil }))
	assert.Empty(t, begun)
}

func TestUnblockedDuringAnAlarm(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	l := open(t, config(node.URL()))
	conn := live(t, l)
	assert.Nil(t, conn.Unblocked())
	ch, err := conn.Channel()
	require.NoError(t, err)
	node.Ctl(t, "set_vm_memory_high_watermark", "0.000001")
	testbroker.WaitFor(t, "connection.blocked", patience, func() bool {
		// The broker blocks a connection when it publishes.
		_ = ch.Publish("", "nobody", false, false, amqp.Publishing{})
		return conn.Unblocked() != nil
	})
	unblocked := conn.Unblocked()
	node.Ctl(t, "set_vm_memory_high_watermark", "0.4")
	within(t, 10*time.Second, "connection.unblocked", func() { <-unblocked })
	assert.Nil(t, conn.Unblocked())
}
