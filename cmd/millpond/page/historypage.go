package page

import (
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/millpond-go/millpond/cmd/millpond/internal/history"
	"github.com/millpond-go/millpond/topology/operate"
)

// queueView is the page of a queue over time.
type queueView struct {
	Now       time.Time
	Main      operate.Main
	Incidents []operate.Incident
	// Range is the time of the charts, of Ranges.
	Range  time.Duration
	Ranges []time.Duration
	Charts [][2]string // the names and the titles of columns
}

// ranges returns the times that charts can show, and the one that a request has chosen. More than
// an hour needs Prometheus, and one queue.
func (h *Handler) ranges(r *http.Request) (all []time.Duration, chosen time.Duration) {
	all = []time.Duration{10 * time.Minute, time.Hour}
	if h.past != nil && r.URL.Query().Get(queueName) != history.All {
		const day = 24 * time.Hour
		all = append(all, 6*time.Hour, day, 7*day, 30*day)
	}
	chosen, _ = time.ParseDuration(r.URL.Query().Get("range"))
	if !slices.Contains(all, chosen) {
		chosen = time.Hour
	}
	return all, chosen
}

func (h *Handler) queue(w http.ResponseWriter, r *http.Request) error {
	s, main, err := h.queueOf(r)
	if err != nil {
		return err
	}
	title := "All queues"
	if main.Name != history.All {
		title = "Queue " + oneLine(100, main.Name)
	}
	v := queueView{Now: time.Now(), Main: main, Charts: [][2]string{
		{"dead", "Dead letters"},
		{"ready", "Ready messages"},
		{"in out", "In and out, a second"},
		{"retries", "Retries a second"},
	}}
	v.Ranges, v.Range = h.ranges(r)
	for _, i := range s.Incidents {
		if main.Name != history.All && i.Concerns(main.Name) {
			v.Incidents = append(v.Incidents, i)
		}
	}
	return h.show(w, r, "queue", view{Title: title, Nav: "now", Data: v})
}

// queueOf returns the last sight, and the queue that a request names, or history.All.
func (h *Handler) queueOf(r *http.Request) (s *sight, main operate.Main, err error) {
	name := r.URL.Query().Get(queueName)
	if s, err = h.seen(r.Context()); err == nil && name != history.All {
		main, err = s.main(name)
	}
	return s, main, err
}

// chart answers the points of a queue as JSON.
func (h *Handler) chart(w http.ResponseWriter, r *http.Request) error {
	_, main, err := h.queueOf(r)
	if err != nil {
		return err
	}
	now := time.Now()
	answer := struct {
		history.Chart
		Note string `json:"note,omitempty"`
	}{Chart: h.history.Chart(main.Name, now)}
	if _, long := h.ranges(r); long > time.Hour {
		names := history.Names{Vhost: h.vhost, Queue: main.Name}
		for _, d := range main.Dead {
			names.Dead = append(names.Dead, d.Name)
		}
		if past, err := h.past.Chart(r.Context(), names, now, long); err == nil {
			answer.Chart = past
		} else {
			answer.Note = oneLine(300, err.Error()) + ". This is the last hour, as the page has seen it."
		}
	}
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(answer)
}
