package link_test

import (
	"context"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

func TestOpenAgainstAClosedPort(t *testing.T) {
	t.Parallel()
	address := freePort(t)
	within(t, time.Second, "Open", func() {
		_, err := link.Open(t.Context(), config("amqp://guest:hunter2@"+address+"/v"))
		assert.ErrorContains(t, err, "connect to RabbitMQ at "+address+` vhost "v": `)
		assert.NotContains(t, err.Error(), "hunter2")
	})
}

func TestOpenAgainstASilentPeerEndsAtTheConnectTimeout(t *testing.T) {
	t.Parallel()
	peer := startSilent(t)
	cfg := config(peer.url())
	cfg.ConnectTimeout = 400 * time.Millisecond
	begun := time.Now()
	within(t, cfg.ConnectTimeout, "Open", func() {
		_, err := link.Open(t.Context(), cfg)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorContains(t, err, "connect to RabbitMQ at 127.0.0.1:")
		assert.NotContains(t, err.Error(), "hunter2")
	})
	assert.GreaterOrEqual(t, time.Since(begun), cfg.ConnectTimeout)
	assert.Equal(t, 1, peer.accepted())
}

func TestOpenAgainstASilentPeerEndsWithItsContext(t *testing.T) {
	t.Parallel()
	peer := startSilent(t)
	cfg := config(peer.url())
	cfg.ConnectTimeout = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		testbroker.WaitFor(t, "a connection", patience, func() bool { return peer.accepted() == 1 })
		cancel()
	}()
	within(t, 0, "Open", func() {
		_, err := link.Open(ctx, cfg)
		assert.ErrorIs(t, err, context.Canceled)
	})
}

func TestOpenUnderACancelledContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := link.Open(ctx, config(startSilent(t).url()))
	assert.ErrorIs(t, err, context.Canceled)
}

// amqp.DefaultDial(30 s) is what many configurations hold; it knows no context.
func TestDialOfTheUserThatHangsIsBounded(t *testing.T) {
	t.Parallel()
	release, late := make(chan struct{}), make(chan net.Conn, 1)
	peer := startSilent(t)
	cfg := config(peer.url())
	cfg.ConnectTimeout = 300 * time.Millisecond
	cfg.AMQP = &amqp.Config{Dial: func(network, address string) (net.Conn, error) {
		<-release
		conn, err := net.Dial(network, address)
		late <- conn
		return conn, err
	}}
	within(t, cfg.ConnectTimeout, "Open", func() {
		_, err := link.Open(t.Context(), cfg)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
	})
	close(release)
	conn := <-late
	require.NotNil(t, conn)
	within(t, time.Second, "the end of the connection that came late", func() {
		_, err := conn.Read(make([]byte, 1))
		assert.ErrorIs(t, err, net.ErrClosed)
	})
}

func TestOpenWithWrongCredentialsNamesTheAddressOnly(t *testing.T) {
	t.Parallel()
	address, err := url.Parse(testbroker.URL(t))
	require.NoError(t, err)
	address.User = url.UserPassword("guest", "hunter/2")
	_, err = link.Open(t.Context(), config(address.String()))
	require.Error(t, err)
	assert.ErrorContains(t, err, "connect to RabbitMQ at "+address.Hostname()+":"+address.Port())
	var refused *amqp.Error
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, amqp.AccessRefused, refused.Code)
	for _, secret := range []string{"hunter", address.User.String()} {
		assert.NotContains(t, err.Error(), secret)
	}
}

func TestOpenOfAMissingVhostSaysSo(t *testing.T) {
	t.Parallel()
	address, err := url.Parse(testbroker.URL(t))
	require.NoError(t, err)
	address.Path = "/no-such-vhost"
	_, err = link.Open(t.Context(), config(address.String()))
	assert.ErrorContains(t, err, `vhost "no-such-vhost"`)
	assert.NotContains(t, err.Error(), "guest")
}

// A peer that breaks off, or answers nonsense, in the handshake leaves nothing.
func TestOpenAgainstAPeerThatIsNoBroker(t *testing.T) {
	t.Parallel()
	const start = "\x01\x00\x00\x00\x00\x00"
	for name, answer := range map[string]string{
		"nothing":          "",
		"other version":    "AMQP\x00\x00\x09\x01",
		"HTTP":             "HTTP/1.1 400 Bad Request\r\n\r\n",
		"wrong method":     start + "\x04\x00\x0a\x00\x29\xce", // connection.open-ok
		"two of them":      strings.Repeat(start+"\x04\x00\x0a\x00\x29\xce", 2),
		"frame for a peer": "\x01\x00\x05\x00\x00\x00\x04\x00\x3c\x00\x50\xce",
		"huge frame":       "\x01\x00\x00\x7f\xff\xff\xff\x00\x0a\x00\x0a",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp4", "127.0.0.1:0")
			require.NoError(t, err)
			defer l.Close()
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				conn, err := l.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				_, _ = conn.Read(make([]byte, 8))
				_, _ = conn.Write([]byte(answer))
				if answer != "" { // stay, until the client has gone
					_, _ = conn.Read(make([]byte, 1))
				}
			}()
			cfg := config("amqp://guest:hunter2@" + l.Addr().String() + "/")
			cfg.ConnectTimeout = 500 * time.Millisecond
			within(t, cfg.ConnectTimeout, "Open", func() {
				_, err := link.Open(t.Context(), cfg)
				assert.ErrorContains(t, err, "connect to RabbitMQ at 127.0.0.1:")
			})
			within(t, 0, "the end of the connection", func() { <-answered })
		})
	}
}
