package page

import (
	"bytes"
	"cmp"
	"net/http"
	"slices"
	"time"

	"github.com/millpond-go/millpond/internal/management"
	"github.com/millpond-go/millpond/topology/operate"
	"github.com/millpond-go/millpond/topology/operate/discover"
)

// now is the first page.
func (h *Handler) now(w http.ResponseWriter, r *http.Request) error {
	s := h.watcher.sight(r.Context())
	return h.show(w, r, "now", view{Title: "Now", Nav: "now", Data: h.overview(s)})
}

// showNow sends the part of the page that changes to all open pages.
func (h *Handler) showNow(s *sight) {
	var part bytes.Buffer
	if err := h.pages.ExecuteTemplate(&part, "now-part", h.overview(s)); err == nil {
		h.hub.send("now", part.Bytes())
	}
}

// overview is a sight as the first page shows it.
type overview struct {
	*sight
	Now                   time.Time
	Rows                  []row
	Trouble               int // rows in trouble
	Waiting, Dead         operate.Count
	Lost                  []lost
	Back                  back
	UnclearMore, LostMore int
	LostEmpty             int // wait queues that lead to no queue and are empty
	LostUnknown           int // queues whose messages would be lost, and whose count is not known
	Unclear               []discover.Unclear
}

// row is a queue.
type row struct {
	discover.Main
	Waiting, Dead operate.Count
	// Shared says that other queues use the same wait queues: their messages are counted, too.
	Shared  bool
	Steps   []discover.Wait
	Rates   management.Rates
	Trouble []string
}

// lost are messages without a queue to return to.
type lost struct {
	Queue    string
	Stranded bool // in a queue that keeps them; otherwise a wait queue leads nowhere
	Why      string
	Count    operate.Count
}

// maxSteps and maxUnclear bound lists of the page.
const (
	maxSteps   = 6
	maxUnclear = 20
)

func (h *Handler) overview(s *sight) overview {
	none := operate.Count{Source: operate.SourceManagement}
	o := overview{sight: s, Now: time.Now(), Waiting: none, Dead: none}
	for _, main := range s.Vhost.Mains {
		r := rowOf(main)
		r.Rates = s.Rates[main.Name]
		if len(r.Trouble) > 0 {
			o.Trouble++
		}
		o.Rows = append(o.Rows, r)
	}
	slices.SortStableFunc(o.Rows, func(a, b row) int { // by name among equal ones
		return cmp.Or(cmp.Compare(min(len(b.Trouble), 1), min(len(a.Trouble), 1)),
			cmp.Compare(b.Dead.N, a.Dead.N))
	})
	waits, dead := distinct(s.Vhost)
	for _, w := range waits {
		o.Waiting = plus(o.Waiting, w.Total)
	}
	for _, d := range dead {
		o.Dead = plus(o.Dead, d.Total)
	}
	o.Back = backOf(waits)
	for _, q := range s.Vhost.Stranded {
		switch {
		case !q.Total.Known():
			o.LostUnknown++
		case q.Total.N > 0:
			o.Lost = append(o.Lost, lost{Queue: q.Name, Stranded: true, Count: q.Total})
		}
	}
	for _, w := range s.Vhost.Orphans {
		switch {
		case !w.Total.Known():
			o.LostUnknown++
		case w.Total.N > 0:
			o.Lost = append(o.Lost, lost{Queue: w.Name, Why: w.Why, Count: w.Total})
		default:
			o.LostEmpty++
		}
	}
	if o.LostMore = len(o.Lost) - maxUnclear; o.LostMore > 0 {
		o.Lost = o.Lost[:maxUnclear]
	}
	o.Unclear = s.Vhost.Unclear
	if o.UnclearMore = len(o.Unclear) - maxUnclear; o.UnclearMore > 0 {
		o.Unclear = o.Unclear[:maxUnclear]
	}
	return o
}

// distinct returns each wait queue and each dead-letter queue once, because queues share them.
func distinct(v discover.Vhost) (waits []discover.Wait, dead []discover.Dead) {
	seen := map[string]bool{}
	for _, m := range v.Mains {
		for _, w := range m.Waits {
			if !seen[w.Name] {
				seen[w.Name], waits = true, append(waits, w)
			}
		}
		for _, d := range m.Dead {
			if !seen[d.Name] {
				seen[d.Name], dead = true, append(dead, d)
			}
		}
	}
	return waits, dead
}

func rowOf(main discover.Main) row {
	none := operate.Count{Source: operate.SourceManagement}
	r := row{Main: main, Waiting: none, Dead: none}
	held := max(main.Held.N, 0)
	for _, w := range main.Waits {
		r.Waiting = plus(r.Waiting, w.Total)
		r.Shared = r.Shared || w.Shared
		held += max(w.Held.N, 0)
		if w.Total.N != 0 {
			r.Steps = append(r.Steps, w)
		}
	}
	if main.Line != nil {
		inLine := main.Line.Total
		if inLine.N > 0 {
			inLine.N-- // the process that leads keeps a message there
		}
		r.Waiting = plus(r.Waiting, inLine)
		if inLine.N >= nearBound {
			r.Trouble = append(r.Trouble, plural(inLine.N, "message")+" in its line, which is near its "+
				"bound: see Waiting")
		}
	}
	for _, d := range main.Dead {
		r.Dead = plus(r.Dead, d.Total)
		held += max(d.Held.N, 0)
	}
	if len(main.Dead) == 0 {
		r.Dead = operate.Count{N: -1}
	}
	if r.Dead.N > 0 {
		r.Trouble = append(r.Trouble, plural(r.Dead.N, "dead letter"))
	}
	if main.Consumers.Known() && main.Consumers.N == 0 {
		r.Trouble = append(r.Trouble, "no consumer")
	}
	if held > 0 {
		r.Trouble = append(r.Trouble, plural(held, "message")+" held: their target is missing or full")
	}
	if main.PlanErr != nil {
		r.Trouble = append(r.Trouble, "a wait queue leads astray: see Verify")
	}
	return r
}

// More counts the steps that are not shown.
func (r row) More() int { return max(len(r.Steps)-maxSteps, 0) }

// First are the steps that are shown.
func (r row) First() []discover.Wait { return r.Steps[:min(len(r.Steps), maxSteps)] }

// plus adds counts. The sum with an unknown count is unknown.
func plus(a, b operate.Count) operate.Count {
	if !a.Known() || !b.Known() {
		return operate.Count{N: -1}
	}
	a.N += b.N
	return a
}
