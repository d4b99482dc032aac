package link

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// dial connects to the URL of cfg within cfg.ConnectTimeout, and no longer than ctx.
func dial(ctx context.Context, cfg Config) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.ConnectTimeout)
	defer cancel()

	uri, err := parse(cfg.URL)
	if err != nil {
		return nil, err
	}
	failed := func(err error) (*Conn, error) {
		return nil, fmt.Errorf("connect to RabbitMQ at %s: %w", cfg.address(), err)
	}
	amqpCfg := cfg.amqpConfig()
	if cfg.Credentials != nil {
		user, password, err := cfg.Credentials(ctx)
		if err != nil {
			return failed(fmt.Errorf("ask for credentials: %w", err))
		}
		amqpCfg.SASL = []amqp.Authentication{&amqp.PlainAuth{Username: user, Password: password}}
	}
	open := amqpCfg.Dial
	if open == nil {
		open = func(network, addr string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, addr)
		}
	}
	c := &Conn{gone: make(chan struct{})}
	stop := func() bool { return true }
	// TLS begins here and not in amqp091-go, so that stream sees the frames in plain text.
	addr := net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port))
	amqpCfg.Dial = func(network, _ string) (net.Conn, error) {
		conn, err := bounded(ctx, func() (net.Conn, error) { return open(network, addr) })
		if err != nil {
			return nil, err
		}
		c.socket = newSocket(conn, cfg.WriteTimeout)
		// A deadline of the socket itself may end before ctx is done.
		stop = context.AfterFunc(ctx, func() { _ = c.socket.SetDeadline(time.Unix(1, 0)) })
		secured, err := secure(c.socket, uri, amqpCfg.TLSClientConfig)
		if err != nil {
			return nil, err
		}
		c.stream = newStream(secured, cfg.Unreadable)
		return c.stream, nil
	}

	connection, err := amqp.DialConfig(withoutTLS(cfg.URL), amqpCfg)
	if !stop() && err == nil {
		err = errors.New("handshake took too long")
	}
	if err != nil {
		if c.socket != nil {
			_ = c.socket.Close()
		}
		if connection != nil { // begun: end its goroutines
			_ = connection.CloseDeadline(time.Now())
		}
		return failed(c.dialError(ctx, uri, err))
	}
	name, _ := connection.Properties["cluster_name"].(string)
	if err := cfg.Cluster.enter(name); err != nil {
		_ = connection.CloseDeadline(time.Now().Add(closeLimit))
		_ = c.socket.Close()
		return failed(err)
	}
	c.Connection, c.cluster = connection, cfg.Cluster
	go c.watch(connection.NotifyClose(make(chan *amqp.Error, 1)),
		connection.NotifyBlocked(make(chan amqp.Blocking, 8)))
	return c, nil
}

// bounded returns the result of open, or an error at the end of ctx, because the Dial of a
// user's configuration knows nothing of ctx.
func bounded(ctx context.Context, open func() (net.Conn, error)) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	opened := make(chan result, 1)
	go func() {
		conn, err := open()
		opened <- result{conn, err}
	}()
	select {
	case r := <-opened:
		return r.conn, r.err
	case <-ctx.Done():
		go func() {
			if r := <-opened; r.err == nil {
				_ = r.conn.Close()
			}
		}()
		return nil, context.Cause(ctx)
	}
}

// secure begins TLS on conn if the URL asks for it. cfg may be nil. secure writes to cfg.
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

// tlsConfig reads the URL's parameters as amqp091-go does.
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

// withoutTLS returns the URL for amqp091-go, which would begin TLS once more.
func withoutTLS(rawURL string) string {
	if scheme, rest, _ := strings.Cut(rawURL, "://"); strings.EqualFold(scheme, "amqps") {
		return "amqp://" + rest
	}
	return rawURL
}

// dialError adds the reason and the way out to an error of a dial.
func (c *Conn) dialError(ctx context.Context, uri amqp.URI, err error) error {
	var cause error
	if c.stream != nil {
		cause = c.stream.cause()
	}
	explained := explained(err, cause)
	switch ctxErr := ctx.Err(); {
	case ctxErr != nil:
		return fmt.Errorf("%w (%w)", err, ctxErr)
	case explained == err && c.stream != nil && uri.Scheme == "amqps" && isBroken(err):
		return fmt.Errorf("%w: %w", err, errNotAdmitted)
	}
	return explained
}

// explained adds the way out to an error of TLS. cause is the error with which reading ended, or
// nil. amqp091-go keeps no more than its text.
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
		return fmt.Errorf("%w: the broker's certificate is for another name; "+
			"connect by that name, or set Connection.TLSConfig.ServerName to it", err)
	case errors.As(err, &untrusted):
		return fmt.Errorf("%w: the broker's certificate is not trusted; "+
			"set Connection.TLSConfig.RootCAs to the CA that signed it", err)
	case errors.As(err, &record):
		return fmt.Errorf("%w: the broker does not speak TLS on this port; "+
			"use its TLS port (5671 unless set), or amqp://", err)
	case errors.As(cause, &op) && op.Op == "remote error": // an alert
		return fmt.Errorf("%w: %w", cause, errNotAdmitted)
	case errors.As(err, &op) && op.Op == "remote error":
		return fmt.Errorf("%w: %w", err, errNotAdmitted)
	}
	return err
}

// errNotAdmitted says that the broker has ended the connection after TLS had begun. Its reason
// may be lost on the way.
var errNotAdmitted = errors.New("the broker ended the TLS connection; " +
	"if it asks for a client certificate, set Connection.TLSConfig.Certificates " +
	"to a certificate that is signed by a CA it trusts")

// isBroken reports whether err tells of the connection rather than of an answer of the broker.
func isBroken(err error) bool {
	var amqpErr *amqp.Error
	return !errors.As(err, &amqpErr) || amqpErr.Code == amqp.FrameError
}
