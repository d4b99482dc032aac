package operate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/fleet"
	"github.com/millpond-go/millpond/internal/management"
	"github.com/millpond-go/millpond/internal/policies"
	"github.com/millpond-go/millpond/topology"
)

// seen is the answers of the management API about a vhost.
type seen struct {
	manager   *policies.Manager
	vhost     string
	queues    map[string]management.Queue
	exchanges map[string]management.Exchange
	// from and into have the bindings of the exchanges that matter, by exchange and by queue.
	from, into map[string][]topology.Binding
	unclear    []Unclear
	brakes     []string
}

// look reads the vhost. It reads bindings only of exchanges that may belong to millpond,
// by their arguments or by the wait queues that lead to them.
func look(ctx context.Context, m *policies.Manager, vhost string) (*seen, error) {
	s := &seen{
		manager: m, vhost: vhost, queues: map[string]management.Queue{},
		exchanges: map[string]management.Exchange{},
		from:      map[string][]topology.Binding{}, into: map[string][]topology.Binding{},
	}
	same := map[string]management.Object{}
	settled, err := m.API.Queues(ctx, vhost, func(q management.Queue) {
		name, brake := strings.CutPrefix(q.Name, fleet.Prefix) // no message of a user is there
		switch {
		case !brake:
			s.see(q, same)
		case q.Arguments["x-single-active-consumer"] == true: // the others are of processes
			s.brakes = append(s.brakes, name)
		}
	})
	if err != nil {
		return nil, s.wayIn(err)
	}
	s.note(settled, "queues")
	waits := s.waitQueues()
	if len(waits) == 0 && !s.anyKeeps() {
		return s, nil
	}
	settled, err = m.API.Exchanges(ctx, vhost, func(e management.Exchange) {
		e.Arguments = management.Object(table(e.Arguments))
		s.exchanges[e.Name] = e
	})
	if err != nil {
		return nil, s.wayIn(err)
	}
	s.note(settled, "exchanges")
	s.follow(waits)
	if m.Policies() == nil {
		s.unclear = append(s.unclear, Unclear{
			Text: fmt.Sprintf("the policies of vhost %q could not be seen: %v", vhost, m.PolicyErr),
		})
	}
	return s, ctx.Err()
}

// wayIn adds to an error the permissions that a user may lack.
func (s *seen) wayIn(err error) error {
	if errors.Is(err, management.ErrNotFound) { // as 4.3 answers (F39)
		return fmt.Errorf("management API: there is no such vhost, or the user has no permissions in "+
			"it, of which ^$ is enough: %w", err)
	}
	return fmt.Errorf("management API: %w", err)
}

func (s *seen) note(settled bool, what string) {
	if !settled {
		s.unclear = append(s.unclear, Unclear{Text: fmt.Sprintf("%s of vhost %q were declared or "+
			"deleted while they were listed, so that one of them may be missing here: ask again",
			what, s.vhost)})
	}
}

// see keeps a queue. All queues with the same arguments have one table, because there may be very
// many. Plans have it, too, so it must not be written to.
func (s *seen) see(q management.Queue, same map[string]management.Object) {
	key, _ := json.Marshal(q.Arguments) // never fails: it came as JSON
	if _, ok := same[string(key)]; !ok {
		same[string(key)] = management.Object(table(q.Arguments))
	}
	q.Arguments = same[string(key)]
	s.queues[q.Name] = q
}

// counts returns a queue as the result shows it.
func (s *seen) counts(name string) Queue {
	q := s.queues[name]
	return Queue{
		Name: name, Type: topology.QueueType(q.Type), Ready: managementCount(q.Ready),
		Unacked: managementCount(q.Unacked), Total: managementCount(q.Messages),
		Held: managementCount(q.Held), Consumers: managementCount(q.Consumers),
		In: q.Stats.In.Rate, Out: q.Stats.Out.Rate,
	}
}

func (s *seen) waitCounts(w *waitQueue) Queue {
	q := s.counts(w.name)
	q.Delay = w.delay
	return q
}

// waitQueue is a wait queue and where its messages go when their wait is over.
type waitQueue struct {
	name     string
	delay    time.Duration
	exchange string
	key      string
	fixed    bool // the key is an argument; otherwise a message keeps its own
}

// waitQueues returns the queues with the arguments that topology.WaitQueue and the strategies set,
// by delay and name. A queue of another program with a TTL and a dead-letter target lacks some.
func (s *seen) waitQueues() []*waitQueue {
	var waits []*waitQueue
	for name, q := range s.queues {
		ttl, ok := audit.WholeNumber(q.Arguments["x-message-ttl"])
		exchange, leads := q.Arguments["x-dead-letter-exchange"].(string)
		if !ok || !leads || ttl <= 0 || !keeps(q) || !waitsSafely(q) {
			continue
		}
		w := &waitQueue{name: name, delay: time.Duration(ttl) * time.Millisecond, exchange: exchange}
		w.key, w.fixed = q.Arguments["x-dead-letter-routing-key"].(string)
		waits = append(waits, w)
	}
	slices.SortFunc(waits, func(a, b *waitQueue) int {
		return cmp.Or(cmp.Compare(a.delay, b.delay), cmp.Compare(a.name, b.name))
	})
	return waits
}

// keeps reports whether a queue has the arguments of all queues that a strategy declares: a
// delivery limit out of reach, or lazy mode.
func keeps(q management.Queue) bool {
	if q.Type == audit.Classic {
		return q.Arguments["x-queue-type"] == audit.Classic && q.Arguments["x-queue-mode"] == "lazy"
	}
	limit, _ := audit.WholeNumber(q.Arguments["x-delivery-limit"])
	return q.Type == audit.Quorum && limit == audit.LargeLimit
}

// waitsSafely reports whether a quorum queue dead-letters at least once.
func waitsSafely(q management.Queue) bool {
	return q.Type == audit.Classic || q.Arguments["x-dead-letter-strategy"] == "at-least-once" &&
		q.Arguments["x-overflow"] == "reject-publish"
}

// keepsAlone is keeps for a queue that has no TTL and no dead-letter target, as a dead-letter queue
// and a stranded queue.
func keepsAlone(q management.Queue) bool {
	_, expires := q.Arguments["x-message-ttl"]
	_, leads := q.Arguments["x-dead-letter-exchange"]
	return keeps(q) && !expires && !leads
}

func (s *seen) anyKeeps() bool {
	for _, q := range s.queues {
		if keepsAlone(q) {
			return true
		}
	}
	return false
}

// follow reads the bindings of the exchanges that wait queues lead to, of the exchanges behind
// these, and of the exchanges that name themselves as alternate exchange, as the entry exchanges of
// all strategies do.
func (s *seen) follow(waits []*waitQueue) {
	var open []string
	returns := map[string]bool{} // exchanges that messages come back through
	for _, w := range waits {
		open, returns[w.exchange] = append(open, w.exchange), true
	}
	for _, name := range slices.Sorted(maps.Keys(s.exchanges)) {
		if s.alternate(name) == name {
			open = append(open, name)
		}
	}
	read := map[string]bool{"": true}
	for len(open) > 0 {
		name := open[0]
		open = open[1:]
		if _, there := s.exchanges[name]; !there || read[name] {
			continue
		}
		read[name] = true
		bindings, _ := s.manager.Bindings(name)
		for _, b := range bindings {
			found := bindingOf(name, b)
			s.from[name] = append(s.from[name], found)
			if found.Queue != "" {
				s.into[found.Queue] = append(s.into[found.Queue], found)
			} else {
				open = append(open, found.ToExchange)
			}
		}
		// The alternate exchange of an exchange behind it is the user's.
		if returns[name] {
			open = append(open, s.alternate(name))
		}
	}
}

// alternate returns the alternate exchange of an exchange, "" for none.
func (s *seen) alternate(exchange string) string {
	name, _ := s.exchanges[exchange].Arguments["alternate-exchange"].(string)
	return name
}

func bindingOf(exchange string, b management.Bound) topology.Binding {
	found := topology.Binding{Exchange: exchange, RoutingKey: b.RoutingKey}
	if b.DestinationType == "exchange" {
		found.ToExchange = b.Destination
	} else {
		found.Queue = b.Destination
	}
	for key, value := range b.Arguments {
		if text, ok := value.(string); ok && key != "x-match" {
			found.Header, found.Value = key, text
		}
	}
	return found
}

// table returns arguments as the client library writes them.
func table(o management.Object) amqp.Table {
	if o == nil {
		return nil
	}
	t := amqp.Table{}
	for key, value := range o {
		t[key] = tableField(value)
	}
	return t
}

func tableField(value any) any {
	switch v := value.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		f, _ := v.Float64()
		return f
	case map[string]any:
		return table(v)
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = tableField(v[i])
		}
		return list
	}
	return value
}
