package testbroker

import (
	"fmt"
	"time"
)

// NodeOption changes how a node is configured.
type NodeOption func(*settings)

type settings struct {
	lines    []string
	advanced string
	tls      *tlsFiles
	pick     func() (ports, error)
}

// WithConfig appends lines to the node's rabbitmq.conf. Without it the node has RabbitMQ's
// defaults, but for what keeps it on loopback.
func WithConfig(lines ...string) NodeOption {
	return func(s *settings) { s.lines = append(s.lines, lines...) }
}

// WithAdvancedConfig gives the node an advanced.config: one Erlang term, ending in a dot, as in
// `[{rabbit, [{channel_tick_interval, 1000}]}].` Without it there is none.
func WithAdvancedConfig(term string) NodeOption {
	return func(s *settings) { s.advanced = term }
}

type tlsFiles struct{ ca, certificate, key []byte }

// WithTLS gives the node a TLS listener on loopback beside the plain one, see [Node.TLSURL]. The
// files are PEM. It admits only clients with a certificate that ca has signed. Without it the node
// has none.
func WithTLS(ca, certificate, key []byte) NodeOption {
	return func(s *settings) { s.tls = &tlsFiles{ca, certificate, key} }
}

// WithConsumerTimeout makes the node take back what a consumer has not acked within timeout, and
// look for it once within every; RabbitMQ 4.3 does not wait for the look. Both are whole
// milliseconds, above 0. It replaces an advanced.config. Default: 30 minutes, looked for once a
// minute.
func WithConsumerTimeout(timeout, every time.Duration) NodeOption {
	return WithAdvancedConfig(fmt.Sprintf("[{rabbit, [{consumer_timeout, %d}, {channel_tick_interval, %d}]}].",
		timeout.Milliseconds(), every.Milliseconds()))
}
