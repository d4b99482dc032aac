package topology

import (
	"encoding/json"
	"fmt"

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
// a binding to its queue (Shared) needs that one among them, for the broker
// refuses a binding to a queue that does not exist.
func (p Plan) Definitions(vhost string, yours ...Queue) ([]byte, error) {
	d := definitions{Queues: []queueDefinition{}, Exchanges: []exchangeDefinition{}, Bindings: []bindingDefinition{}}
	known := map[string]bool{}
	for _, list := range [][]Queue{yours, p.Queues} {
		for _, q := range list {
			known[q.Name] = true
			d.Queues = append(d.Queues, queueDefinition{Name: q.Name, Vhost: vhost, Durable: true, Arguments: orEmpty(q.Arguments)})
		}
	}
	for _, e := range p.Exchanges {
		d.Exchanges = append(d.Exchanges, exchangeDefinition{Name: e.Name, Vhost: vhost, Type: e.Kind, Durable: true, Arguments: orEmpty(e.Arguments)})
	}
	for _, b := range p.Bindings {
		if !known[b.Queue] {
			return nil, fmt.Errorf("definitions for queue %q: a binding leads to queue %q, which is yours: pass it, with its arguments", p.Queue, b.Queue)
		}
		d.Bindings = append(d.Bindings, bindingDefinition{
			Source: b.Exchange, Vhost: vhost, Destination: b.Queue, DestinationType: "queue", RoutingKey: b.RoutingKey, Arguments: amqp.Table{},
		})
	}
	return json.MarshalIndent(d, "", "  ")
}

// orEmpty: a definitions file has {} where a table is empty, not null.
func orEmpty(t amqp.Table) amqp.Table {
	if t == nil {
		return amqp.Table{}
	}
	return t
}
