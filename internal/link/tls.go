package link

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// secure begins TLS on conn where the URL asks for it. cfg may be nil, else it is
// ours to write to.
func secure(conn net.Conn, uri amqp.URI, cfg *tls.Config) (net.Conn, error) {
	if uri.Scheme != "amqps" {
		return conn, nil
	}
	if cfg == nil {
		var err error
		if cfg, err = tlsConfig(uri); err != nil {
			return nil, err
		}
	}
	if cfg.ServerName == "" {
		cfg.ServerName = uri.Host
	}
	client := tls.Client(conn, cfg)
	if err := client.Handshake(); err != nil {
		return nil, err
	}
	return client, nil
}

// tlsConfig is that of the URL's parameters, as amqp091-go reads them.
func tlsConfig(uri amqp.URI) (*tls.Config, error) {
	cfg := &tls.Config{ServerName: uri.ServerName, MinVersion: tls.VersionTLS12}
	if uri.CACertFile != "" {
		data, err := os.ReadFile(uri.CACertFile)
		if err != nil {
			return nil, fmt.Errorf("cacertfile of the URL: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("cacertfile of the URL: no certificate in %s", uri.CACertFile)
		}
	}
	if uri.CertFile != "" && uri.KeyFile != "" {
		certificate, err := tls.LoadX509KeyPair(uri.CertFile, uri.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("certfile and keyfile of the URL: %w", err)
		}
		cfg.Certificates = []tls.Certificate{certificate}
	}
	return cfg, nil
}

// withoutTLS is the URL for amqp091-go, which would begin TLS once more.
func withoutTLS(rawURL string) string {
	if scheme, rest, _ := strings.Cut(rawURL, "://"); strings.EqualFold(scheme, "amqps") {
		return "amqp://" + rest
	}
	return rawURL
}

// explained adds the way out to an error of a connect. cause is what reading ended
// with, nil if it has not; amqp091-go keeps the text at most.
func explained(err, cause error) error {
	var (
		name      x509.HostnameError
		untrusted *tls.CertificateVerificationError
		record    tls.RecordHeaderError
		op        *net.OpError
	)
	switch {
	case errors.Is(cause, errSpeaksTLS):
		return cause
	case errors.As(err, &name):
		return fmt.Errorf("%w: the broker's certificate is for another name; connect by that name, or set Connection.TLSConfig.ServerName to it", err)
	case errors.As(err, &untrusted):
		return fmt.Errorf("%w: the broker's certificate is not trusted; set Connection.TLSConfig.RootCAs to the CA that signed it", err)
	case errors.As(err, &record):
		return fmt.Errorf("%w: the broker does not speak TLS on this port; use its TLS port (5671 unless set), or amqp://", err)
	case errors.As(cause, &op) && op.Op == "remote error": // an alert
		return fmt.Errorf("%w: %w", cause, errNotAdmitted)
	case errors.As(err, &op) && op.Op == "remote error":
		return fmt.Errorf("%w: %w", err, errNotAdmitted)
	}
	return err
}

// errNotAdmitted: the broker has ended the connection when TLS had begun. What it
// says about that may be lost on the way.
var errNotAdmitted = errors.New("the broker ended the TLS connection; where it asks for a client certificate, " +
	"set Connection.TLSConfig.Certificates to one that is signed by a CA it trusts")

// isBroken reports whether err tells of the connection rather than of what the
// broker has answered.
func isBroken(err error) bool {
	var amqpErr *amqp.Error
	return !errors.As(err, &amqpErr) || amqpErr.Code == amqp.FrameError
}
