package policies

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
)

// subject is one queue or exchange of a plan, as policies find it.
type subject struct {
	kind, name string     // kind is "queue" or "exchange"
	role       audit.Role // of a queue
	delay      time.Duration
	queueType  string         // "" where it is not known
	arguments  map[string]any // from the broker, else from the plan
	missing    bool           // the broker has not said that it exists
	version    audit.Version
	applied    Applied
	policy     map[string]any // all that applies together
	rejects    bool           // the queue holds rejected messages, as the plan wants it
}

// subjects returns the queues and exchanges of the plan that policies may change, also before
// they exist.
func subjects(p audit.Plan, known map[string]audit.Facts, version audit.Version) []*subject {
	var list []*subject
	for _, q := range p.Members() {
		kind, _ := q.Arguments["x-queue-type"].(string)
		s := &subject{
			kind: "queue", name: q.Name, role: q.Role, delay: q.Delay,
			queueType: kind, arguments: q.Arguments, missing: true, version: version,
			rejects: q.Role == audit.RoleMain && p.RejectMin > 0,
		}
		if k := known[q.Name]; k.Kind != "" {
			s.queueType, s.arguments, s.missing = k.Kind, k.Arguments, false
		}
		list = append(list, s)
	}
	taken := map[string]bool{"": true}
	add := func(name string, role audit.Role, arguments amqp.Table) {
		if !taken[name] {
			taken[name] = true
			list = append(list, &subject{
				kind: "exchange", name: name, role: role, arguments: arguments, version: version,
			})
		}
	}
	for _, e := range p.Exchanges {
		add(e.Name, "", e.Arguments)
	}
	for _, e := range p.Exchanges { // an alternate exchange may have an alternate exchange too (F39)
		alternate, _ := e.Arguments["alternate-exchange"].(string)
		add(alternate, "", nil)
	}
	add(p.DeadExchange, audit.RoleDead, nil) // the user's
	return list
}
