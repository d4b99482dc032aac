package operate

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millpond-go/millpond/topology"
)

// chain is the levels of topology.Levels behind one entry exchange.
type chain struct {
	waits     []*waitQueue // level 0 first
	exchanges []string     // of the levels but the highest
	bindings  []topology.Binding
	enter     string
}

// levels reads a topic exchange by which messages return to the queues that are bound by #.<word>.
// through has all wait queues by the exchange that they lead to.
func (d *derivation) levels(
	exchange string, waits []*waitQueue, through map[string][]*waitQueue,
) {
	words := map[string]topology.Binding{}
	for _, b := range d.from[exchange] {
		switch {
		case b.ToExchange != "":
			return // a level, which chain follows
		case strings.HasPrefix(b.RoutingKey, "#."):
			words[b.Queue] = b
		}
	}
	for _, w := range waits {
		c := d.chain(exchange, w, through)
		if !d.bound(exchange, c.waits, len(words)) {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(words)) {
			d.level(name, exchange, words[name], c, len(words) > 1)
		}
	}
}

// chain follows the levels upwards from level 0.
func (d *derivation) chain(back string, w *waitQueue, through map[string][]*waitQueue) chain {
	c := chain{waits: []*waitQueue{w}}
	below, bits := back, ""
	for w != nil {
		var level string
		for _, b := range d.into[w.name] {
			down := topology.Binding{Exchange: b.Exchange, RoutingKey: bits + "0.#", ToExchange: below}
			switch {
			case b.RoutingKey == bits+"1.*":
				c.enter = b.Exchange
				c.bindings = append(c.bindings, b)
			case b.RoutingKey == bits+"1.#" && slices.Contains(d.from[b.Exchange], down):
				level = b.Exchange
				c.exchanges = append(c.exchanges, level)
				c.bindings = append(c.bindings, b, down)
			}
		}
		delay := 2 * w.delay
		w = nil
		for _, next := range through[level] {
			if level != "" && next.delay == delay {
				w = next
				c.waits = append(c.waits, w)
			}
		}
		below, bits = level, bits+"*."
	}
	return c
}

// level adds a chain to the plan of a main queue.
func (d *derivation) level(
	name, back string, end topology.Binding, c chain, shared bool,
) {
	_, p := d.main(name)
	p.back(d, back)
	p.returns("through exchange %q", back)
	p.bind(end)
	for _, exchange := range c.exchanges {
		p.exchange(d, exchange)
	}
	for _, b := range c.bindings {
		p.bind(b)
	}
	if c.enter == "" {
		d.tell(p.main.Name, "no exchange that leads into wait queue %q was found: it is looked for "+
			"among the exchanges that name themselves as alternate exchange", c.waits[0].name)
		for _, w := range c.waits {
			p.wait(d, w, Levels, shared)
		}
		return
	}
	p.exchange(d, c.enter)
	routes := topology.LevelRoutes{
		Exchange: c.enter, Destination: strings.TrimPrefix(end.RoutingKey, "#."),
		Resolution: c.waits[0].delay, Levels: len(c.waits), Tolerance: defaultTolerance,
	}
	p.levels = append(p.levels, routes)
	for _, w := range c.waits {
		p.step(d, w, routeOf(routes, w.delay), Levels, shared)
	}
}

// defaultTolerance of topology.Levels.
const defaultTolerance = 0.01

// routeOf returns the route of one level.
func routeOf(routes topology.LevelRoutes, delay time.Duration) topology.Route {
	plan := topology.Plan{Levels: &routes}
	route, _ := plan.Route(topology.Retry{Delay: delay}) // levels always have a route
	return route
}
