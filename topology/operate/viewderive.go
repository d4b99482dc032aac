package operate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// derivation turns the answers of the management API into the result.
type derivation struct {
	*seen
	waits               []*waitQueue
	byName              map[string]*waitQueue
	placed              map[string]bool // wait queues of which it is known where they lead
	mains               map[string]*Main
	parts               map[string]*parts
	stranded, unclaimed map[string]bool
	strandedByName      map[string]bool      // no exchange shows it
	oldest              map[string]time.Time // by queue
	orphans             []Orphan
	tables              map[any]amqp.Table // see tableOf
}

func (s *seen) derive() *derivation {
	d := &derivation{
		seen: s, waits: s.waitQueues(), byName: map[string]*waitQueue{}, placed: map[string]bool{},
		mains: map[string]*Main{}, parts: map[string]*parts{}, stranded: map[string]bool{},
		oldest: map[string]time.Time{}, tables: map[any]amqp.Table{},
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
	m, p := d.main(last.key)
	for _, b := range d.into[w.name] {
		if d.exchanges[b.Exchange].Kind == "direct" {
			route, strategy = topology.Route{Exchange: b.Exchange, RoutingKey: b.RoutingKey}, PerAttempt
			route.Attempt = attemptOf(m.Name, w)
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
		d.tell(p.main.Name, "no exchange that leads into wait queue %q was found: it is looked for "+
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
		_, p := d.main(name)
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
		m, p := d.main(name)
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
				d.tell(m.Name, "wait queue %q leads by exchange %q to %d queues, and its name is not of a "+
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
func isLine(q queue) bool {
	return keepsAlone(q) && q.arguments["x-single-active-consumer"] == true
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
		m, _ := d.main(of)
		line := d.counts(name)
		m.Line, m.Plan.Line = &line, name
	}
}
