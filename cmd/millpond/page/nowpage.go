package page

import (
	"net/http"
	"slices"
	"time"

	"github.com/millpond-go/millpond/topology/operate"
)

// now is the first page.
func (h *Handler) now(w http.ResponseWriter, r *http.Request) error {
	s := h.watcher.sight(r.Context())
	return h.show(w, r, "now", view{Title: "Now", Nav: "now", Data: h.overview(s)})
}

// showNow sends the part of the page that changes to all open pages.
func (h *Handler) showNow(s *sight) { h.sendPart("now", "now-part", h.overview(s)) }

// nowView is a sight as the first page shows it.
type nowView struct {
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
	Unclear               []operate.Unclear
}

// row is a queue with the wait queues that have messages, or whose messages are not known.
type row struct {
	operate.Main
	Steps []operate.Wait
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

func (h *Handler) overview(s *sight) nowView {
	none := operate.Count{Source: operate.SourceManagement}
	o := nowView{sight: s, Now: time.Now(), Waiting: none, Dead: none}
	var mains []operate.Main
	mains, o.Trouble = s.Vhost.ByTrouble()
	for _, m := range mains {
		steps := slices.DeleteFunc(slices.Clone(m.Waits), func(w operate.Wait) bool {
			return w.Total.N == 0
		})
		o.Rows = append(o.Rows, row{m, steps})
	}
	waits, dead := distinct(s.Vhost)
	for _, w := range waits {
		o.Waiting = o.Waiting.Plus(w.Total)
	}
	for _, d := range dead {
		o.Dead = o.Dead.Plus(d.Total)
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
func distinct(v operate.View) (waits []operate.Wait, dead []operate.Dead) {
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

// More counts the steps that are not shown.
func (r row) More() int { return max(len(r.Steps)-maxSteps, 0) }

// First are the steps that are shown.
func (r row) First() []operate.Wait { return r.Steps[:min(len(r.Steps), maxSteps)] }
