//go:build unix

package testbroker_test

import (
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// tapped returns a proxy that does what decide says, and what has been seen.
func tapped(t *testing.T, target string,
	decide func(testbroker.Seen) testbroker.Fault) (p *testbroker.Proxy, seen func() []string) {
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
		"before a request": {frame.ChannelOpen, testbroker.Fault{Kind: testbroker.FIN}, false,
			"↑channel.open"},
		"before an answer": {frame.ChannelOpenOk, testbroker.Fault{Kind: testbroker.RST}, false,
			"↓channel.open-ok"},
		"after an answer": {frame.ChannelOpenOk, testbroker.Fault{Kind: testbroker.FIN, After: true},
			true, "↓channel.open-ok"},
		"after with RST": {frame.ChannelOpenOk, testbroker.Fault{Kind: testbroker.RST, After: true},
			true, "↓channel.open-ok"},
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
	send(t, old, "a")
	receive(t, old, "a")
	p.Retarget(t, second.url())
	send(t, old, "b")
	receive(t, old, "b")
	fresh := dialProxy(t, p)
	send(t, fresh, "c")
	receive(t, fresh, "c")
	assert.Equal(t, 1, first.accepted())
	assert.Equal(t, 1, second.accepted())
	assert.Equal(t, 2, p.Live())
}
