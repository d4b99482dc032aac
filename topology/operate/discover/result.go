package discover

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millpond-go/millpond/topology"
)

// result finishes the derivation.
func (d *derivation) result() Vhost {
	v := Vhost{Name: d.vhost}
	listed := false
	for _, name := range slices.Sorted(maps.Keys(d.mains)) {
		m := d.mains[name]
		d.parts[name].finish(d)
		for i := range m.Dead {
			m.Dead[i].Oldest = d.oldest[m.Dead[i].Name]
		}
		if m.Plan.Dead == (topology.Route{}) {
			d.tell(name, "the queue that keeps the dead letters of queue %q is unknown: there is no "+
				"queue %q, and nothing shows another", name, name+".dlq")
		}
		d.sameDelay(m)
		listed = listed || m.Plan.Levels == nil
		v.Mains = append(v.Mains, *m)
	}
	for _, name := range slices.Sorted(maps.Keys(d.stranded)) {
		v.Stranded = append(v.Stranded, d.kept(name))
	}
	for _, name := range slices.Sorted(maps.Keys(d.unclaimed)) {
		v.Unclaimed = append(v.Unclaimed, d.kept(name))
	}
	v.Orphans = d.orphans
	slices.SortFunc(v.Orphans, func(a, b Orphan) int { return strings.Compare(a.Name, b.Name) })
	d.underPolicies()
	if listed {
		d.tell("", "the broker does not show which wait queues belong to the policy that a service has "+
			"today: all wait queues that lead to a queue are listed")
	}
	v.Unclear = d.unclear
	return v
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

// underPolicies names policies under which a wait queue does not do what its arguments say.
func (d *derivation) underPolicies() {
	if d.policies == nil || len(d.policies.User)+len(d.policies.Operator) == 0 {
		return
	}
	effects := map[string]string{
		"message-ttl": "so that its messages may return earlier than after %v",
		"dead-letter-routing-key": "so that its messages may go to another queue than the broker's " +
			"bindings show (F36)",
	}
	said := map[string]bool{}
	for _, w := range d.waits {
		applied := d.policies.Of(w.name, string(d.queues[w.name].kind))
		for _, r := range applied.Rules {
			effect, matters := effects[r.Key]
			switch {
			case !matters || r.Key == "dead-letter-routing-key" && w.fixed:
				continue
			case r.Key == "message-ttl":
				effect = fmt.Sprintf(effect, w.delay)
			}
			d.tell("", "%s sets %s to %v on wait queue %q, %s", r.Source, r.Key, r.Value, w.name, effect)
		}
		for _, r := range applied.Unreadable {
			if !said[r.Source] {
				said[r.Source] = true
				d.tell("", "whether %s applies to wait queues cannot be told: its pattern %q means "+
					"nothing to Go's regexp", r.Source, r.Policy.Pattern)
			}
		}
	}
}
