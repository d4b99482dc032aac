// Package link keeps one AMQP connection alive: it dials within a bound,
// reconnects with a pause that grows, and closes within a bound even where the
// broker has stopped answering.
package link

import (
	"context"
	"crypto/tls"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Config says how to connect.
type Config struct {
	// URL of the broker. Its password never appears in an error or a log.
	URL string
	// More are URLs of further nodes, tried in turn after URL.
	More []string
	// Credentials are asked for before each connect and go before those of the
	// URL; nil: those of the URL.
	Credentials func(ctx context.Context) (user, password string, err error)
	// AMQP is the user's own configuration, may be nil; it is never written to.
	AMQP *amqp.Config
	// TLS for amqps, may be nil; it is never written to.
	TLS *tls.Config
	// Unreadable names the header that stands for headers which amqp091-go cannot
	// read, with their bytes; see stream.
	Unreadable string
	// Cluster keeps this connection on the cluster of others; nil: any cluster.
	Cluster *Cluster
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
// Max, each spread by ± Randomization (0 to 1). It is never under 10 ms, so that
// the zero value does not spin.
type Backoff struct {
	Initial, Max              time.Duration
	Multiplier, Randomization float64
}

const (
	leastPause = 10 * time.Millisecond
	mostPause  = time.Duration(1 << 62) // twice as much still fits
)

// pause returns the pause after the given failed dial, counted from 0.
func (b Backoff) pause(failed int) time.Duration {
	d := float64(min(max(b.Initial, leastPause), mostPause))
	limit := max(d, float64(min(b.Max, mostPause)))
	if b.Multiplier > 1 { // false for NaN
		for range failed {
			if d *= b.Multiplier; d >= limit {
				break
			}
		}
	}
	d = min(d, limit)
	if b.Randomization > 0 {
		d *= 1 + min(b.Randomization, 1)*(2*rand.Float64()-1)
	}
	return max(time.Duration(d), leastPause)
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

// Vhost returns the vhost that a connection opens.
func (c Config) Vhost() (string, error) {
	uri, err := c.uri()
	return uri.Vhost, err
}

// address is Address with the vhost that is opened.
func (c Config) address() string {
	uri, err := c.uri()
	if err != nil {
		return Address(c.URL)
	}
	return address(uri)
}

// uri returns the URL with the vhost that is opened: amqp091-go takes the one of
// its own configuration, and the URL's only where that one is empty.
func (c Config) uri() (amqp.URI, error) {
	uri, err := parse(c.URL)
	if c.AMQP != nil && c.AMQP.Vhost != "" {
		uri.Vhost = c.AMQP.Vhost
	}
	return uri, err
}
