package discover

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/management"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// dead finds the queues that keep dead letters. millpond publishes a dead letter to a queue by its
// name, so that no argument and no binding shows which one.
func (d *derivation) dead(ctx context.Context, api *management.API) error {
	for _, name := range slices.Sorted(maps.Keys(d.mains)) {
		usual := name + ".dlq"
		if _, there := d.queues[usual]; there && d.byName[usual] == nil && d.mains[usual] == nil {
			d.parts[name].deadQueue(d, usual, ByName)
		}
		if err := d.deadByBroker(ctx, api, name); err != nil {
			return err
		}
	}
	d.unclaimed = map[string]bool{}
	for name, q := range d.queues {
		if onlyKeeps(q) && q.consumers <= 0 && d.mains[name] == nil && !d.stranded[name] && !isLine(q) {
			d.unclaimed[name] = true
		}
	}
	for _, m := range d.mains {
		for _, dead := range m.Dead {
			delete(d.unclaimed, dead.Name)
		}
	}
	d.strandedByName = map[string]bool{}
	for name := range d.unclaimed {
		if strings.HasSuffix(name, ".stranded") {
			d.strandedByName[name] = true
			delete(d.unclaimed, name)
		}
	}
	return nil
}

// deadQueue adds the queue that dead letters are published to.
func (p *parts) deadQueue(d *derivation, name string, evidence Evidence) {
	p.main.Dead = append(p.main.Dead, Dead{Queue: d.counts(name), Evidence: evidence})
	p.main.Plan.Dead = topology.Route{RoutingKey: name}
	p.keep(d, name)
}

// deadByBroker adds the queues that get the messages of a main queue that the broker itself
// dead-letters.
func (d *derivation) deadByBroker(
	ctx context.Context, api *management.API, name string,
) error {
	q := d.queues[name]
	evidence := ByArgument
	exchange, leads := q.arguments["x-dead-letter-exchange"].(string)
	key, fixed := q.arguments["x-dead-letter-routing-key"].(string)
	if d.policies != nil {
		applied := d.policies.Of(name, string(q.kind))
		policy := applied.Definition()
		if to, set := policy["dead-letter-exchange"].(string); set && !leads {
			exchange, leads, evidence = to, true, ByPolicy
		}
		if to, set := policy["dead-letter-routing-key"].(string); set && !fixed {
			key, fixed = to, true
		}
	}
	if !leads {
		return nil
	}
	const about = "messages of queue %q that the broker dead-letters go to %s"
	var to []string
	kind := d.exchanges[exchange].Kind
	_, there := d.exchanges[exchange]
	switch {
	case exchange == "" && !fixed:
		return nil // back into the queue
	case exchange == "":
		if _, there := d.queues[key]; !there {
			d.tell(name, about+", which does not exist", name, fmt.Sprintf("queue %q", key))
			return nil
		}
		to = []string{key}
	case !there:
		d.tell(name, about+", which does not exist", name, fmt.Sprintf("exchange %q", exchange))
		return nil
	case kind == "fanout" || kind == "direct" && fixed:
		bindings, err := api.Bindings(ctx, d.vhost, exchange)
		if err != nil && !errors.Is(err, management.ErrNotFound) {
			return fmt.Errorf("management API: %w", err)
		}
		for _, b := range bindings {
			if b.DestinationType == "queue" && (kind == "fanout" || b.RoutingKey == key) {
				to = append(to, b.Destination)
			}
		}
	default:
		d.tell(name, about+", and their routing keys decide in which queue they are", name,
			fmt.Sprintf("exchange %q", exchange))
		return nil
	}
	m := d.mains[name]
	for _, queue := range to {
		known := func(dead Dead) bool { return dead.Name == queue }
		if queue != name && !slices.ContainsFunc(m.Dead, known) {
			m.Dead = append(m.Dead, Dead{Queue: d.counts(queue), Evidence: evidence})
		}
	}
	return nil
}

// peek looks at the oldest message of each queue that keeps messages.
func (d *derivation) peek(ctx context.Context, o *operate.Operator) error {
	owners := map[string]*Main{} // by dead-letter queue, where a name alone tells
	queues := maps.Clone(d.stranded)
	maps.Copy(queues, d.unclaimed)
	maps.Copy(queues, d.strandedByName)
	for _, m := range d.mains {
		for _, dead := range m.Dead {
			queues[dead.Name] = true
			if dead.Evidence == ByName {
				owners[dead.Name] = m
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(queues)) {
		if q := d.queues[name]; q.total == 0 || q.consumers > 0 || d.mains[name] != nil {
			continue
		}
		messages, err := o.Peek(ctx, name, 1)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			d.tell("", "the oldest message of queue %q could not be looked at: %v", name, err)
			continue
		case len(messages) == 0:
			continue
		}
		d.oldest[name] = since(messages[0])
		queue, state := header.ParseDead(func(key string) (string, bool) {
			text, ok := messages[0].Headers[key].(string)
			return text, ok
		})
		if state.Reason != "" {
			d.proven(name, queue, owners[name])
		}
	}
	return nil
}

// proven notes that a queue keeps a dead letter of a main queue. byName is the main queue whose
// letters the queue keeps by its name.
func (d *derivation) proven(name, queue string, byName *Main) {
	p := d.parts[queue]
	switch {
	case byName != nil && byName.Name == queue:
		byName.Dead[0].Evidence = ByLetter
	case byName != nil:
		d.tell(byName.Name, "the oldest message of queue %q is a dead letter of queue %q and not of "+
			"queue %q", name, queue, byName.Name)
	case !d.unclaimed[name] && !d.strandedByName[name] || p == nil:
	case isNowhere(p.main.Plan.Dead):
		d.claim(name)
		p.deadQueue(d, name, ByLetter)
	default:
		d.claim(name)
		p.main.Dead = append(p.main.Dead, Dead{Queue: d.counts(name), Evidence: ByLetter})
		d.tell(queue, "dead letters of queue %q are in queue %q and in queue %q: the plan has the first",
			queue, p.main.Plan.Dead.RoutingKey, name)
	}
}

// claim notes that a queue belongs to a main queue.
func (d *derivation) claim(name string) {
	delete(d.unclaimed, name)
	delete(d.strandedByName, name)
}

// since returns the time since which a message is a dead letter or stranded: by the headers of
// millpond, else by the broker's newest x-death entry. Any publisher may write the former.
func since(m amqp.Delivery) time.Time {
	_, state := header.ParseDead(func(key string) (string, bool) {
		text, ok := m.Headers[key].(string)
		return text, ok
	})
	if !state.DeadAt.IsZero() {
		return state.DeadAt
	}
	deaths, _ := m.Headers["x-death"].([]any)
	if len(deaths) > 0 {
		newest, _ := deaths[0].(amqp.Table)
		at, _ := newest["time"].(time.Time)
		return at
	}
	return time.Time{}
}
