package topology

import (
	"context"
	"crypto/tls"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/management"
)

// WithManagement names RabbitMQ's management API. Subscribe asks it for the type of its
// queue and the policies that apply to the plan, within 3 s, and logs which of them may lose or
// misdirect messages. No retry asks, and an API that is away stops nothing.
//
// url is http or https with a user and its password, both percent-encoded, which never appear in an
// error. The user needs the tag monitoring and permissions in the vhost, of which ^$ is enough.
// https trusts the authorities of Connection.TLSConfig.
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

// manager returns nil where no management API is configured.
func (c *Client) manager(ctx context.Context) *audit.Manager {
	var config *tls.Config
	if c.linkCfg.AMQP != nil {
		config = c.linkCfg.AMQP.TLSClientConfig
	}
	if c.linkCfg.TLS != nil {
		config = c.linkCfg.TLS
	}
	vhost, _ := c.linkCfg.Vhost() // parsed before
	return audit.NewManager(ctx, c.opts.management, vhost, c.linkCfg.Cluster.Name(), config)
}

// checkArguments refuses the arguments of a configuration under which messages vanish.
func (c *Client) checkArguments(args amqp.Table) error {
	return audit.RefuseArguments(args, c.opts.management != "")
}

// Audited returns the part of the plan that arguments and policies can spoil, for package operate.
func (p Plan) Audited() audit.Plan {
	a := audit.Plan{
		Queue: p.Queue, DeadExchange: p.Dead.Exchange, DeadKey: p.Dead.RoutingKey,
		RejectMin: p.RejectMin, RejectMax: p.RejectMax, Line: p.Line,
	}
	for _, q := range p.Queues {
		a.Queues = append(a.Queues, audit.Queue(q))
	}
	for _, e := range p.Exchanges {
		a.Exchanges = append(a.Exchanges,
			audit.Exchange{Name: e.Name, Kind: e.Kind, Arguments: e.Arguments})
	}
	return a
}
