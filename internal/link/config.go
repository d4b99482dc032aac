// Package link keeps one AMQP connection alive: it dials within a bound,
// reconnects with a pause that grows, and closes within a bound even where the
// broker has stopped answering.
package link

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Config says how to connect.
type Config struct {
	// URL of the broker. Its password never appears in an error or a log.
	URL string
	// AMQP is the user's own configuration, may be nil; it is never written to.
	AMQP *amqp.Config
	// TLS for amqps, may be nil; it is never written to.
	TLS *tls.Config
	// Name is shown by the broker's management page, unless AMQP names one.
	Name string
	// ConnectTimeout bounds a dial together with its handshake.
	ConnectTimeout time.Duration
	// WriteTimeout bounds a write that makes no progress; it ends the connection.
	WriteTimeout time.Duration
	// Reconnect says how long to pause between dials.
	Reconnect Backoff
	// Logger must not be nil.
	Logger watermill.LoggerAdapter
}

// Backoff is a pause that grows: Initial, times Multiplier each time, at most
// Max, each spread by ± Randomization (0 to 1).
type Backoff struct {
	Initial, Max              time.Duration
	Multiplier, Randomization float64
}

// pause returns the pause after the given failed dial, counted from 0.
func (b Backoff) pause(failed int) time.Duration {
	d, limit := float64(max(b.Initial, 10*time.Millisecond)), float64(max(b.Max, b.Initial))
	for range failed {
		if d *= max(b.Multiplier, 1); d >= limit || b.Multiplier <= 1 {
			break
		}
	}
	spread := 1 + min(max(b.Randomization, 0), 1)*(2*rand.Float64()-1)
	return time.Duration(min(d, limit) * spread)
}

// CheckURL reports what is wrong with an AMQP URL without quoting its password.
func CheckURL(rawURL string) error {
	if rawURL == "" {
		return errors.New("AMQP URL is empty: set Connection.AmqpURI, for example amqp://user:password@host:5672/vhost")
	}
	if _, err := amqp.ParseURI(rawURL); err != nil {
		// What url.Parse says may quote a piece of the password.
		var parse *url.Error
		if errors.As(err, &parse) {
			err = errors.New("it cannot be parsed; reserved characters in user and password must be percent-encoded")
		}
		return fmt.Errorf("AMQP URL is invalid: %w", err)
	}
	return nil
}

// Address returns host, port and vhost of an AMQP URL, without credentials.
func Address(rawURL string) string {
	uri, err := amqp.ParseURI(rawURL)
	if err != nil {
		return "(invalid url)"
	}
	return fmt.Sprintf("%s:%d vhost %q", uri.Host, uri.Port, uri.Vhost)
}

// amqpConfig returns a configuration of our own: amqp091-go writes into the
// Properties and the TLS configuration it is given, and its own recovery would
// compete with ours.
func (c Config) amqpConfig() amqp.Config {
	cfg := amqp.Config{Locale: "en_US"}
	if c.AMQP != nil {
		cfg = *c.AMQP
	}
	if c.TLS != nil {
		cfg.TLSClientConfig = c.TLS
	}
	if cfg.TLSClientConfig != nil {
		cfg.TLSClientConfig = cfg.TLSClientConfig.Clone()
	}
	cfg.Recovery = nil
	cfg.Properties = maps.Clone(cfg.Properties)
	if len(cfg.Properties) == 0 {
		cfg.Properties = amqp.NewConnectionProperties()
	}
	if _, named := cfg.Properties["connection_name"]; !named && c.Name != "" {
		cfg.Properties.SetClientConnectionName(c.Name)
	}
	return cfg
}
