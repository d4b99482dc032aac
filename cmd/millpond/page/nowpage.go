package page

import (
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/millpond-go/millpond/topology/operate"
)

// now is the first page.
func (h *Handler) now(w http.ResponseWriter, r *http.Request) error {
	data := h.overview(h.watcher.sight(r.Context()), r.URL.Query().Get("q"))
	data.MayAct = h.mayAct(visitOf(r).who)
	return h.show(w, r, "now", view{
		Title: "Now", Nav: "now", Data: data, Count: len(data.Incidents),
	})
}

// showNow sends the parts of the page that change to all open pages.
func (h *Handler) showNow(s *sight) {
	data := h.overview(s, "")
	h.sendPart("now", "now-part", data)
	h.sendPart("queues", "queues-part", data)
	if data.MayAct = h.config.AllowActions; data.MayAct {
		h.sendPart("now-act", "now-part", data)
	}
}

// nowView is a sight as the first page shows it.
type nowView struct {
	*sight
	Now time.Time
	// MayAct decides about buttons. A part of the page is the same for all who may act.
	MayAct bool
	// List are the first incidents, Calm those that are not urgent, and More counts the others.
	List, Calm []incident
	More       int
	// Rows are the first of the Matching queues, whose names have Query in them.
	Query       string
	Rows        []queueRow
	Matching    int
	Unclear     []operate.Unclear
	UnclearMore int
}

// incident is an incident with the ways to more.
type incident struct {
	operate.Incident
	way
	Word  string
	Query url.Values
}

// Address adds the query to a path.
func (i incident) Address(path string) template.URL {
	if len(i.Query) > 0 {
		path += "?" + i.Query.Encode()
	}
	return template.URL(path)
}

// way is a link from an incident, and a button, whose form is posted if Post is set. Act says that
// it is for those who may act.
type way struct {
	Link, To, Button, Do string
	Post, Act            bool
}

// ways are those of the kinds of incidents. Others lead to Verify.
var ways = map[operate.IncidentKind]way{
	operate.IncidentGone:       {"Waiting", "/waiting", "Look at them", "/waiting/look", true, false},
	operate.IncidentUnconsumed: {"Waiting", "/waiting", "Its last hour", "/queue", false, false},
	operate.IncidentStranded:   {"Stranded", "/stranded", "Return …", "/stranded/look", true, true},
	operate.IncidentBlocked:    {"Its keys", "/waiting", "Look at them", "/order/look", true, false},
	operate.IncidentLine:       {"Its keys", "/waiting", "Look at them", "/order/look", true, false},
	operate.IncidentDead:       {"Causes", "/dead", "Replay …", "/dead/look", true, true},
	operate.IncidentBrake:      {"Brakes", "/brakes", "Start consuming", "/brakes/start", true, true},
	operate.IncidentUnknown:    {"Verify", "/verify", "Verify now", "/verify/look", true, false},
}

// wayOf returns the way of an incident, and the query of its addresses.
func (s *sight) wayOf(i operate.Incident) (w way, query url.Values) {
	w, known := ways[i.Kind]
	_, main := s.Vhost.Main(i.Queue)
	switch {
	case i.Kind == operate.IncidentGone:
		return w, nil
	case i.Brake != "":
		return w, url.Values{"name": {i.Brake}}
	case !known && !main: // a wait queue that leads nowhere
		return way{"Stranded", "/stranded", "Verify", "/verify", false, false}, nil
	case !known:
		w = ways[operate.IncidentUnknown]
	}
	return w, url.Values{"queue": {i.Queue}}
}

// queueRow is a queue with its last hour.
type queueRow struct {
	operate.Main
	Incidents []operate.Incident
	Spark     template.HTML
}

// Urgency is the one of its most urgent incident; 0 without any.
func (r queueRow) Urgency() int {
	if len(r.Incidents) == 0 {
		return 0
	}
	return r.Incidents[0].Urgency
}

const (
	// maxUnclear bounds lists of the page, maxIncidents and maxRows those of Now.
	maxUnclear   = 20
	maxIncidents = 50
	maxRows      = 100
)

func (h *Handler) overview(s *sight, query string) nowView {
	o := nowView{sight: s, Now: time.Now(), Query: strings.TrimSpace(query)}
	for _, i := range s.Incidents[:min(len(s.Incidents), maxIncidents)] {
		w, query := s.wayOf(i)
		list := &o.List
		if i.Urgency == calm {
			list = &o.Calm
		}
		*list = append(*list, incident{i, w, urgencies[i.Urgency], query})
	}
	o.More = len(s.Incidents) - len(o.List) - len(o.Calm)
	rows, of := s.Vhost.ByUrgency(s.Incidents)
	part := strings.ToLower(o.Query)
	rows = slices.DeleteFunc(rows, func(m operate.Main) bool {
		return !strings.Contains(strings.ToLower(m.Name), part)
	})
	o.Matching = len(rows)
	for _, m := range rows[:min(len(rows), maxRows)] {
		row := queueRow{Main: m, Incidents: of[m.Name]}
		hour := h.history.Dead(m.Name, bins, o.Now)
		if most := slices.Max(hour); most > 0 {
			row.Spark = sparkline(hour, "dead letters in the last hour, at most "+digits(most))
		}
		o.Rows = append(o.Rows, row)
	}
	o.Unclear = s.Vhost.Unclear[:min(len(s.Vhost.Unclear), maxUnclear)]
	o.UnclearMore = len(s.Vhost.Unclear) - len(o.Unclear)
	return o
}

// calm is the last of the urgencies, which are words beside the colours.
const calm = 7

var urgencies = []string{
	"", "in danger", "not consumed", "stuck", "blocked", "growing", "stopped", "not urgent",
}
