package page

import (
	"encoding/json"
	"net/http"
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
	Range  string
	Ranges []string
	Charts [][2]string // the names and the titles of columns
}

// ranges are the times that a chart can show. More than an hour needs Prometheus.
var ranges = map[string]time.Duration{
	"1h": time.Hour, "6h": 6 * time.Hour, "1d": 24 * time.Hour, "7d": 7 * 24 * time.Hour,
	"30d": 30 * 24 * time.Hour,
}

func (h *Handler) queue(w http.ResponseWriter, r *http.Request) error {
	s, main, err := h.queueOf(r)
	if err != nil {
		return err
	}
	v := queueView{Now: time.Now(), Main: main, Range: rangeOf(r), Charts: [][2]string{
		{"dead", "Dead letters"},
		{"ready", "Ready messages"},
		{"in out", "In and out, a second"},
		{"retries", "Retries a second"},
	}}
	if h.past != nil {
		v.Ranges = []string{"1h", "6h", "1d", "7d", "30d"}
	}
	for _, i := range s.Incidents {
		if i.Concerns(main.Name) {
			v.Incidents = append(v.Incidents, i)
		}
	}
	return h.show(w, r, "queue", view{
		Title: "Queue " + oneLine(100, main.Name), Nav: "now", Data: v,
	})
}

// queueOf returns the last sight, and the queue that a request names.
func (h *Handler) queueOf(r *http.Request) (s *sight, main operate.Main, err error) {
	if s, err = h.seen(r.Context()); err == nil {
		main, err = s.main(r.URL.Query().Get(queueName))
	}
	return s, main, err
}

func rangeOf(r *http.Request) string {
	if name := r.URL.Query().Get("range"); ranges[name] != 0 {
		return name
	}
	return "1h"
}

// chart answers the points of a queue as JSON.
func (h *Handler) chart(w http.ResponseWriter, r *http.Request) error {
	_, main, err := h.queueOf(r)
	if err != nil {
		return err
	}
	answer := struct {
		history.Chart
		Note string `json:"note,omitempty"`
	}{}
	now, long := time.Now(), ranges[rangeOf(r)]
	if h.past != nil && long > time.Hour {
		names := history.Names{Vhost: h.vhost, Queue: main.Name}
		for _, d := range main.Dead {
			names.Dead = append(names.Dead, d.Name)
		}
		if answer.Chart, err = h.past.Chart(r.Context(), names, now, long); err != nil {
			answer.Note = oneLine(300, err.Error()) + ". This is the last hour, as the page has seen it."
		}
	}
	if len(answer.Times) == 0 {
		answer.Chart = h.history.Chart(main.Name, now)
	}
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(answer)
}
