package operate

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/fleet"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/management"
	"github.com/millpond-go/millpond/internal/policies"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// derivation turns the answers of the management API into the result.
type derivation struct {
	*seen
	waits               []*waitQueue
	byName              map[string]*waitQueue
	placed              map[string]bool // wait queues of which it is known where they lead
	mains               map[string]*parts
	stranded, unclaimed map[string]bool
	strandedByName      map[string]bool // no exchange shows it
	orphans             []Orphan
}

func (s *seen) derive() *derivation {
	d := &derivation{
		seen: s, waits: s.waitQueues(), byName: map[string]*waitQueue{}, placed: map[string]bool{},
		mains: map[string]*parts{}, stranded: map[string]bool{},
	}
	through := map[string][]*waitQueue{} // by the exchange that their messages return through
	for _, w := range d.waits {
		d.byName[w.name] = w
	}
	for _, w := range d.waits {
		_, there := s.exchanges[w.exchange]
		switch {
		case w.exchange == "":
			d.direct(w)
		case !there:
			d.orphan(w, "", "exchange %q, where its messages go, does not exist", w.exchange)
		case d.isOlderLevel(w):
			d.unclearWait(w, "as a level of an earlier version, by headers")
		case w.fixed:
			d.unclearWait(w, "with a routing key of its own")
		default:
			through[w.exchange] = append(through[w.exchange], w)
		}
	}
	for _, exchange := range slices.Sorted(maps.Keys(through)) {
		switch s.exchanges[exchange].Kind {
		case "direct":
			d.shared(exchange, through[exchange])
		case "headers":
			d.via(exchange, through[exchange])
		case "topic":
			d.levels(exchange, through[exchange], through)
		}
	}
	for _, w := range d.waits {
		if !d.placed[w.name] {
			d.unclearWait(w, "of type "+s.exchanges[w.exchange].Kind)
		}
	}
	d.strandedAlone()
	d.lines()
	return d
}

func (d *derivation) tell(queue, format string, args ...any) {
	d.unclear = append(d.unclear, Unclear{Queue: queue, Text: fmt.Sprintf(format, args...)})
}

func (d *derivation) unclearWait(w *waitQueue, how string) {
	d.placed[w.name] = true
	d.tell("", "wait queue %q leads to exchange %q %s: the queue that its messages return to could "+
		"not be derived", w.name, w.exchange, how)
}

// isOlderLevel reports whether messages come to a wait queue, or leave it, by the headers with
// which levels before v0.1.0 returned through exchanges of the user.
func (d *derivation) isOlderLevel(w *waitQueue) bool {
	byLevel := func(b topology.Binding) bool { return strings.HasPrefix(b.Header, keys.Level) }
	return slices.ContainsFunc(d.into[w.name], byLevel) ||
		slices.ContainsFunc(d.from[w.exchange], byLevel)
}

func (d *derivation) orphan(w *waitQueue, queue, format string, args ...any) {
	d.placed[w.name] = true
	d.orphans = append(d.orphans, Orphan{
		Wait: Wait{Queue: d.waitCounts(w), Strategy: Unknown},
		For:  queue, Why: fmt.Sprintf(format, args...),
	})
}

// direct follows a wait queue that leads to a queue by its name, perhaps after other wait queues.
func (d *derivation) direct(w *waitQueue) {
	if !w.fixed {
		d.orphan(w, "", "its messages keep their routing key and lead back into it")
		return
	}
	delay, hops, passed := w.delay, 1, map[string]bool{w.name: true}
	last := w
	for next := d.byName[w.key]; next != nil; next = d.byName[last.key] {
		if passed[next.name] {
			d.orphan(w, "", "its messages go round in a circle by wait queue %q", next.name)
			return
		}
		passed[next.name] = true
		if next.exchange != "" || !next.fixed {
			d.unclearWait(w, fmt.Sprintf("by wait queue %q", next.name))
			return
		}
		delay, hops, last = delay+next.delay, hops+1, next
	}
	if _, there := d.queues[last.key]; !there {
		d.orphan(w, last.key, "queue %q, which its messages return to, does not exist", last.key)
		return
	}
	d.placed[w.name] = true
	route, strategy := topology.Route{RoutingKey: w.name}, PerQueue
	p := d.main(last.key)
	for _, b := range d.into[w.name] {
		if d.exchanges[b.Exchange].Kind == "direct" {
			route, strategy = topology.Route{Exchange: b.Exchange, RoutingKey: b.RoutingKey}, PerAttempt
			route.Attempt = attemptOf(p.Name, w)
			p.exchange(d, b.Exchange)
			p.bind(b)
			break
		}
	}
	if hops > 1 {
		strategy = Unknown
	}
	route.Delay, route.Hops = delay, hops
	p.step(d, w, route, strategy, false)
	p.returns("by the name of the queue")
}

// attemptOf reads the attempt from a name of PerAttempt; 0 for another name.
func attemptOf(queue string, w *waitQueue) int {
	rest, ok := strings.CutPrefix(w.name, queue+".retry.")
	if !ok {
		return 0
	}
	text, delay, _ := strings.Cut(rest, ".")
	attempt, err := strconv.Atoi(text)
	if err != nil || attempt < 0 || !strings.HasPrefix(delay, audit.DelayText(w.delay)) {
		return 0
	}
	return attempt
}

// entry returns the exchange by which messages enter a wait queue with any routing key.
func (d *derivation) entry(w *waitQueue) (topology.Binding, bool) {
	var found []topology.Binding
	for _, b := range d.into[w.name] {
		if d.exchanges[b.Exchange].Kind == "fanout" {
			found = append(found, b)
		}
	}
	slices.SortFunc(found, func(a, b topology.Binding) int {
		if own := a.Exchange == w.name; own != (b.Exchange == w.name) {
			if own {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Exchange, b.Exchange)
	})
	if len(found) == 0 {
		return topology.Binding{}, false
	}
	return found[0], true
}

// enter adds a wait queue that messages enter and leave with their routing key.
func (d *derivation) enter(p *parts, w *waitQueue, key string, strategy Strategy, shared bool) {
	entry, ok := d.entry(w)
	if !ok {
		d.tell(p.Name, "no exchange that leads into wait queue %q was found: it is looked for "+
			"among the exchanges that name themselves as alternate exchange", w.name)
		p.wait(d, w, strategy, shared)
		return
	}
	p.exchange(d, entry.Exchange)
	p.bind(entry)
	route := topology.Route{Exchange: entry.Exchange, RoutingKey: key, Delay: w.delay, Hops: 1}
	p.step(d, w, route, strategy, shared)
}

// shared reads a direct exchange by which the messages of any queue return, each by its key.
func (d *derivation) shared(exchange string, waits []*waitQueue) {
	keys := map[string]string{} // by queue; the queue's own name before other keys
	for _, b := range d.from[exchange] {
		if key, set := keys[b.Queue]; b.Queue != "" && (!set || key != b.Queue) {
			keys[b.Queue] = b.RoutingKey
		}
	}
	if !d.bound(exchange, waits, len(keys)) {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		p := d.main(name)
		p.back(d, exchange)
		p.returns("through exchange %q", exchange)
		p.bind(topology.Binding{Exchange: exchange, RoutingKey: keys[name], Queue: name})
		for _, w := range waits {
			d.enter(p, w, keys[name], Shared, len(keys) > 1)
		}
	}
}

// bound reports whether queues are bound to the exchange that messages return through. Otherwise
// its wait queues lead to none.
func (d *derivation) bound(exchange string, waits []*waitQueue, queues int) bool {
	for _, w := range waits {
		d.placed[w.name] = true
		if queues == 0 {
			d.orphan(w, "", "no queue that its messages could return to is bound to exchange %q, where "+
				"they go", exchange)
		}
	}
	return queues > 0
}

// via reads a headers exchange by which messages return to their queue, or through exchanges of
// the user.
func (d *derivation) via(exchange string, waits []*waitQueue) {
	own, anchors := map[string]topology.Binding{}, map[string][]topology.Binding{}
	for _, b := range d.from[exchange] {
		switch {
		case b.Queue != "" && b.Header == header.Queue && b.Value == b.Queue:
			own[b.Queue] = b
		case b.ToExchange != "" && b.Header == keys.Via:
			for _, behind := range d.from[b.ToExchange] {
				anchors[behind.Queue] = append(anchors[behind.Queue], b)
			}
		}
	}
	if !d.bound(exchange, waits, len(own)) {
		return
	}
	names := slices.Sorted(maps.Keys(own))
	owners, byOwner := d.owners(exchange, waits, own), map[string][]*waitQueue{}
	for _, w := range waits {
		name := owners[w.name].queue
		byOwner[name] = append(byOwner[name], w)
	}
	for _, name := range names {
		p := d.main(name)
		p.back(d, exchange)
		p.bind(own[name])
		for _, anchor := range anchors[name] {
			p.bind(anchor)
			p.exchange(d, anchor.ToExchange)
			for _, b := range d.from[anchor.ToExchange] {
				if b.Queue == name {
					p.bind(b)
				}
			}
			p.through(d.alternate(anchor.ToExchange), exchange)
		}
		if len(anchors[name]) == 0 {
			p.returns("through exchange %q", exchange)
			d.tell(name, "no exchange leads retries of queue %q, which return through %q, to another "+
				"exchange: its plan has no Via", name, exchange)
		}
		for _, w := range byOwner[name] {
			d.enter(p, w, name, owners[w.name].strategy, false)
		}
		for _, w := range byOwner[""] {
			strategy := owners[w.name].strategy
			d.enter(p, w, name, strategy, len(own) > 1)
			if strategy == Unknown && len(own) > 1 {
				d.tell(p.Name, "wait queue %q leads by exchange %q to %d queues, and its name is not of a "+
					"strategy: only the headers of its messages say whether queue %q uses it",
					w.name, exchange, len(own), name)
			}
		}
	}
}

type owner struct {
	queue    string // empty for all
	strategy Strategy
}

// owners says for each wait queue before a headers exchange which queue uses it. PerQueue and
// Shared differ in the names alone there, so a name must be of one strategy and of no other.
func (d *derivation) owners(
	exchange string, waits []*waitQueue, own map[string]topology.Binding,
) map[string]owner {
	prefix, named := strings.CutSuffix(exchange, ".via")
	if !named { // of an earlier version: <prefix>.return.<exchange of the user>
		prefix, _ = strings.CutSuffix(d.alternate(exchange), ".stranded")
	}
	found := map[string]owner{}
	for _, w := range waits {
		o, ambiguous := owner{strategy: Unknown}, false
		if prefix != "" && strings.HasPrefix(w.name, prefix+".wait."+audit.DelayText(w.delay)) {
			o.strategy = Shared
		}
		for i := range w.name {
			queue := w.name[:i]
			_, bound := own[queue]
			if !bound || !strings.HasPrefix(w.name[i:], ".wait."+audit.DelayText(w.delay)+".") {
				continue
			}
			if o.strategy != Unknown {
				ambiguous = true
			}
			o = owner{queue: queue, strategy: PerQueue}
		}
		if ambiguous {
			o = owner{strategy: Unknown}
		}
		if len(own) == 1 && o.queue == "" && o.strategy == Unknown {
			for name := range own {
				o.queue = name
			}
		}
		found[w.name] = o
	}
	return found
}

// strandedAlone finds stranded queues whose wait queues are gone: a queue that keeps messages
// behind a fanout exchange of the same name, which is its own alternate exchange.
func (d *derivation) strandedAlone() {
	for name, e := range d.exchanges {
		if e.Kind != "fanout" || d.alternate(name) != name {
			continue
		}
		for _, b := range d.from[name] {
			if b.Queue == name && b.RoutingKey == "" && keepsAlone(d.queues[name]) {
				d.stranded[name] = true
			}
		}
	}
}

// lineSuffix is behind the name of the main queue in the name of its line.
const lineSuffix = ".line"

// isLine reports whether a queue has the arguments of a line. A dead-letter queue has no single
// active consumer.
func isLine(q management.Queue) bool {
	return keepsAlone(q) && q.Arguments["x-single-active-consumer"] == true
}

// lines finds the lines of queues that are handled in order, by name and arguments.
func (d *derivation) lines() {
	for _, name := range slices.Sorted(maps.Keys(d.queues)) {
		of, named := strings.CutSuffix(name, lineSuffix)
		if !named || of == "" || !isLine(d.queues[name]) {
			continue
		}
		if _, there := d.queues[of]; !there {
			d.tell("", "queue %q has the name and the arguments of the line of queue %q, which does not "+
				"exist: its messages wait until the queue and its service are back", name, of)
			continue
		}
		p, line := d.main(of), d.counts(name)
		p.Line, p.Plan.Line = &line, name
	}
}

// parts puts the plan of a main queue together.
type parts struct {
	Main
	has      map[any]bool
	keeps    []topology.Queue
	vias     map[string][]string // the exchanges of the user, by the exchange of the plan
	attempts map[string]int      // by wait queue
	levels   []topology.LevelRoutes
	ways     map[string]bool // how messages return, in words
}

// main returns the main queue of this name, and begins it.
func (d *derivation) main(name string) *parts {
	if d.mains[name] == nil {
		d.mains[name] = &parts{
			Main: Main{Queue: d.counts(name), Plan: topology.Plan{Queue: name}}, has: map[any]bool{},
			vias: map[string][]string{}, attempts: map[string]int{}, ways: map[string]bool{},
		}
	}
	return d.mains[name]
}

type exchangeName string

// exchange adds an exchange as the broker has it.
func (p *parts) exchange(d *derivation, name string) {
	if p.has[exchangeName(name)] {
		return
	}
	p.has[exchangeName(name)] = true
	e := d.exchanges[name]
	p.Plan.Exchanges = append(p.Plan.Exchanges, topology.Exchange{
		Name: name, Kind: e.Kind, AutoDelete: e.AutoDelete, Arguments: amqp.Table(e.Arguments),
	})
}

func (p *parts) bind(b topology.Binding) {
	if !p.has[b] {
		p.has[b] = true
		p.Plan.Bindings = append(p.Plan.Bindings, b)
	}
}

// wait adds a wait queue.
func (p *parts) wait(d *derivation, w *waitQueue, strategy Strategy, shared bool) {
	if p.has[w.name] {
		return
	}
	p.has[w.name] = true
	p.Waits = append(p.Waits, Wait{d.waitCounts(w), strategy, shared})
	p.Plan.Queues = append(p.Plan.Queues, topology.Queue{
		Name: w.name, Delay: w.delay, Arguments: amqp.Table(d.queues[w.name].Arguments),
	})
}

// step adds a wait queue and the route into it.
func (p *parts) step(
	d *derivation, w *waitQueue, route topology.Route, strategy Strategy, shared bool,
) {
	p.attempts[w.name] = route.Attempt
	p.wait(d, w, strategy, shared)
	p.Plan.WaitSteps = append(p.Plan.WaitSteps, route)
}

// keep adds a queue that keeps messages.
func (p *parts) keep(d *derivation, name string) {
	if !p.has[name] {
		p.has[name] = true
		p.keeps = append(p.keeps, topology.Queue{
			Name: name, Arguments: amqp.Table(d.queues[name].Arguments), Adopt: true,
		})
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
		if !slices.Contains(p.Stranded, b.Queue) {
			p.Stranded = append(p.Stranded, b.Queue)
		}
	}
}

func (p *parts) returns(way string, args ...any) { p.ways[fmt.Sprintf(way, args...)] = true }

// through adds an exchange of the user that messages return through. The exchanges of an earlier
// version, of which each belongs to one exchange of the user, make no Via.
func (p *parts) through(exchange, through string) {
	if !strings.HasSuffix(through, ".via") {
		p.returns("through exchanges %q and %q, as in an earlier version", exchange, through)
		p.Vias = append(p.Vias, exchange)
		return
	}
	p.returns("through exchange %q and exchanges of yours", through)
	if !slices.Contains(p.vias[through], exchange) {
		p.vias[through] = append(p.vias[through], exchange)
	}
}

// finish orders the plan as a strategy does.
func (p *parts) finish(d *derivation) {
	m := &p.Main
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
			Name: m.Line.Name, Arguments: amqp.Table(d.queues[m.Line.Name].Arguments),
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
	if d.risky() {
		m.Findings = d.judge(m.Plan)
	}
}

// risky reports whether a policy has a key that may harm messages. It spares most vhosts the
// judgement of each plan.
func (s *seen) risky() bool {
	set := s.manager.Policies()
	return set != nil && slices.ContainsFunc(slices.Concat(set.User, set.Operator),
		func(p management.Policy) bool {
			return slices.ContainsFunc(slices.Collect(maps.Keys(p.Definition)), policies.MayHarm)
		})
}

// judge returns the critical findings about the queues of a plan that policies alone explain. The
// version of the broker changes only the words of others.
func (s *seen) judge(plan topology.Plan) (critical []Finding) {
	audited, known := plan.Audited(), map[string]audit.Facts{}
	for _, q := range audited.Members() {
		if found, there := s.queues[q.Name]; there {
			known[q.Name] = audit.Facts{Kind: found.Type, Arguments: amqp.Table(found.Arguments)}
		}
	}
	findings, _ := s.manager.Policies().Judge(audited, known, audit.Version{}, s.vhost)
	for _, f := range findings {
		if f.Severity == policies.Critical {
			critical = append(critical, Finding{Critical, Overruled, f.Kind, f.Name, f.Text})
		}
	}
	return critical
}

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
	p := d.main(name)
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
		d.tell(p.Name, "no exchange that leads into wait queue %q was found: it is looked for "+
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
		plan := topology.Plan{Levels: &routes}
		route, _ := plan.Route(topology.Retry{Delay: w.delay}) // levels always have a route
		p.step(d, w, route, Levels, shared)
	}
}

// defaultTolerance of topology.Levels.
const defaultTolerance = 0.01

// dead finds the queues that keep dead letters. millpond publishes a dead letter to a queue by its
// name, so that no argument and no binding shows which one.
func (d *derivation) dead() {
	for _, name := range slices.Sorted(maps.Keys(d.mains)) {
		usual := name + ".dlq"
		if _, there := d.queues[usual]; there && d.byName[usual] == nil && d.mains[usual] == nil {
			d.mains[name].deadQueue(d, usual, ByName)
		}
		d.deadByBroker(name)
	}
	d.unclaimed = map[string]bool{}
	for name, q := range d.queues {
		free := managementCount(q.Consumers).N <= 0 && d.mains[name] == nil && !d.stranded[name]
		if free && keepsAlone(q) && !isLine(q) {
			d.unclaimed[name] = true
		}
	}
	for _, m := range d.mains {
		for _, dead := range m.Dead {
			d.claim(dead.Name)
		}
	}
	d.strandedByName = map[string]bool{}
	for name := range d.unclaimed {
		if strings.HasSuffix(name, ".stranded") {
			d.strandedByName[name] = true
			delete(d.unclaimed, name)
		}
	}
}

// deadQueue adds the queue that dead letters are published to.
func (p *parts) deadQueue(d *derivation, name string, evidence Evidence) {
	p.Dead = append(p.Dead, Dead{Queue: d.counts(name), Evidence: evidence})
	p.Plan.Dead = topology.Route{RoutingKey: name}
	p.keep(d, name)
}

// deadByBroker adds the queues that get the messages of a main queue that the broker itself
// dead-letters.
func (d *derivation) deadByBroker(name string) {
	evidence := ByArgument
	own, policy := d.queues[name].Arguments, map[string]any{}
	if set := d.manager.Policies(); set != nil {
		applied := set.Of(name, d.queues[name].Type)
		policy = applied.Definition()
	}
	exchange, leads := own["x-dead-letter-exchange"].(string)
	if !leads {
		evidence = ByPolicy
		exchange, leads = policy["dead-letter-exchange"].(string)
	}
	key, fixed := own["x-dead-letter-routing-key"].(string)
	if !fixed {
		key, fixed = policy["dead-letter-routing-key"].(string)
	}
	if !leads || exchange == "" && !fixed { // without a key they go back into the queue
		return
	}
	to, missing := d.deadTargets(exchange, key, fixed)
	if missing != "" {
		d.tell(name, "messages of queue %q that the broker dead-letters go to %s", name, missing)
	}
	m := d.mains[name]
	for _, queue := range to {
		known := func(dead Dead) bool { return dead.Name == queue }
		if queue != name && !slices.ContainsFunc(m.Dead, known) {
			m.Dead = append(m.Dead, Dead{Queue: d.counts(queue), Evidence: evidence})
		}
	}
}

// deadTargets returns the queues that an exchange leads dead-lettered messages to, or a text about
// why they are not known.
func (d *derivation) deadTargets(exchange, key string, fixed bool) (to []string, missing string) {
	if exchange == "" {
		if _, there := d.queues[key]; !there {
			return nil, fmt.Sprintf("queue %q, which does not exist", key)
		}
		return []string{key}, ""
	}
	found, there := d.exchanges[exchange]
	switch {
	case !there:
		return nil, fmt.Sprintf("exchange %q, which does not exist", exchange)
	case found.Kind != "fanout" && (found.Kind != "direct" || !fixed):
		return nil, fmt.Sprintf("exchange %q, and their routing keys decide in which queue they are",
			exchange)
	}
	bindings, _ := d.manager.Bindings(exchange)
	for _, b := range bindings {
		if b.DestinationType == "queue" && (found.Kind == "fanout" || b.RoutingKey == key) {
			to = append(to, b.Destination)
		}
	}
	return to, ""
}

// peek looks at the oldest message of each queue that may keep dead letters.
func (d *derivation) peek(ctx context.Context, o *Operator) error {
	owners := map[string]*parts{} // by dead-letter queue, where a name alone tells
	queues := maps.Clone(d.unclaimed)
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
		q := d.counts(name)
		if q.Total.N == 0 || q.Consumers.N > 0 || d.mains[name] != nil {
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
		if queue, state := header.ParseDead(textOf(&messages[0])); state.Reason != "" {
			d.proven(name, queue, owners[name])
		}
	}
	return nil
}

// proven notes that a queue keeps a dead letter of a main queue. byName is the main queue whose
// letters the queue keeps by its name.
func (d *derivation) proven(name, queue string, byName *parts) {
	p := d.mains[queue]
	switch {
	case byName != nil && byName.Name == queue:
		byName.Dead[0].Evidence = ByLetter
	case byName != nil:
		d.tell(byName.Name, "the oldest message of queue %q is a dead letter of queue %q and not of "+
			"queue %q", name, queue, byName.Name)
	case !d.unclaimed[name] && !d.strandedByName[name] || p == nil:
	case isNowhere(p.Plan.Dead):
		d.claim(name)
		p.deadQueue(d, name, ByLetter)
	default:
		d.claim(name)
		p.Dead = append(p.Dead, Dead{Queue: d.counts(name), Evidence: ByLetter})
		d.tell(queue, "dead letters of queue %q are in queue %q and in queue %q: the plan has the first",
			queue, p.Plan.Dead.RoutingKey, name)
	}
}

// claim notes that a queue belongs to a main queue, and the one with its edited letters as they
// were.
func (d *derivation) claim(name string) {
	delete(d.unclaimed, name)
	delete(d.unclaimed, name+originals)
	delete(d.strandedByName, name)
}

// WithDead returns the plan of a main queue with another dead-letter queue, which the broker does
// not show as its dead-letter queue. The queue has the broker's arguments if a strategy declares
// such a queue. Otherwise it has none, as a queue of the user. An error names a queue that was not
// in the vhost when View looked, or that cannot keep dead letters.
// The plan is not validated: see topology.ValidatePlan.
func (v View) WithDead(main Main, queue string) (topology.Plan, error) {
	arguments, there := v.queues[queue]
	named := func(w Wait) bool { return w.Name == queue }
	waits := slices.ContainsFunc(v.Orphans, func(o Orphan) bool { return named(o.Wait) })
	for _, m := range v.Mains {
		waits = waits || slices.ContainsFunc(m.Waits, named)
	}
	switch {
	case !there:
		return topology.Plan{}, fmt.Errorf("vhost %q has no queue %q that could keep the dead "+
			"letters of queue %q", v.Vhost, queue, main.Name)
	case queue == main.Name:
		return topology.Plan{}, fmt.Errorf("queue %q cannot keep its own dead letters: name "+
			"its dead-letter queue", queue)
	case waits:
		return topology.Plan{}, fmt.Errorf("queue %q is a wait queue and cannot keep the dead "+
			"letters of queue %q: name its dead-letter queue", queue, main.Name)
	}
	plan := main.Plan
	before := plan.Dead.RoutingKey
	plan.Dead = topology.Route{RoutingKey: queue}
	plan.Queues = slices.DeleteFunc(slices.Clone(plan.Queues), func(q topology.Queue) bool {
		return q.Delay == 0 && (q.Name == before || q.Name == queue)
	})
	plan.Queues = append(plan.Queues, topology.Queue{
		Name: queue, Arguments: amqp.Table(arguments), Adopt: true,
	})
	return plan, nil
}

// result finishes the derivation.
func (d *derivation) result() View {
	v := View{
		Vhost: d.vhost, Mains: []Main{}, Stranded: []Queue{}, Unclaimed: []Queue{}, Brakes: []Brake{},
		Stopped: []header.BrakeState{},
		Orphans: append([]Orphan{}, d.orphans...), Unclear: []Unclear{},
	}
	for _, name := range slices.Sorted(maps.Keys(d.mains)) {
		m := d.mains[name]
		m.finish(d)
		if isNowhere(m.Plan.Dead) {
			d.tell(name, "the queue that keeps the dead letters of queue %q is unknown: there is no "+
				"queue %q, and nothing shows another", name, name+".dlq")
		}
		d.sameDelay(m)
		v.Mains = append(v.Mains, m.Main)
	}
	for _, name := range slices.Sorted(maps.Keys(d.strandedByName)) {
		d.stranded[name] = true
		d.tell("", "queue %q has the name and the arguments of a stranded queue, but no stranded "+
			"exchange %q leads into it: only its name says that its messages are stranded",
			name, name)
	}
	for _, name := range slices.Sorted(maps.Keys(d.stranded)) {
		v.Stranded = append(v.Stranded, d.counts(name))
	}
	for _, name := range slices.Sorted(maps.Keys(d.unclaimed)) {
		v.Unclaimed = append(v.Unclaimed, d.counts(name))
	}
	slices.SortFunc(v.Orphans, func(a, b Orphan) int { return strings.Compare(a.Name, b.Name) })
	v.Unclear = append(v.Unclear, d.unclear...)
	slices.Sort(d.brakes)
	for _, name := range slices.Compact(d.brakes) {
		v.Brakes = append(v.Brakes, Brake{name, d.brakeQueues(name)})
	}
	if len(v.Mains)+len(v.Orphans) > 0 {
		v.queues, v.leads = d.forDead(), d.leads()
	}
	return v
}

// brakeQueues returns the queues of a brake: the keys with which the queues of its processes are
// bound to its exchange.
func (d *derivation) brakeQueues(name string) []string {
	queues := []string{}
	bindings, _ := d.manager.Bindings(fleet.Prefix + name)
	for _, b := range bindings {
		if b.RoutingKey != "" {
			queues = append(queues, b.RoutingKey)
		}
	}
	slices.Sort(queues)
	return slices.Compact(queues)
}

// forDead returns the arguments of queues for WithDead. Queues that only keep share few different
// arguments; the arguments of others would need much memory.
func (d *derivation) forDead() map[string]management.Object {
	queues := make(map[string]management.Object, len(d.queues))
	for name, q := range d.queues {
		queues[name] = nil
		if keepsAlone(q) {
			queues[name] = q.Arguments
		}
	}
	return queues
}

// sameDelay names wait queues of one delay, of which one may be older than the other.
func (d *derivation) sameDelay(m *parts) {
	for i := 1; i < len(m.Waits); i++ {
		a, b := m.Waits[i-1], m.Waits[i]
		if a.Delay == b.Delay && !(a.Strategy == PerAttempt && b.Strategy == PerAttempt) {
			d.tell(m.Name, "wait queues %q and %q of queue %q have the same delay: "+
				"the broker does not show whether its service uses both", a.Name, b.Name, m.Name)
		}
	}
}

// isNowhere reports whether a route names neither an exchange nor a queue.
func isNowhere(r topology.Route) bool { return r.Exchange == "" && r.RoutingKey == "" }
