package topology

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Permissions are the patterns of rabbitmqctl set_permissions: for each right the names that it
// is given for.
type Permissions struct {
	Configure, Write, Read string
}

// Permissions returns the permissions of a user who consumes the plan's queue and retries its
// messages: with declare to declare the plan too, without declare to use a plan that was
// provisioned. For a queue on the default exchange that includes declaring the queue itself.
// Otherwise the permissions to declare the queue and its exchange depend on its TopologyBuilder and
// are not included.
func (p Plan) Permissions(declare bool) Permissions {
	read := []string{p.Queue}
	var configure, write []string
	writeTo := func(exchange string) {
		if exchange == "" {
			exchange = "amq.default"
		}
		write = append(write, exchange)
	}
	for _, r := range append(slices.Clone(p.WaitSteps), p.Dead) {
		writeTo(r.Exchange)
	}
	if declare {
		configure = append(configure, p.Queue)
		for _, q := range p.Queues {
			configure = append(configure, q.Name)
			// A user who declares a queue that dead-letters must be allowed to read it and to
			// write to the exchange that it leads to.
			if exchange, ok := q.Arguments["x-dead-letter-exchange"].(string); ok {
				read = append(read, q.Name)
				writeTo(exchange)
			}
		}
		for _, e := range p.Exchanges {
			configure = append(configure, e.Name)
			if alternate, ok := e.Arguments["alternate-exchange"].(string); ok {
				read = append(read, e.Name)
				writeTo(alternate)
			}
		}
		for _, b := range p.Bindings {
			_, to := b.to()
			write = append(write, to)
			read = append(read, b.Exchange)
		}
	}
	return Permissions{Configure: pattern(configure), Write: pattern(write), Read: pattern(read)}
}

// Join returns patterns that give the permissions of both. A user of several plans needs them.
func (p Permissions) Join(other Permissions) Permissions {
	join := func(a, b string) string {
		switch {
		case a == none || a == b:
			return b
		case b == none:
			return a
		}
		return a + "|" + b
	}
	return Permissions{
		Configure: join(p.Configure, other.Configure),
		Write:     join(p.Write, other.Write),
		Read:      join(p.Read, other.Read),
	}
}

// none is the pattern that matches no name.
const none = "^$"

// pattern matches the names and nothing else.
func pattern(names []string) string {
	if len(names) == 0 {
		return none
	}
	slices.Sort(names)
	quoted := make([]string, 0, len(names))
	for _, name := range slices.Compact(names) {
		quoted = append(quoted, regexp.QuoteMeta(name))
	}
	return "^(" + strings.Join(quoted, "|") + ")$"
}

// object is an object of a definitions file.
type object map[string]any

// Definitions returns the plan as a RabbitMQ definitions file in JSON, for teams that provision
// a broker beforehand: import it with rabbitmqctl import_definitions, and open the client with
// WithPreProvisioned.
//
// yours are queues of the user that the file also declares. A plan with a binding to its queue
// (Shared, Levels, Via) needs that queue among them, because the broker refuses a binding to a
// queue that does not exist. A name that is not UTF-8 is an error, because JSON cannot hold it.
func (p Plan) Definitions(vhost string, yours ...Queue) ([]byte, error) {
	queues, exchanges, bindings := []object{}, []object{}, []object{}
	for _, name := range append([]string{vhost, p.Queue}, p.names(yours)...) {
		if !utf8.ValidString(name) {
			return nil, fmt.Errorf("definitions for queue %q: the name %q is not UTF-8, which JSON "+
				"cannot hold: declare it over AMQP", p.Queue, name)
		}
	}
	known := map[string]bool{}
	for _, q := range slices.Concat(yours, p.Queues) {
		known[q.Name] = true
		queues = append(queues, object{
			"name": q.Name, "vhost": vhost, "durable": true, "auto_delete": false,
			"arguments": orEmpty(q.Arguments),
		})
	}
	for _, e := range p.Exchanges {
		exchanges = append(exchanges, object{
			"name": e.Name, "vhost": vhost, "type": e.Kind, "durable": true,
			"auto_delete": e.AutoDelete, "internal": false, "arguments": orEmpty(e.Arguments),
		})
	}
	for _, b := range p.Bindings {
		kind, name := b.to()
		if kind == "queue" && !known[name] {
			return nil, fmt.Errorf("definitions for queue %q: a binding leads to queue %q, which is "+
				"yours: pass it, with its arguments", p.Queue, name)
		}
		bindings = append(bindings, object{
			"source": b.Exchange, "vhost": vhost, "destination": name, "destination_type": kind,
			"routing_key": b.RoutingKey, "arguments": orEmpty(b.arguments()),
		})
	}
	file := object{"queues": queues, "exchanges": exchanges, "bindings": bindings}
	return json.MarshalIndent(file, "", "  ")
}

// names are the names of the queues and exchanges in the definitions.
func (p Plan) names(yours []Queue) (names []string) {
	for _, q := range slices.Concat(yours, p.Queues) {
		names = append(names, q.Name)
	}
	for _, e := range p.Exchanges {
		names = append(names, e.Name)
	}
	return names
}

// orEmpty returns an empty table for nil: a definitions file has {} for it, and not null.
func orEmpty(t amqp.Table) amqp.Table {
	if t == nil {
		return amqp.Table{}
	}
	return t
}
