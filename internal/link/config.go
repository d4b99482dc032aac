// Package link keeps one AMQP connection alive. It dials within a bound, reconnects with a pause
// that grows, and closes within a bound even if the broker has stopped answering.
//
// A Link (redial.go) holds the present connection, a Conn (conn.go). A write to a Conn never waits
// for the broker: a goroutine writes the part that does not fit into the system's buffers.
// Publishes that are made at the same time share a system call. The bytes pass a stream
// (stream.go), which replaces headers that amqp091-go cannot read. A Channel (channel.go) writes
// and reads the frames that each message needs past amqp091-go. dial.go makes a Conn: socket, TLS,
// handshake, check of the cluster.
package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
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
	// Credentials is called before each connect. Its answer replaces the credentials of the URL.
	// If it is nil, the URL's are used.
	Credentials func(ctx context.Context) (user, password string, err error)
	// AMQP is the user's own configuration. It may be nil, and is never written to.
	AMQP *amqp.Config
	// TLS is for amqps. It may be nil, and is never written to.
	TLS *tls.Config
	// Unreadable names the header that replaces headers which amqp091-go cannot read. It carries
	// their bytes; see stream.
	Unreadable string
	// Cluster keeps this connection on the cluster of others. nil admits any cluster.
	Cluster *Cluster
	// Name is shown by the broker's management page, unless AMQP names one.
	Name string
	// ConnectTimeout bounds a dial together with its handshake.
	ConnectTimeout time.Duration
	// WriteTimeout bounds a write that makes no progress. It ends the connection.
	WriteTimeout time.Duration
	// Reconnect says how long to pause between dials.
	Reconnect Backoff
	// Logger must not be nil.
	Logger watermill.LoggerAdapter
}

// TLSConfig returns a copy of the TLS configuration; nil if there is none.
func (c Config) TLSConfig() *tls.Config {
	if c.TLS == nil && c.AMQP != nil {
		return c.AMQP.TLSClientConfig.Clone()
	}
	return c.TLS.Clone()
}

// amqpConfig returns a new configuration for amqp091-go, which writes into the Properties and
// the TLS configuration that it is given. Its own recovery is switched off, because it would
// compete with the Link's.
func (c Config) amqpConfig() amqp.Config {
	cfg := amqp.Config{Locale: "en_US"}
	if c.AMQP != nil {
		cfg = *c.AMQP
	}
	cfg.TLSClientConfig = c.TLSConfig()
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

// Backoff is a pause that grows. It begins with Initial and is multiplied by Multiplier each
// time, up to Max. Each pause is spread by ± Randomization (0 to 1). No pause is under 10 ms, so
// that the zero value does not spin.
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

// ErrOtherCluster says that a connection was not kept, because other connections of the same
// Cluster lead to another RabbitMQ cluster.
var ErrOtherCluster = errors.New("another RabbitMQ cluster")

// Cluster keeps connections on one RabbitMQ cluster, by the cluster_name that the broker sends.
// Vhosts of the same name exist on many clusters, and a message that waits on another cluster
// never comes back. When no connection is left, the next one may lead to any cluster. A nil
// Cluster admits every connection. Its methods may be called from many goroutines.
type Cluster struct {
	mu          sync.Mutex
	name        string
	connections int
}

// enter admits a connection to the cluster of that name, or returns ErrOtherCluster. It admits a
// broker that sends no name.
func (c *Cluster) enter(name string) error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.connections > 0 && name != "" && c.name != "" && name != c.name {
		return fmt.Errorf("%w: the broker's cluster_name is %q, the other connections have %q",
			ErrOtherCluster, name, c.name)
	}
	if c.connections == 0 || c.name == "" {
		c.name = name
	}
	c.connections++
	return nil
}

// Name returns the cluster_name of the connections. It is empty if the broker has sent none.
func (c *Cluster) Name() string {
	if c == nil {
		return ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.name
}

// leave counts the end of a connection that was admitted.
func (c *Cluster) leave() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connections--
}

// CheckURL returns why an AMQP URL is wrong, without quoting any of it.
func CheckURL(rawURL string) error {
	if rawURL == "" {
		return errors.New("AMQP URL is empty: set Connection.AmqpURI, " +
			"for example amqp://user:password@host:5672/vhost")
	}
	if _, err := parse(rawURL); err != nil {
		return fmt.Errorf("AMQP URL is invalid: %w", err)
	}
	return nil
}

// Address returns host, port and vhost of an AMQP URL, without credentials.
func Address(rawURL string) string { return Config{URL: rawURL}.address() }

// address returns the address of the URL with the vhost that is opened.
func (c Config) address() string {
	uri, err := c.uri()
	if err != nil {
		return "(invalid url)"
	}
	return fmt.Sprintf("%s:%d vhost %q", uri.Host, uri.Port, uri.Vhost)
}

// Vhost returns the vhost that a connection opens.
func (c Config) Vhost() (string, error) {
	uri, err := c.uri()
	return uri.Vhost, err
}

// uri returns the URL with the vhost that is opened. amqp091-go opens the vhost of amqp.Config, and
// the URL's only if that one is empty.
func (c Config) uri() (amqp.URI, error) {
	uri, err := parse(c.URL)
	if c.AMQP != nil && c.AMQP.Vhost != "" {
		uri.Vhost = c.AMQP.Vhost
	}
	return uri, err
}

var (
	errScheme     = errors.New("it must begin with amqp:// or amqps://")
	errWhitespace = errors.New("it contains whitespace")
	errReserved   = errors.New("it cannot be parsed; " +
		"reserved characters in user and password must be percent-encoded")
	errNumber = errors.New("its port, heartbeat, connection_timeout or channel_max " +
		"is not a number in range")
)

// parse returns the same as amqp.ParseURI, with errors that quote nothing. It also refuses a URL
// that amqp091-go would misread: with a reserved character in the password, pieces of the
// password become host, port and vhost, and would be shown as such.
func parse(rawURL string) (amqp.URI, error) {
	if strings.ContainsAny(rawURL, " \t\r\n") {
		return amqp.URI{}, errWhitespace
	}
	scheme, rest, _ := strings.Cut(rawURL, "://")
	if scheme = strings.ToLower(scheme); scheme != "amqp" && scheme != "amqps" {
		return amqp.URI{}, errScheme
	}
	if end := strings.IndexAny(rest, "/?#"); end >= 0 && strings.Contains(rest[end:], "@") {
		return amqp.URI{}, errReserved
	}
	uri, err := amqp.ParseURI(rawURL)
	var unparsable *url.Error
	switch {
	case errors.As(err, &unparsable):
		return amqp.URI{}, errReserved
	case err != nil, uri.Port < 1, uri.Port > 65535:
		return amqp.URI{}, errNumber
	}
	return uri, nil
}
