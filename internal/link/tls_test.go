package link_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// terminateTLS returns the address of a TLS listener in front of a proxy to the
// broker, and the certificates to trust.
func terminateTLS(t *testing.T) (address string, roots *x509.CertPool, proxy *testbroker.Proxy) {
	t.Helper()
	proxy = testbroker.NewProxy(t, testbroker.URL(t))
	target, err := url.Parse(proxy.URL())
	require.NoError(t, err)
	plain := target.Host
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS() // for its certificate only
	certificates, roots := server.TLS.Certificates, x509.NewCertPool()
	roots.AddCert(server.Certificate())
	server.Close()

	l, err := tls.Listen("tcp4", "127.0.0.1:0", &tls.Config{Certificates: certificates})
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

func TestTLSConfigOfTheUserIsNotWrittenTo(t *testing.T) {
	t.Parallel()
	address, roots, proxy := terminateTLS(t)
	trust := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	for name, set := range map[string]func(*link.Config){
		"of its own":       func(cfg *link.Config) { cfg.TLS = trust },
		"in amqp's config": func(cfg *link.Config) { cfg.AMQP = &amqp.Config{TLSClientConfig: trust} },
	} {
		cfg := config(address)
		set(&cfg)
		l := open(t, cfg)
		conn := live(t, l)
		assert.NoError(t, conn.Do(t.Context(), func(*amqp.Channel) error { return nil }), name)
		proxy.Cut()
		within(t, 0, "noticing a cut", func() { <-conn.Gone() })
		assert.NoError(t, live(t, l).Do(t.Context(), func(*amqp.Channel) error { return nil }), name)
		l.Close()
		assert.Empty(t, trust.ServerName, name)
		assert.Equal(t, uint16(tls.VersionTLS12), trust.MinVersion, name)
	}
}

// The files that a URL names are read as amqp091-go would.
func TestOpenWithFilesOfTheURL(t *testing.T) {
	t.Parallel()
	address, _, _ := terminateTLS(t)
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS()
	certificate := server.TLS.Certificates[0]
	server.Close()
	file := func(name, kind string, content []byte) string {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600))
		return path
	}
	raw, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	require.NoError(t, err)
	ca, key := file("ca.pem", "CERTIFICATE", certificate.Certificate[0]), file("key.pem", "PRIVATE KEY", raw)

	l := open(t, config(address+"?cacertfile="+ca+"&certfile="+ca+"&keyfile="+key))
	assert.NoError(t, live(t, l).Do(t.Context(), func(*amqp.Channel) error { return nil }))

	for query, want := range map[string]string{
		"?cacertfile=" + key:                                  "no certificate in",
		"?cacertfile=" + ca + ".missing":                      "cacertfile of the URL",
		"?certfile=" + key + "&keyfile=" + key:                "certfile and keyfile of the URL",
		"?cacertfile=" + ca + "&server_name_indication=other": "TLSConfig.ServerName",
	} {
		_, err := link.Open(t.Context(), config(address+query))
		assert.ErrorContains(t, err, want)
	}
}

func TestOpenWithoutTrust(t *testing.T) {
	t.Parallel()
	address, _, _ := terminateTLS(t)
	_, err := link.Open(t.Context(), config(address))
	var untrusted *tls.CertificateVerificationError
	assert.ErrorAs(t, err, &untrusted)
	assert.NotContains(t, err.Error(), "guest")
}

func TestOpenOfTLSAgainstASilentPeer(t *testing.T) {
	t.Parallel()
	peer := startSilent(t)
	cfg := config("amqps" + peer.url()[len("amqp"):])
	cfg.ConnectTimeout = 300 * time.Millisecond
	within(t, cfg.ConnectTimeout, "Open", func() {
		_, err := link.Open(t.Context(), cfg)
		assert.ErrorContains(t, err, "context deadline exceeded")
	})
}

func TestCloseOfABlackholedTLSConnection(t *testing.T) {
	t.Parallel()
	address, roots, proxy := terminateTLS(t)
	cfg := config(address)
	cfg.TLS = &tls.Config{RootCAs: roots}
	l := open(t, cfg)
	ch, err := live(t, l).Channel()
	require.NoError(t, err)
	proxy.Blackhole(true)
	require.NoError(t, ch.Publish("", "nobody", false, false, amqp.Publishing{}))
	within(t, 2*time.Second, "Close", l.Close)
}
