package operate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/topology"
)

// parts puts the plan of a main queue together.
type parts struct {
	main     *Main
	has      map[any]bool
	keeps    []topology.Queue
	vias     map[string][]string // the exchanges of the user, by the exchange of the plan
	attempts map[string]int      // by wait queue
	levels   []topology.LevelRoutes
	ways     map[string]bool // how messages return, in words
}

// main returns the main queue of this name, and begins it.
func (d *derivation) main(name string) (*Main, *parts) {
	p := d.parts[name]
	if p == nil {
		m := &Main{Queue: d.counts(name), Plan: topology.Plan{Queue: name}}
		p = &parts{
			main: m, has: map[any]bool{}, vias: map[string][]string{},
			attempts: map[string]int{}, ways: map[string]bool{},
		}
		d.mains[name], d.parts[name] = m, p
	}
	return p.main, p
}

type exchangeName string

// exchange adds an exchange as the broker has it.
func (p *parts) exchange(d *derivation, name string) {
	if p.has[exchangeName(name)] {
		return
	}
	p.has[exchangeName(name)] = true
	e := d.exchanges[name]
	p.main.Plan.Exchanges = append(p.main.Plan.Exchanges, topology.Exchange{
		Name: name, Kind: e.Kind, AutoDelete: e.AutoDelete, Arguments: d.tableOf(exchangeName(name)),
	})
}

func (p *parts) bind(b topology.Binding) {
	if !p.has[b] {
		p.has[b] = true
		p.main.Plan.Bindings = append(p.main.Plan.Bindings, b)
	}
}

// wait adds a wait queue.
func (p *parts) wait(d *derivation, w *waitQueue, strategy Strategy, shared bool) {
	if p.has[w.name] {
		return
	}
	p.has[w.name] = true
	p.main.Waits = append(p.main.Waits, Wait{d.waitCounts(w), strategy, shared})
	p.main.Plan.Queues = append(p.main.Plan.Queues, topology.Queue{
		Name: w.name, Delay: w.delay, Arguments: d.tableOf(w.name),
	})
}

// step adds a wait queue and the route into it.
func (p *parts) step(
	d *derivation, w *waitQueue, route topology.Route, strategy Strategy, shared bool,
) {
	p.attempts[w.name] = route.Attempt
	p.wait(d, w, strategy, shared)
	p.main.Plan.WaitSteps = append(p.main.Plan.WaitSteps, route)
}

// keep adds a queue that keeps messages.
func (p *parts) keep(d *derivation, name string) {
	if !p.has[name] {
		p.has[name] = true
		p.keeps = append(p.keeps, topology.Queue{Name: name, Arguments: d.tableOf(name), Adopt: true})
	}
}

// back adds an exchange that messages return through, and the stranded queue behind it.
func (p *parts) back(d *derivation, exchange string) {
	p.exchange(d, exchange)
	stranded := d.alternate(exchange)
	if _, there := d.exchanges[stranded]; !there || stranded == exchange {
		return
	}
	p.exchange(d, stranded)
	for _, b := range d.from[stranded] {
		if b.Queue == "" {
			continue
		}
		p.bind(b)
		p.keep(d, b.Queue)
		d.stranded[b.Queue] = true
		if !slices.Contains(p.main.Stranded, b.Queue) {
			p.main.Stranded = append(p.main.Stranded, b.Queue)
		}
	}
}

func (p *parts) returns(way string, args ...any) { p.ways[fmt.Sprintf(way, args...)] = true }

// through adds an exchange of the user that messages return through. The exchanges of an earlier
// version, of which each belongs to one exchange of the user, make no Via.
func (p *parts) through(exchange, through string) {
	if !strings.HasSuffix(through, ".via") {
		p.returns("through exchanges %q and %q, as in an earlier version", exchange, through)
		p.main.Vias = append(p.main.Vias, exchange)
		return
	}
	p.returns("through exchange %q and exchanges of yours", through)
	if !slices.Contains(p.vias[through], exchange) {
		p.vias[through] = append(p.vias[through], exchange)
	}
}

// finish orders the plan as a strategy does.
func (p *parts) finish(d *derivation) {
	m := p.main
	byDelay := func(a, b topology.Route) int {
		return cmp.Or(cmp.Compare(a.Delay, b.Delay), cmp.Compare(a.Attempt, b.Attempt))
	}
	slices.SortStableFunc(m.Plan.WaitSteps, byDelay)
	slices.SortStableFunc(m.Waits, func(a, b Wait) int {
		return cmp.Or(cmp.Compare(a.Delay, b.Delay), cmp.Compare(p.attempts[a.Name], p.attempts[b.Name]))
	})
	slices.SortStableFunc(m.Plan.Queues, func(a, b topology.Queue) int {
		return cmp.Or(cmp.Compare(a.Delay, b.Delay), cmp.Compare(p.attempts[a.Name], p.attempts[b.Name]))
	})
	m.Plan.Queues = append(m.Plan.Queues, p.keeps...)
	if m.Line != nil {
		m.Plan.Queues = append(m.Plan.Queues, topology.Queue{
			Name: m.Line.Name, Arguments: d.tableOf(m.Line.Name),
		})
	}
	for through, exchanges := range p.vias {
		slices.Sort(exchanges)
		if len(p.ways) == 1 {
			m.Plan.Via = &topology.Via{Exchanges: exchanges, Through: through}
		}
		m.Vias = append(m.Vias, exchanges...)
	}
	slices.Sort(m.Vias)
	m.Vias = slices.Compact(m.Vias)
	if len(p.vias) > 0 && len(p.ways) > 1 {
		d.tell(m.Name, "retries of queue %q return by %d ways, of which a plan has one, so that its "+
			"plan has no Via: %s", m.Name, len(p.ways), strings.Join(slices.Sorted(maps.Keys(p.ways)), "; "))
	}
	switch len(p.levels) {
	case 0:
	case 1:
		m.Plan.Levels = &p.levels[0]
	default:
		d.tell(m.Name, "%d sets of levels lead to queue %q, and the broker does not show which its "+
			"service uses: the plan has the wait queues of all", len(p.levels), m.Name)
	}
	m.PlanErr = topology.ValidatePlan(m.Plan)
}

// tableOf returns the arguments of a queue, or of an exchange by its exchangeName. All plans have
// the same table, which must not be written to.
func (d *derivation) tableOf(name any) amqp.Table {
	if t, ok := d.tables[name]; ok {
		return t
	}
	var t amqp.Table
	switch name := name.(type) {
	case string:
		t = table(d.queues[name].arguments)
	case exchangeName:
		t = table(d.exchanges[string(name)].Arguments)
	}
	d.tables[name] = t
	return t
}
