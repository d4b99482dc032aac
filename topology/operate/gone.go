package operate

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/topology"
)

// Gone are messages that wait for a queue that does not exist.
type Gone struct {
	// Queue is the name of the queue; OtherQueues after the first twenty.
	Queue string
	// Messages counts them. First is when the first of them returns; zero where no header says.
	Messages int
	First    time.Time `json:",omitzero"`
	// Fate is what becomes of them if the queue does not exist then: the worst, where it differs.
	Fate Fate
}

// Fate is what becomes of a message that waits if its queue does not exist when its wait is over.
type Fate string

const (
	// FateStranded: the message goes to a stranded queue.
	FateStranded Fate = "stranded"
	// FateHeld: the message stays in its wait queue, a quorum queue, until the queue exists again.
	FateHeld Fate = "held"
	// FateLost: its wait queue, a classic queue, drops the message.
	FateLost Fate = "lost"
)

// fates are the fates, the best first.
var fates = []Fate{FateStranded, FateHeld, FateLost}

// String returns a sentence: the messages that wait, the time of the first return in UTC, and the
// way out.
func (g Gone) String() string {
	first := "no header says when the first returns"
	if !g.First.IsZero() {
		first = "the first returns at " + timeText(g.First)
	}
	return fmt.Sprintf("%s for queue %q, which is gone: %s; %s",
		plural(g.Messages, "message")+map[bool]string{true: " waits", false: " wait"}[g.Messages == 1],
		g.Queue, first, map[Fate]string{
			FateStranded: "start its service before, which declares the queue; later, millpond stranded " +
				"return moves them, and --to names another queue",
			FateHeld: "start its service, which declares the queue; until then they stay in their wait " +
				"queue",
			FateLost: "start its service before, which declares the queue; otherwise the classic wait " +
				"queue LOSES them",
		}[g.Fate])
}

// GoneOf returns the messages whose queue did not exist when the View looked, by the time of the
// first. waiters are those of Operator.Waiting with a plan of the vhost, as Waits returns it.
func (v View) GoneOf(waiters []Waiter) []Gone {
	found := map[string]*Gone{}
	var names []string
	for _, w := range waiters {
		name := cmp.Or(w.Queue, v.leads[w.WaitQueue].gone)
		if _, there := v.queues[name]; there || name == "" {
			continue
		}
		if found[name] == nil && len(names) >= maxCounts {
			name = OtherQueues // any publisher may have written the names
		}
		g := found[name]
		if g == nil {
			g = &Gone{Queue: name, First: w.Due, Fate: FateStranded}
			found[name], names = g, append(names, name)
		}
		g.Messages++
		if g.First.IsZero() || !w.Due.IsZero() && w.Due.Before(g.First) {
			g.First = w.Due
		}
		fate := v.leads[w.WaitQueue].fate
		if slices.Index(fates, fate) > slices.Index(fates, g.Fate) {
			g.Fate = fate
		}
	}
	list := make([]Gone, 0, len(names))
	for _, name := range names {
		list = append(list, *found[name])
	}
	slices.SortStableFunc(list, func(a, b Gone) int { return a.First.Compare(b.First) })
	return list
}

// Announces reports whether Gone has the queue that the messages of an orphan wait for.
func (v View) Announces(o Orphan) bool {
	return slices.ContainsFunc(v.Gone, func(g Gone) bool { return g.Queue == o.For })
}

// lead is what a View knows of the end of a wait in a wait queue.
type lead struct {
	fate Fate   // of a message whose queue does not exist
	gone string // the queue that all its messages return to, if that does not exist
}

// leads returns where the waits of all wait queues end.
func (d *derivation) leads() map[string]lead {
	leads := make(map[string]lead, len(d.waits))
	for _, w := range d.waits {
		l := lead{fate: FateHeld}
		switch {
		case w.exchange != "" && d.alternate(w.exchange) != "":
			l.fate = FateStranded
		case d.queues[w.name].Type == audit.Classic:
			l.fate = FateLost
		}
		leads[w.name] = l
	}
	for _, o := range d.orphans {
		leads[o.Name] = lead{leads[o.Name].fate, o.For}
	}
	return leads
}

// shortWait is over before a person has read of it: then the message is stranded, and is counted.
const shortWait = time.Minute

// hidden returns a plan with the wait queues that may have messages for a queue that is gone: those
// that lead to no queue, and those whose messages alone say to which. Counts do not show it.
func (v View) hidden() (plan topology.Plan) {
	ask := map[string]bool{}
	note := func(w Wait) {
		ask[w.Name] = w.Delay >= shortWait && w.Total.N != 0 &&
			w.Strategy != PerQueue && w.Strategy != PerAttempt
	}
	for _, m := range v.Mains {
		for _, w := range m.Waits {
			note(w)
		}
	}
	for _, o := range v.Orphans {
		note(o.Wait)
	}
	plan = v.Waits()
	plan.Queues = slices.DeleteFunc(plan.Queues, func(q topology.Queue) bool { return !ask[q.Name] })
	return plan
}

// lookBehind looks at what counts do not show, or takes it over from another View. Queues that are
// slow or do not answer cost half of the time of ctx at most, so that all else is shown.
func (v *View) lookBehind(ctx context.Context, o *Operator, options ViewOptions) {
	if limit, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(limit)/2)
		defer cancel()
	}
	last := options.Last
	if last == nil {
		last = new(View)
	}
	plan := v.hidden()
	if v.asked = maps.Clone(last.asked); v.asked == nil {
		v.asked = map[string]bool{}
	}
	if options.Trouble {
		var waiters []Waiter
		waiters, v.hiddenErr = o.Waiting(ctx, plan, Filter{})
		v.Gone, v.Looked = v.GoneOf(waiters), time.Now()
		for _, q := range plan.Queues {
			v.asked[q.Name] = true
		}
	} else {
		v.Looked, v.hiddenErr = last.Looked, last.hiddenErr
		if slices.ContainsFunc(plan.Queues, func(q topology.Queue) bool { return !v.asked[q.Name] }) {
			v.Looked = time.Time{} // its first messages have come since, or were not counted yet
		}
		v.Gone = slices.DeleteFunc(slices.Clone(last.Gone), func(g Gone) bool {
			_, back := v.queues[g.Queue]
			return back
		})
	}
	v.unread("", "all messages that wait for a queue that is gone", v.hiddenErr)
	for i := range v.Mains {
		m := &v.Mains[i]
		before, _ := last.Main(m.Name)
		switch {
		case m.Line == nil || m.InLine().N == 0:
		case options.Keys:
			v.readKeys(ctx, o, m)
		default:
			m.Keys = before.Keys
		}
	}
}

// readKeys reads the keys of a queue that is handled in order.
func (v *View) readKeys(ctx context.Context, o *Operator, m *Main) {
	keys, err := o.Order(ctx, m.Plan)
	if v.unread(m.Name, "the keys", err); err == nil {
		m.Keys = &keys
	}
}

func timeText(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }
