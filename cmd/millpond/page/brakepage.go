package page

import (
	"net/http"
	"slices"

	"github.com/millpond-go/millpond/cmd/millpond/internal/auditlog"
	"github.com/millpond-go/millpond/cmd/millpond/internal/overview"
	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology/operate"
)

// brakesView is the page of the brakes.
type brakesView struct {
	Err  string
	Rows []brakeRow
	// Bare are queues that no brake stops, and BareMore how many more there are.
	Bare     []string
	BareMore int
	// Name is the brake that the form has chosen.
	Name string
}

type brakeRow struct {
	header.BrakeState
	Queues []string
}

// brakes asks all brakes: a person who has just stopped one must see that.
func (h *Handler) brakes(w http.ResponseWriter, r *http.Request) error {
	s, err := h.seen(r.Context())
	if err != nil {
		return err
	}
	v := brakesView{Name: r.URL.Query().Get("name")}
	states := s.Vhost.Stopped
	if len(s.Vhost.Brakes) > 0 {
		var now []header.BrakeState
		operator, err := h.connected(r.Context())
		if err == nil {
			now, err = operator.Brakes(r.Context())
		}
		if err == nil {
			states = now
		} else {
			v.Err = err.Error()
		}
	}
	braked := map[string]bool{}
	for _, b := range s.Vhost.Brakes {
		row := brakeRow{header.BrakeState{Name: b.Name}, b.Queues}
		for _, state := range states {
			if state.Name == b.Name {
				row.BrakeState = state
			}
		}
		for _, queue := range b.Queues {
			braked[queue] = true
		}
		v.Rows = append(v.Rows, row)
	}
	slices.SortStableFunc(v.Rows, func(a, b brakeRow) int {
		return overview.StoppedFirst(a.BrakeState, b.BrakeState)
	})
	for _, row := range v.Rows {
		if v.Name == "" && !row.Stopped {
			v.Name = row.Name
		}
	}
	for _, m := range s.Vhost.Mains {
		if !braked[m.Name] {
			v.Bare = append(v.Bare, m.Name)
		}
	}
	v.BareMore = max(len(v.Bare)-maxUnclear, 0)
	v.Bare = v.Bare[:len(v.Bare)-v.BareMore]
	return h.show(w, r, "brakes", view{Title: "Brakes", Nav: "brakes", Data: v})
}

// onBrake checks the brake that a form names, writes the action to the audit log, and runs it.
func (h *Handler) onBrake(
	w http.ResponseWriter, r *http.Request, what, flags string,
	do func(o *operate.Operator, e *auditlog.Entry, name string) error,
) error {
	name := r.Form.Get("name")
	s, err := h.seen(r.Context())
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(s.Vhost.Brakes, func(b operate.Brake) bool { return b.Name == name }) {
		return notFound("there is no brake %q", name)
	}
	operator, err := h.connected(r.Context())
	if err != nil {
		return err
	}
	err = h.jobs.Note(visitOf(r).who.name, what, what+" "+audit.ShellWord(name)+flags,
		func(e *auditlog.Entry) error { return do(operator, e, name) })
	if err != nil {
		return actFailure(err)
	}
	h.watcher.renew()
	return h.to(w, r, "/brakes")
}

func (h *Handler) stopBrake(w http.ResponseWriter, r *http.Request) error {
	f := &formReader{Values: r.Form}
	limit, cause := f.duration("for"), f.text("cause")
	if f.err != nil {
		return f.err
	}
	flags := " --for " + audit.ShellWord(limit.String())
	if cause != "" {
		flags += " --cause " + audit.ShellWord(cause)
	}
	return h.onBrake(w, r, "brake stop", flags,
		func(o *operate.Operator, e *auditlog.Entry, name string) error {
			_, _, err := overview.StopBrake(r.Context(), o, e, name, cause, limit)
			return err
		})
}

func (h *Handler) startBrake(w http.ResponseWriter, r *http.Request) error {
	return h.onBrake(w, r, "brake start", "",
		func(o *operate.Operator, e *auditlog.Entry, name string) error {
			_, _, err := overview.StartBrake(r.Context(), o, e, name)
			return err
		})
}
