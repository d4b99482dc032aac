package topology

import (
	"encoding/json"
	"fmt"
	"slices"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"
)

// definitions is the part of RabbitMQ's definitions file that a plan fills.
type definitions struct {
	Queues    []queueDefinition    `json:"queues"`
	Exchanges []exchangeDefinition `json:"exchanges"`
	Bindings  []bindingDefinition  `json:"bindings"`
}

type queueDefinition struct {
	Name       string     `json:"name"`
	Vhost      string     `json:"vhost"`
	Durable    bool       `json:"durable"`
	AutoDelete bool       `json:"auto_delete"`
	Arguments  amqp.Table `json:"arguments"`
}

type exchangeDefinition struct {
	Name       string     `json:"name"`
	Vhost      string     `json:"vhost"`
	Type       string     `json:"type"`
	Durable    bool       `json:"durable"`
	AutoDelete bool       `json:"auto_delete"`
	Internal   bool       `json:"internal"`
	Arguments  amqp.Table `json:"arguments"`
}

type bindingDefinition struct {
	Source          string     `json:"source"`
	Vhost           string     `json:"vhost"`
	Destination     string     `json:"destination"`
	DestinationType string     `json:"destination_type"`
	RoutingKey      string     `json:"routing_key"`
	Arguments       amqp.Table `json:"arguments"`
}

// Definitions returns the plan as a RabbitMQ definitions file in JSON, for teams
// that provision a broker beforehand: import it with rabbitmqctl
// import_definitions, and open the client with WithPreProvisioned.
//
// yours are the queues of the user that the file shall hold as well. A plan with
// a binding to its queue (Shared, Levels, Via) needs that one among them, for the broker
// refuses a binding to a queue that does not exist. A name that is not UTF-8, which
// JSON cannot hold, is an error.
func (p Plan) Definitions(vhost string, yours ...Queue) ([]byte, error) {
	d := definitions{Queues: []queueDefinition{}, Exchanges: []exchangeDefinition{}, Bindings: []bindingDefinition{}}
	known := map[string]bool{}
	for _, name := range append([]string{vhost, p.Queue}, p.names(yours)...) {
		if !utf8.ValidString(name) {
			return nil, fmt.Errorf("definitions for queue %q: the name %q is not UTF-8, which JSON cannot hold: declare it over AMQP", p.Queue, name)
		}
	}
	for _, list := range [][]Queue{yours, p.Queues} {
		for _, q := range list {
			known[q.Name] = true
			d.Queues = append(d.Queues, queueDefinition{Name: q.Name, Vhost: vhost, Durable: true, Arguments: orEmpty(q.Arguments)})
		}
	}
	for _, e := range p.Exchanges {
		d.Exchanges = append(d.Exchanges, exchangeDefinition{Name: e.Name, Vhost: vhost, Type: e.Kind, Durable: true, AutoDelete: e.AutoDelete, Arguments: orEmpty(e.Arguments)})
	}
	for _, b := range p.Bindings {
		kind, name := b.to()
		if kind == "queue" && !known[name] {
			return nil, fmt.Errorf("definitions for queue %q: a binding leads to queue %q, which is yours: pass it, with its arguments", p.Queue, name)
		}
		d.Bindings = append(d.Bindings, bindingDefinition{
			Source: b.Exchange, Vhost: vhost, Destination: name, DestinationType: kind, RoutingKey: b.RoutingKey, Arguments: orEmpty(b.arguments()),
		})
	}
	return json.MarshalIndent(d, "", "  ")
}

// names are those of the queues and exchanges in the definitions.
func (p Plan) names(yours []Queue) (names []string) {
	for _, q := range slices.Concat(yours, p.Queues) {
		names = append(names, q.Name)
	}
	for _, e := range p.Exchanges {
		names = append(names, e.Name)
	}
	return names
}

// orEmpty: a definitions file has {} where a table is empty, not null.
func orEmpty(t amqp.Table) amqp.Table {
	if t == nil {
		return amqp.Table{}
	}
	return t
}
