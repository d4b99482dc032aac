package topology

import (
	"regexp"
	"slices"
	"strings"
)

// Permissions are the patterns of rabbitmqctl set_permissions: for each right
// the names it is given for.
type Permissions struct {
	Configure, Write, Read string
}

// Permissions returns what a user needs who consumes the plan's queue and
// retries its messages: with declare to declare the plan too, without to use one
// that was provisioned. What declaring the queue itself and its exchange takes,
// which is up to its TopologyBuilder, is not in it, but for a queue on the
// default exchange.
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
			// A queue that dead-letters must be readable by whoever declares it,
			// and the exchange it leads to writable.
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

// Join returns patterns that give what both give, for a user of several plans.
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
