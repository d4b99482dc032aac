package discover

import (
	"maps"
	"slices"
	"strings"

	"github.com/millpond-go/millpond/topology"
)

// result finishes the derivation.
func (d *derivation) result() Vhost {
	v := Vhost{Name: d.vhost}
	for _, name := range slices.Sorted(maps.Keys(d.mains)) {
		d.parts[name].finish(d)
		v.Mains = append(v.Mains, *d.mains[name])
	}
	for _, name := range slices.Sorted(maps.Keys(d.stranded)) {
		v.Stranded = append(v.Stranded, d.counts(name))
	}
	v.Orphans = d.orphans
	slices.SortFunc(v.Orphans, func(a, b Orphan) int { return strings.Compare(a.Name, b.Name) })
	v.Unclear = d.unclear
	return v
}

// dead finds the dead-letter queues of the main queues.
func (d *derivation) dead() {
	for _, name := range slices.Sorted(maps.Keys(d.mains)) {
		m, p := d.main(name)
		usual := name + ".dlq"
		if _, there := d.queues[usual]; there && d.byName[usual] == nil {
			p.deadQueue(d, usual, ByName)
		}
		if m.Plan.Dead == (topology.Route{}) {
			d.tell(name, "the queue that keeps the dead letters of queue %q is unknown: there is no "+
				"queue %q, and the broker shows no other", name, usual)
		}
	}
}

// deadQueue adds the queue that dead letters are published to.
func (p *parts) deadQueue(d *derivation, name string, evidence Evidence) {
	p.main.Dead = append(p.main.Dead, Dead{Queue: d.counts(name), Evidence: evidence})
	p.main.Plan.Dead = topology.Route{RoutingKey: name}
	p.keep(d, name)
}
