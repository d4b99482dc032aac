package topology_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// authority is a CA of the test's own.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
	pool *x509.CertPool
}

func newAuthority(t testing.TB, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := certificate(name)
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	a := &authority{t: t, cert: cert, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pool: x509.NewCertPool()}
	a.pool.AddCert(cert)
	return a
}

func certificate(name string) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62)) // never fails
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

// sign returns certificate and key, in PEM, of somebody with these names.
func (a *authority) sign(name string, hosts ...string) (cert, key []byte) {
	a.t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	template := certificate(name)
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &own.PublicKey, a.key)
	require.NoError(a.t, err)
	raw, err := x509.MarshalPKCS8PrivateKey(own)
	require.NoError(a.t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

// client returns a certificate to connect with.
func (a *authority) client(name string) tls.Certificate {
	a.t.Helper()
	pair, err := tls.X509KeyPair(a.sign(name))
	require.NoError(a.t, err)
	return pair
}

// Client and Subscriber over TLS with a CA of one's own and a client certificate,
// which the broker insists on; and what is said where one of them is wrong.
func TestTLSWithClientCertificates(t *testing.T) {
	t.Parallel()
	testbroker.RequireNode(t)
	ours, other := newAuthority(t, "our CA"), newAuthority(t, "another CA")
	cert, key := ours.sign("broker", "localhost")
	node := testbroker.Private(t, testbroker.WithTLS(ours.pem, cert, key))
	url := node.TLSURL()
	good := &tls.Config{RootCAs: ours.pool, Certificates: []tls.Certificate{ours.client("shop")}}

	t.Run("serves", func(t *testing.T) {
		var calls rig.Timeline
		r := rig.Start(t, rig.Config{
			URL: url, AdminURL: node.URL(), Queue: "orders",
			Configure: func(cfg *wamqp.Config) { cfg.Connection.TLSConfig = good },
			Policy:    backoff.List{100 * time.Millisecond},
			Handler: func(*message.Message) ([]*message.Message, error) {
				if calls.Add() == 1 {
					return nil, rig.ErrFailed
				}
				return nil, nil
			},
		})
		rig.Publish(t, node.URL(), "", r.Queue, amqp.Publishing{Body: []byte("over TLS")})
		rig.WaitFor(t, "it is retried", func() bool { return calls.Count() == 2 })
		require.Contains(t, node.Ctl(t, "list_connections", "ssl", "peer_cert_subject"), "shop")

		node.Ctl(t, "close_all_connections", "to see it come back")
		rig.Publish(t, node.URL(), "", r.Queue, amqp.Publishing{Body: []byte("over TLS again")})
		rig.WaitFor(t, "it is handled after a reconnect", func() bool { return calls.Count() == 3 })
	})

	cases := map[string]struct {
		url  string
		tls  *tls.Config
		want []string
	}{
		"CA not trusted":         {url, &tls.Config{Certificates: good.Certificates}, []string{"unknown authority", "TLSConfig.RootCAs"}},
		"wrong CA":               {url, &tls.Config{RootCAs: other.pool, Certificates: good.Certificates}, []string{"TLSConfig.RootCAs"}},
		"no client certificate":  {url, &tls.Config{RootCAs: ours.pool}, []string{"TLSConfig.Certificates"}},
		"another CA's client":    {url, &tls.Config{RootCAs: ours.pool, Certificates: []tls.Certificate{other.client("shop")}}, []string{"TLSConfig.Certificates"}},
		"another name":           {strings.Replace(url, "localhost", "127.0.0.1", 1), good, []string{"127.0.0.1", "TLSConfig.ServerName"}},
		"TLS on the plain port":  {strings.Replace(node.URL(), "amqp:", "amqps:", 1), good, []string{"does not speak TLS", "amqp://"}},
		"no TLS on the TLS port": {strings.Replace(url, "amqps:", "amqp:", 1), nil, []string{"speaks TLS", "amqps://"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			conn := wamqp.ConnectionConfig{AmqpURI: strings.Replace(c.url, "guest:guest", "guest:s3cr3t", 1), TLSConfig: c.tls}
			_, err := topology.Open(t.Context(), conn, topology.PerQueue{})
			for _, text := range c.want {
				require.ErrorContains(t, err, text)
			}
			require.NotContains(t, err.Error(), "s3cr3t")
			t.Log(err)
		})
	}
}
