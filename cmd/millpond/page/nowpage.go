package page

import (
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/millpond-go/millpond/cmd/millpond/internal/overview"
	"github.com/millpond-go/millpond/topology/operate"
)

// now is the first page.
func (h *Handler) now(w http.ResponseWriter, r *http.Request) error {
	data := h.overview(h.watcher.sight(r.Context()), r.URL.Query().Get("q"))
	data.MayAct = h.mayAct(visitOf(r).who)
	return h.show(w, r, "now", view{Title: "Now", Nav: "now", Data: data})
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
	// List are the first incidents, and More the others.
	List []incident
	More int
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
	Word, Link, To string
	// Button begins Do: an address, or the one of a form if Post is set. Act says that it is for those
	// who may act.
	Button, Do string
	Post, Act  bool
}

// queueRow is a queue with its last hour.
type queueRow struct {
	overview.Row
	Spark template.HTML
}

const (
	// maxUnclear bounds lists of the page, maxIncidents and maxRows those of Now.
	maxUnclear   = 20
	maxIncidents = 50
	maxRows      = 100
	// sparkBins are the columns of a small chart.
	sparkBins = 30
)

func (h *Handler) overview(s *sight, query string) nowView {
	o := nowView{sight: s, Now: time.Now(), Query: strings.TrimSpace(query)}
	for _, i := range s.Incidents[:min(len(s.Incidents), maxIncidents)] {
		o.List = append(o.List, h.incident(i))
	}
	o.More = len(s.Incidents) - len(o.List)
	rows, _ := overview.Rows(s.Vhost, s.Incidents)
	part := strings.ToLower(o.Query)
	rows = slices.DeleteFunc(rows, func(r overview.Row) bool {
		return !strings.Contains(strings.ToLower(r.Name), part)
	})
	o.Matching = len(rows)
	for _, r := range rows[:min(len(rows), maxRows)] {
		o.Rows = append(o.Rows, queueRow{r, hourly(h.history.Dead(r.Name, sparkBins, o.Now))})
	}
	o.Unclear = s.Vhost.Unclear[:min(len(s.Vhost.Unclear), maxUnclear)]
	o.UnclearMore = len(s.Vhost.Unclear) - len(o.Unclear)
	return o
}

// urgencies are words beside the colours.
var urgencies = []string{
	"", "in danger", "not consumed", "off the way", "blocked", "growing", "stopped", "not urgent",
}

func (h *Handler) incident(i operate.Incident) incident {
	n := incident{Incident: i, Word: urgencies[i.Urgency]}
	query := "?" + url.Values{"queue": {i.Queue}}.Encode()
	switch i.Kind {
	case operate.IncidentGone:
		n.Link, n.To = "Waiting", "/waiting"
		n.Button, n.Do, n.Post = "Look at all that wait", "/waiting/look", true
	case operate.IncidentUnconsumed:
		n.Link, n.To = "Its last hour", "/queue"+query
	case operate.IncidentStranded:
		n.Link, n.To = "Stranded", "/stranded"+query
		n.Button, n.Do, n.Act = "Return …", "/act"+query, true
	case operate.IncidentBlocked, operate.IncidentLine:
		n.Link, n.To = "Its keys", "/waiting"+query
		n.Button, n.Do, n.Post = "Look at the keys", "/order/look"+query, true
	case operate.IncidentDead:
		n.Link, n.To = "Causes", "/dead"+query
		n.Button, n.Do, n.Act = "Replay …", "/act"+query, true
	case operate.IncidentBrake:
		n.Link, n.To = "Brakes", "/brakes"
		n.Button, n.Do = "Start", "/brakes/start?"+url.Values{"name": {i.Brake}}.Encode()
		n.Post, n.Act = true, true
	case operate.IncidentUnknown:
		n.Link, n.To = "Verify", "/verify"+query
	default: // of a policy, held or astray
		if n.Link, n.To = "Stranded", "/stranded"; h.isMain(i.Queue) {
			n.Link, n.To = "Verify", "/verify"+query
			n.Button, n.Do, n.Post = "Verify now", "/verify/look"+query, true
		}
	}
	return n
}

func (h *Handler) isMain(queue string) bool {
	_, is := h.watcher.lastSight().Vhost.Main(queue)
	return is
}

// hourly draws the dead letters of an hour as a small chart; nothing where there were none.
func hourly(bins []int) template.HTML {
	const step, height = 3, 20
	most := slices.Max(bins)
	if most <= 0 {
		return ""
	}
	var path strings.Builder
	down := true // the pen is off the ground
	first := 0
	for i, n := range bins {
		if n < 0 {
			continue
		}
		if down {
			down, first = false, n
			fmt.Fprintf(&path, "M%d %d", i*step, height)
		}
		fmt.Fprintf(&path, "V%dh%d", height-n*(height-1)/most, step)
	}
	label := fmt.Sprintf("dead letters in the last hour: from %s to %s, at most %s", digits(first),
		digits(bins[len(bins)-1]), digits(most))
	return template.HTML(fmt.Sprintf(`<svg class="hour" viewBox="0 0 %d %d" role="img" `+
		`aria-label="%s"><path d="%sV%dZ"/></svg>`, step*len(bins), height, label, path.String(), height))
}
