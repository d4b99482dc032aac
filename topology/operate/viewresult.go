package operate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/management"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// result finishes the derivation.
func (d *derivation) result() View {
	v := View{
		Vhost: d.vhost, Mains: []Main{}, Stranded: []Queue{}, Unclaimed: []Queue{}, Brakes: []string{},
		Stopped: []header.BrakeState{},
		Orphans: append([]Orphan{}, d.orphans...), Unclear: []Unclear{},
	}
	for _, name := range slices.Sorted(maps.Keys(d.mains)) {
		m := d.mains[name]
		d.parts[name].finish(d)
		for i := range m.Dead {
			m.Dead[i].Oldest = d.oldest[m.Dead[i].Name]
		}
		if isNowhere(m.Plan.Dead) {
			d.tell(name, "the queue that keeps the dead letters of queue %q is unknown: there is no "+
				"queue %q, and nothing shows another", name, name+".dlq")
		}
		d.sameDelay(m)
		v.Mains = append(v.Mains, *m)
	}
	for _, name := range slices.Sorted(maps.Keys(d.strandedByName)) {
		d.stranded[name] = true
		d.tell("", "queue %q has the name and the arguments of a stranded queue, but no stranded "+
			"exchange %q leads into it: only its name says that its messages are stranded",
			name, name)
	}
	for _, name := range slices.Sorted(maps.Keys(d.stranded)) {
		v.Stranded = append(v.Stranded, d.kept(name))
	}
	for _, name := range slices.Sorted(maps.Keys(d.unclaimed)) {
		v.Unclaimed = append(v.Unclaimed, d.kept(name))
	}
	slices.SortFunc(v.Orphans, func(a, b Orphan) int { return strings.Compare(a.Name, b.Name) })
	d.underPolicies()
	v.Unclear = append(v.Unclear, d.unclear...)
	slices.Sort(d.brakes)
	v.Brakes = append(v.Brakes, slices.Compact(d.brakes)...)
	if len(v.Mains) > 0 {
		v.queues = d.forDead()
	}
	return v
}

// forDead returns the arguments of queues for WithDead. Queues that only keep share few different
// arguments; the arguments of others would need much memory.
func (d *derivation) forDead() map[string]management.Object {
	queues := make(map[string]management.Object, len(d.queues))
	for name, q := range d.queues {
		queues[name] = nil
		if keepsAlone(q) {
			queues[name] = q.arguments
		}
	}
	return queues
}

// kept returns a queue that keeps messages.
func (d *derivation) kept(name string) Queue {
	q := d.counts(name)
	q.Oldest = d.oldest[name]
	return q
}

// sameDelay names wait queues of one delay, of which one may be older than the other.
func (d *derivation) sameDelay(m *Main) {
	for i := 1; i < len(m.Waits); i++ {
		a, b := m.Waits[i-1], m.Waits[i]
		if a.Delay == b.Delay && !(a.Strategy == PerAttempt && b.Strategy == PerAttempt) {
			d.tell(m.Name, "wait queues %q and %q of queue %q have the same delay: "+
				"the broker does not show whether its service uses both", a.Name, b.Name, m.Name)
		}
	}
}

// underPolicies names policies under which wait queues do not do as their arguments say: a policy
// that shortens their delay, or leads their messages elsewhere (F36).
func (d *derivation) underPolicies() {
	set := d.manager.Policies()
	if set == nil || len(set.User)+len(set.Operator) == 0 {
		return
	}
	under, unreadable := map[string][]string{}, map[string]string{}
	for _, w := range d.waits {
		applied := set.Of(w.name, string(d.queues[w.name].kind))
		for _, r := range applied.Rules {
			about := fmt.Sprintf("%s sets %s to %v", r.Source, r.Key, r.Value)
			ttl, _ := audit.WholeNumber(r.Value)
			switch {
			case r.Key == "message-ttl" && ttl < w.delay.Milliseconds():
				about += ", so that messages return earlier than the wait queue says"
			case r.Key == "dead-letter-routing-key" && !w.fixed:
				about += ", so that messages may return to another queue than the bindings show"
			default:
				continue
			}
			under[about] = append(under[about], w.name)
		}
		for _, r := range applied.Unreadable {
			unreadable[r.Source] = r.Policy.Pattern
		}
	}
	for _, about := range slices.Sorted(maps.Keys(under)) {
		queues := under[about]
		d.tell("", "%s: wait queue %q and %d others", about, queues[0], len(queues)-1)
	}
	for _, source := range slices.Sorted(maps.Keys(unreadable)) {
		d.tell("", "whether %s applies to wait queues cannot be told: its pattern %q means nothing to "+
			"Go's regexp", source, unreadable[source])
	}
}

// isNowhere reports whether a route names neither an exchange nor a queue.
func isNowhere(r topology.Route) bool { return r.Exchange == "" && r.RoutingKey == "" }
