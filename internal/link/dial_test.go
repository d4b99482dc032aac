package link_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/testing/memnet"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// failsToOpen returns the error of Open, which must come within the limit.
func failsToOpen(
	ctx context.Context, t *testing.T, cfg link.Config, limit time.Duration,
) (err error) {
	t.Helper()
	within(t, limit, "Open", func() { _, err = link.Open(ctx, cfg) })
	require.Error(t, err)
	assert.NotContains(t, err.Error(), "hunter")
	return err
}

func TestOpenAgainstAClosedPort(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	address := l.Addr().String()
	err = failsToOpen(t.Context(), t, config("amqp://guest:hunter2@"+address+"/v"), time.Second)
	assert.ErrorContains(t, err, "connect to RabbitMQ at "+address+` vhost "v": `)
}

func TestOpenAgainstASilentPeerEndsAtTheConnectTimeout(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"amqp", "amqps"} {
		synctest.Test(t, func(t *testing.T) {
			cfg := silent(t, scheme)
			cfg.ConnectTimeout = 30 * time.Second
			begun := time.Now()
			err := failsToOpen(t.Context(), t, cfg, cfg.ConnectTimeout)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.ErrorContains(t, err, "connect to RabbitMQ at host-")
			assert.Equal(t, cfg.ConnectTimeout, time.Since(begun))
		})
	}
}

func TestOpenAgainstASilentPeerEndsWithItsContext(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			cfg := silent(t, "amqp")
			cfg.ConnectTimeout = time.Hour
			ctx, cancel := context.WithCancel(t.Context())
			begun := time.Now()
			time.AfterFunc(after, cancel)
			if after == 0 {
				cancel()
			}
			assert.ErrorIs(t, failsToOpen(ctx, t, cfg, after), context.Canceled)
			assert.Equal(t, after, time.Since(begun))
		})
	}
}

// Many configurations hold amqp.DefaultDial(30 s), which knows no context.
func TestDialOfTheUserThatHangsIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release, late := make(chan struct{}), make(chan net.Conn, 1)
		cfg := silent(t, "amqp")
		cfg.AMQP.Dial = func(network, address string) (net.Conn, error) {
			<-release
			conn, err := memnet.Dial(network, address)
			late <- conn
			return conn, err
		}
		err := failsToOpen(t.Context(), t, cfg, cfg.ConnectTimeout)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		close(release)
		conn := <-late
		require.NotNil(t, conn)
		synctest.Wait()
		_, err = conn.Read(make([]byte, 1))
		assert.ErrorIs(t, err, net.ErrClosed, "the connection that came late")
	})
}

func TestOpenWithWrongCredentialsNamesTheAddressOnly(t *testing.T) {
	t.Parallel()
	address, err := url.Parse(testbroker.URL(t))
	require.NoError(t, err)
	address.User = url.UserPassword("guest", "hunter/2")
	err = failsToOpen(t.Context(), t, config(address.String()), patience)
	assert.ErrorContains(t, err, "connect to RabbitMQ at "+address.Host)
	var refused *amqp.Error
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, amqp.AccessRefused, refused.Code)
	assert.NotContains(t, err.Error(), address.User.String())
}

func TestOpenOfAMissingVhostSaysSo(t *testing.T) {
	t.Parallel()
	address, err := url.Parse(testbroker.URL(t))
	require.NoError(t, err)
	address.Path = "/no-such-vhost"
	err = failsToOpen(t.Context(), t, config(address.String()), patience)
	assert.ErrorContains(t, err, `vhost "no-such-vhost"`)
	assert.NotContains(t, err.Error(), "guest")
}

// A peer breaks off, or answers nonsense, in the handshake. No connection and no goroutine stay.
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
				if answer != "" { // stay until the client has gone
					_, _ = conn.Read(make([]byte, 1))
				}
			}()
			cfg := config("amqp://guest:hunter2@" + l.Addr().String() + "/")
			cfg.ConnectTimeout = 500 * time.Millisecond
			err = failsToOpen(t.Context(), t, cfg, cfg.ConnectTimeout)
			assert.ErrorContains(t, err, "connect to RabbitMQ at 127.0.0.1:")
			within(t, 0, "the end of the connection", func() { <-answered })
		})
	}
}

// certificate returns a self-signed certificate, and a pool that trusts it.
func certificate() (tls.Certificate, *x509.CertPool) {
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS()
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	return server.TLS.Certificates[0], roots
}

// terminateTLS returns the URL of a TLS listener in front of a proxy to the broker, and the
// certificates to trust.
func terminateTLS(t *testing.T) (address string, roots *x509.CertPool, proxy *testbroker.Proxy) {
	t.Helper()
	proxy = testbroker.NewProxy(t, testbroker.URL(t))
	target, err := url.Parse(proxy.URL())
	require.NoError(t, err)
	plain := target.Host
	own, roots := certificate()
	l, err := tls.Listen("tcp4", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{own}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer client.Close()
				broker, err := net.Dial("tcp4", plain)
				if err != nil {
					return
				}
				go func() {
					_, _ = io.Copy(broker, client)
					_ = broker.Close()
				}()
				_, _ = io.Copy(client, broker)
			}()
		}
	}()
	target.Scheme, target.Host = "amqps", l.Addr().String()
	return target.String(), roots, proxy
}

// The files that a URL names are read as amqp091-go would read them.
func TestOpenWithFilesOfTheURL(t *testing.T) {
	t.Parallel()
	address, _, _ := terminateTLS(t)
	own, _ := certificate()
	file := func(name, kind string, content []byte) string {
		path := filepath.Join(t.TempDir(), name)
		block := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content})
		require.NoError(t, os.WriteFile(path, block, 0o600))
		return path
	}
	raw, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	require.NoError(t, err)
	ca, key := file("ca.pem", "CERTIFICATE", own.Certificate[0]), file("key.pem", "PRIVATE KEY", raw)

	_, conn := open(t, config(address+"?cacertfile="+ca+"&certfile="+ca+"&keyfile="+key))
	works(t, conn)

	for query, want := range map[string]string{
		"?cacertfile=" + key:                                  "no certificate in",
		"?cacertfile=" + ca + ".missing":                      "cacertfile of the URL",
		"?certfile=" + key + "&keyfile=" + key:                "certfile and keyfile of the URL",
		"?cacertfile=" + ca + "&server_name_indication=other": "TLSConfig.ServerName",
	} {
		assert.ErrorContains(t, failsToOpen(t.Context(), t, config(address+query), patience), want)
	}
}
