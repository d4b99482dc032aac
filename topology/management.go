package topology

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/management"
)

// managementTimeout bounds one question to the management API.
const managementTimeout = 10 * time.Second

// WithManagement names RabbitMQ's management API, for what AMQP cannot show:
// messages held for dead-lettering, bindings, policies, delivery limits, feature
// flags, alarms and replicas. Inspect, Verify and Peek ask it. Subscribe asks, for at
// most 3 s, what its queue is and which policies apply to the plan, and says in its
// log which of them may lose or misdirect messages. No retry asks, and an API that is
// away stops nothing.
//
// url is http or https with a user and its password, both percent-encoded, which never
// appear in an error. The user needs the tag monitoring and permissions in the vhost,
// of which ^$ is enough. https trusts what Connection.TLSConfig trusts.
//
// Default: only AMQP is asked.
func WithManagement(url string) Option {
	return func(o *clientOptions) error {
		if _, err := management.New(url, nil); err != nil {
			return fmt.Errorf("WithManagement: %w", err)
		}
		o.management = url
		return nil
	}
}

// manager asks the management API about the queues of one vhost. After the first
// failure it asks no more: the reason stays in err. It is made for one call, so that
// the policies that it has seen are as old as that call at most.
type manager struct {
	api       *management.API
	vhost     string
	ctx       context.Context
	err       error
	seen      *policies
	policyErr error   // why the policies cannot be seen
	unseen    []error // what else cannot be seen, of which nothing else depends
}

// manager returns nil where no management API is configured.
func (c *Client) manager(ctx context.Context) *manager {
	if c.opts.management == "" {
		return nil
	}
	var config *tls.Config
	if c.linkCfg.AMQP != nil {
		config = c.linkCfg.AMQP.TLSClientConfig
	}
	if c.linkCfg.TLS != nil {
		config = c.linkCfg.TLS
	}
	m := &manager{ctx: ctx}
	if m.api, m.err = management.New(c.opts.management, config); m.err == nil {
		m.vhost, m.err = c.linkCfg.Vhost()
	}
	return m
}

// ask reports whether f has found what it asked for.
func (m *manager) ask(f func(ctx context.Context) error) bool {
	if m == nil || m.err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(m.ctx, managementTimeout)
	defer cancel()
	err := f(ctx)
	if err != nil && !errors.Is(err, management.ErrNotFound) {
		m.err = fmt.Errorf("management API: %w", err)
	}
	return err == nil
}

func (m *manager) queue(name string) (q management.Queue, ok bool) {
	ok = m.ask(func(ctx context.Context) (err error) {
		q, err = m.api.Queue(ctx, m.vhost, name)
		return err
	})
	return q, ok
}

func (m *manager) bindings(exchange string) (list []management.Binding, ok bool) {
	ok = m.ask(func(ctx context.Context) (err error) {
		list, err = m.api.Bindings(ctx, m.vhost, exchange)
		return err
	})
	return list, ok
}

func (m *manager) featureFlags() (states map[string]string, ok bool) {
	ok = m.askFor("feature flags were not looked at, for which the user needs the tag administrator before RabbitMQ 4.0", func(ctx context.Context) (err error) {
		states, err = m.api.FeatureFlags(ctx)
		return err
	})
	return states, ok
}

func (m *manager) nodes() (list []management.Node, ok bool) {
	ok = m.askFor("alarms and replicas were not looked at", func(ctx context.Context) (err error) {
		list, err = m.api.Nodes(ctx)
		return err
	})
	return list, ok
}

// askFor is ask for what the user may be refused though all else is answered: an error
// goes to unseen, with the text before it.
func (m *manager) askFor(text string, f func(ctx context.Context) error) bool {
	if m == nil || m.err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(m.ctx, managementTimeout)
	defer cancel()
	err := f(ctx)
	if err != nil {
		m.unseen = append(m.unseen, fmt.Errorf("%s: management API: %w", text, err))
	}
	return err == nil
}

// operate returns a connection for an operator's question, with its end. The
// publishing connection is left alone: the broker stops reading from it during
// an alarm, and a message that is too large for a frame ends the connection it
// is looked at on (F16).
func (c *Client) operate(ctx context.Context) (*link.Conn, func(), error) {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return nil, nil, ErrClosed
	}
	cfg := c.linkCfg
	cfg.Name = c.opts.name + ": millpond operator"
	l, err := link.Open(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	conn, err := l.Conn(ctx)
	if err != nil {
		l.Close()
		return nil, nil, err
	}
	return conn, l.Close, nil
}
