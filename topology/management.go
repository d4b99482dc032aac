package topology

import "github.com/millpond-go/millpond/internal/audit"

// WithManagement names RabbitMQ's management API: management.At(url), of a package of its own.
// Subscribe asks it for the type of its queue and the policies that apply to the plan, within 3 s,
// and logs which of them may lose or misdirect messages. No retry asks, and an API that is away
// stops nothing.
//
// Default: only AMQP is asked.
func WithManagement(api audit.Management) Option {
	return func(o *clientOptions) error {
		o.management = api
		return refuse(api.Err != nil, "WithManagement: %w", api.Err)
	}
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
