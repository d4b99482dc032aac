package page

import (
	"net/http"
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
	Rows                  []operate.Main
	Trouble               int // rows in trouble
	Waiting, Dead         operate.Count
	Lost                  []lost
	UnclearMore, LostMore int
	LostEmpty             int // wait queues that lead to no queue and are empty
	LostUnknown           int // queues whose messages would be lost, and whose count is not known
	Unclear               []operate.Unclear
}

// lost are messages without a queue to return to.
type lost struct {
	Queue    string
	Stranded bool // in a queue that keeps them; otherwise a wait queue leads nowhere
	Why      string
	Count    operate.Count
}

// maxUnclear bounds lists of the page.
const maxUnclear = 20

func (h *Handler) overview(s *sight) nowView {
	none := operate.Count{Source: operate.SourceManagement}
	o := nowView{sight: s, Now: time.Now(), Waiting: none, Dead: none}
	o.Rows, o.Trouble = s.Vhost.ByTrouble()
	seen := map[string]bool{}
	once := func(sum *operate.Count, q operate.Queue) { // queues share them
		if !seen[q.Name] {
			seen[q.Name], *sum = true, sum.Plus(q.Total)
		}
	}
	for _, m := range o.Rows {
		for _, w := range m.Waits {
			once(&o.Waiting, w.Queue)
		}
		if m.Line != nil {
			o.Waiting = o.Waiting.Plus(m.InLine())
		}
		for _, d := range m.Dead {
			once(&o.Dead, d.Queue)
		}
	}
	for _, q := range s.Vhost.Stranded {
		switch {
		case !q.Total.Known():
			o.LostUnknown++
		case q.Total.N > 0:
			o.Lost = append(o.Lost, lost{Queue: q.Name, Stranded: true, Count: q.Total})
		}
	}
	for _, w := range s.Vhost.Orphans {
		once(&o.Waiting, w.Queue)
		switch {
		case s.Vhost.Announces(w):
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
