package page

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/millpond-go/millpond/cmd/millpond/internal/auditlog"
	"github.com/millpond-go/millpond/cmd/millpond/page/internal/job"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// maxEdit is the most bytes of a form with an edited payload.
const maxEdit = 4 << 20

// actionRoutes are the pages and forms that change queues. Without Config.AllowActions there are
// none.
func (h *Handler) actionRoutes() []route {
	if !h.config.AllowActions {
		return nil
	}
	return []route{
		{pattern: "GET /actions", role: RoleRead, serve: h.actionsPage},
		{pattern: "GET /action", role: RoleRead, serve: h.actionPage},
		{pattern: "POST /edit", role: RoleAct, serve: h.beginEdit},
		{pattern: "GET /edit", role: RoleAct, serve: h.editPage},
		{pattern: "GET /rehearsal", role: RoleRead, serve: h.rehearsalPage},
		{pattern: "POST /action/rehearse", role: RoleAct, serve: h.rehearse, most: maxEdit},
		{pattern: "POST /action/start", role: RoleAct, serve: h.start},
		{pattern: "POST /action/stop", role: RoleAct, serve: h.stop},
		{pattern: "POST /action/resume", role: RoleAct, serve: h.resume},
		{pattern: "POST /brakes/stop", role: RoleAct, serve: h.stopBrake},
		{pattern: "POST /brakes/start", role: RoleAct, serve: h.startBrake},
	}
}

// openJobs opens the Manager and shows its actions on all pages.
func (h *Handler) openJobs() error {
	if !h.config.AllowActions {
		return nil
	}
	var err error
	h.jobs, err = job.Open(job.Options{
		Operator: func(ctx context.Context) (*operate.Operator, error) {
			h.behind.Lock() // not while a look has the messages
			defer h.behind.Unlock()
			return h.connected(ctx)
		},
		Plan: h.planOf, Folder: h.config.StateFolder, Audit: h.config.AuditFile,
	})
	if err != nil {
		return err
	}
	h.showing.Go(func() {
		for h.ctx.Err() == nil {
			h.showJobs()
			select {
			case <-h.jobs.Changed():
			case <-h.ctx.Done():
			}
		}
	})
	return nil
}

// back is the address of the messages of an action.
func back(r job.Request) template.URL {
	path := "/dead"
	switch r.Kind {
	case job.Return:
		path = "/stranded"
	case job.Release, job.Cancel, job.ReleaseKey, job.ReplayKey:
		path = "/waiting"
	}
	return template.URL(path + "?" + url.Values{queueName: {r.Queue}}.Encode())
}

// movedSince reports whether an action has moved messages of a queue since a look.
func (h *Handler) movedSince(queue string, look time.Time) bool {
	if h.jobs == nil || look.IsZero() {
		return false
	}
	return slices.ContainsFunc(h.jobs.Actions(), func(a job.Action) bool {
		return (a.Source == queue || a.Request.Queue == queue) && a.Progress.Done > 0 &&
			(a.Active() || a.Ended.After(look))
	})
}

// acting reports whether an action or a rehearsal is under way.
func (h *Handler) acting() bool { return h.jobs != nil && h.jobs.Busy() }

// closeJobs stops the actions. It must be called before the operator is closed.
func (h *Handler) closeJobs() error {
	if h.jobs == nil {
		return nil
	}
	err := h.jobs.Close()
	h.showing.Wait()
	return err
}

// shownEnded is how long an action that has ended is shown on all pages, and its part is kept.
const shownEnded = time.Minute

// countsLate is how old the broker's counts may be: it counts every five seconds, and later when it
// is busy. An empty queue of such a count does not say that nothing is left of an action.
const countsLate = 30 * time.Second

// shownInterrupted is how long every page shows an action that was interrupted.
const shownInterrupted = 24 * time.Hour

// showJobs sends the actions to all open pages.
func (h *Handler) showJobs() {
	h.sendPart("running", "running", view{Jobs: h.running(), Now: time.Now()})
	for _, a := range h.jobs.Actions() {
		name := "job-" + a.ID
		switch {
		case a.Active(), !a.Ended.IsZero() && time.Since(a.Ended) < shownEnded:
			h.sendPart(name, "action-part", a)
		default:
			h.hub.drop(name)
		}
	}
}

// running returns the actions that every page shows: actions under way, and interrupted ones that
// were not resumed.
func (h *Handler) running() []job.Action {
	if h.jobs == nil {
		return nil
	}
	all, seen := h.jobs.Actions(), h.watcher.lastSight()
	return slices.DeleteFunc(slices.Clone(all), func(a job.Action) bool {
		resumed := slices.ContainsFunc(all, func(b job.Action) bool {
			return b.Request.Of == a.ID && b.State != job.StateRehearsed
		})
		main, _ := seen.Vhost.Main(a.Request.Queue)
		nothingLeft := a.Source == main.Plan.Dead.RoutingKey && main.DeadLetters.Known() &&
			main.DeadLetters.N == 0 && seen.At.Sub(a.Noted) > countsLate
		over := resumed || nothingLeft || time.Since(a.Noted) > shownInterrupted
		return !a.Active() && (a.State != job.StateInterrupted || over)
	})
}

// planOf returns the plan of a queue, as the broker shows it.
func (h *Handler) planOf(ctx context.Context, queue string) (topology.Plan, error) {
	s, err := h.seen(ctx)
	if err != nil {
		return topology.Plan{}, err
	}
	main, err := s.main(queue)
	if err != nil {
		return topology.Plan{}, err
	}
	plan := main.Plan
	if plan.Dead.Exchange+plan.Dead.RoutingKey == "" && len(main.Dead) == 1 {
		plan.Dead = topology.Route{RoutingKey: main.Dead[0].Name}
	}
	if plan.Dead.RoutingKey == "" {
		return plan, badRequest("the broker does not show which queue keeps the dead letters of queue "+
			"%q: use millpond with --dlq", queue)
	}
	return plan, nil
}

// actFailure gives errors of the Manager their status.
func actFailure(err error) error {
	var f failure
	for status, list := range map[int][]error{
		http.StatusBadRequest: {
			job.ErrRequest, job.ErrNoFilter, job.ErrNoFolder, operate.ErrInvalidOptions,
		},
		http.StatusNotFound: {job.ErrNoAction},
		http.StatusConflict: {
			job.ErrNothing, job.ErrBusy, job.ErrDigest, job.ErrState, job.ErrChanged, job.ErrLocked,
			operate.ErrUnsafe, operate.ErrUnsafePeek, operate.ErrNotBlocked,
		},
	} {
		for _, known := range list {
			if errors.Is(err, known) && !errors.As(err, &f) {
				return failure{status, err}
			}
		}
	}
	return err
}

// rehearse rehearses the action of a form, and shows it for confirmation.
func (h *Handler) rehearse(w http.ResponseWriter, r *http.Request) error {
	who := visitOf(r).who.name
	h.forms.keep(who, r.PostForm.Get("page"), r.PostForm)
	values, err := chosenRows(r)
	if err != nil {
		return err
	}
	request, err := h.requestOf(values)
	if err != nil {
		return actFailure(err)
	}
	if request.Kind == job.Return && !h.watcher.sight(r.Context()).keeps(request.Queue) {
		return noStranded(request.Queue)
	}
	return h.rehearsing(w, r, func(ctx context.Context, tell func(operate.Progress)) (
		job.Rehearsal, error,
	) {
		return h.jobs.Rehearse(ctx, who, request, tell)
	})
}

const rehearsalKey = "rehearsal\x00"

// rehearsing begins a rehearsal, and shows it, or how far it is.
func (h *Handler) rehearsing(
	w http.ResponseWriter, r *http.Request,
	f func(context.Context, func(operate.Progress)) (job.Rehearsal, error),
) error {
	id := rand.Text()
	t := h.beside(rehearsalKey+id, func(ctx context.Context, note func(string)) (any, error) {
		found, err := f(ctx, func(p operate.Progress) {
			note(digits(p.Seen) + " of " + plural(p.Total, "message"))
		})
		return found.ID, err // without the payloads, which the Manager bounds
	})
	await(r.Context(), []*task{t})
	if t.Running() {
		return h.to(w, r, "/rehearsal?id="+id)
	}
	return h.rehearsed(w, r, t)
}

// rehearsed shows the action of a rehearsal that has ended.
func (h *Handler) rehearsed(w http.ResponseWriter, r *http.Request, t *task) error {
	id, _ := t.Value.(string)
	return h.toAction(w, r, id, t.Err)
}

// rehearsalPage shows how far a rehearsal is.
func (h *Handler) rehearsalPage(w http.ResponseWriter, r *http.Request) error {
	t := h.tasks.last(rehearsalKey + r.URL.Query().Get("id"))
	switch {
	case t == nil:
		return actFailure(job.ErrNoAction)
	case t.Running():
		return h.show(w, r, "rehearsal", view{
			Title: "Rehearsing", Nav: "actions", Running: []*task{t},
		})
	}
	return h.rehearsed(w, r, t)
}

func (h *Handler) toAction(w http.ResponseWriter, r *http.Request, id string, err error) error {
	if err != nil {
		return actFailure(err)
	}
	return h.to(w, r, "/action?"+url.Values{"id": {id}}.Encode())
}

func (h *Handler) start(w http.ResponseWriter, r *http.Request) error {
	who := visitOf(r).who.name
	a, err := h.jobs.Start(who, r.PostForm.Get("id"), r.PostForm.Get("digest"))
	if err == nil {
		h.forms.keep(who, "", nil)
	}
	return h.toAction(w, r, a.ID, err)
}

func (h *Handler) stop(w http.ResponseWriter, r *http.Request) error {
	a, err := h.jobs.Stop(visitOf(r).who.name, r.PostForm.Get("id"))
	return h.toAction(w, r, a.ID, err)
}

// resume rehearses the rest of an action.
func (h *Handler) resume(w http.ResponseWriter, r *http.Request) error {
	return h.rehearsing(w, r, func(ctx context.Context, tell func(operate.Progress)) (
		job.Rehearsal, error,
	) {
		return h.jobs.Resume(ctx, visitOf(r).who.name, r.PostForm.Get("id"), tell)
	})
}

func (h *Handler) actionsPage(w http.ResponseWriter, r *http.Request) error {
	noted := h.jobs.Noted()
	slices.Reverse(noted)
	return h.show(w, r, "actions", view{
		Title: "Actions", Nav: "actions", Count: len(h.running()), Data: struct {
			Actions []job.Action
			Noted   []auditlog.Entry // the newest first
		}{h.jobs.Actions(), noted},
	})
}

// actionView is the page of an action.
type actionView struct {
	job.Action
	Rehearsal *job.Rehearsal // of an action that waits for its confirmation
	Until     time.Time      // of the rehearsal
	Own       bool           // the person who looks has rehearsed it
	Idle      string         // the queue that messages would go to, if nothing consumes it
	Followed  []job.Action   // the actions that resume it
	typed     url.Values     // into the form of options, before the last rehearsal
}

// Option returns the text that the person typed last into the field of an option, or the
// rehearsed value.
func (v actionView) Option(name string) string {
	if v.typed.Has(name) {
		return v.typed.Get(name)
	}
	r := v.Request
	text := fmt.Sprint(map[string]any{
		"canary": r.Canary, "ramp": strings.Trim(fmt.Sprint(r.Steps), "[]"), "stop-at": 100 * r.StopAt,
		"rate": r.Rate, "settle": r.Settle, "watch": r.Watch, "max-replays": r.MaxReplays, "to": r.To,
	}[name])
	if text == "0" || text == "0s" {
		return ""
	}
	return text
}

// DeadAgain is the query of the letters that a replay has moved and that are dead again; empty
// without any.
func (v actionView) DeadAgain() template.URL {
	ramp := v.Progress.Ramp
	if ramp == nil || ramp.DeadAgain == 0 || v.Active() {
		return ""
	}
	return filter{
		queueName: {v.Request.Queue}, "header": {fmt.Sprintf("%s=/^%s[.]/", keys.Replay, ramp.Run)},
	}.Address()
}

func (h *Handler) actionPage(w http.ResponseWriter, r *http.Request) error {
	a, err := h.jobs.Action(r.URL.Query().Get("id"))
	if err != nil {
		return actFailure(err)
	}
	v := actionView{Action: a, Own: visitOf(r).who.name == a.Who, typed: h.forms.of(r)}
	if a.State == job.StateRehearsed {
		found, err := h.jobs.Rehearsal(a.ID)
		if err != nil {
			return actFailure(err)
		}
		v.Rehearsal, v.Until = &found, a.Rehearsed.Add(15*time.Minute)
		v.Idle = h.idle(a.Request)
	}
	for _, b := range h.jobs.Actions() {
		if b.Request.Of == a.ID && b.State != job.StateRehearsed {
			v.Followed = append(v.Followed, b)
		}
	}
	page := view{Title: oneLine(200, a.Title()), Nav: "actions", Data: v, Follow: a.Active()}
	return h.show(w, r, "action", page)
}

// idle returns the queue that messages would go to without a consumer; empty if there is none. The
// rehearsal of a replay says that itself.
func (h *Handler) idle(r job.Request) string {
	moves := []job.Kind{job.Return, job.Release, job.ReplayKey, job.ReleaseKey}
	queue := cmp.Or(r.To, r.Queue)
	main, ok := h.watcher.lastSight().Vhost.Main(queue)
	if ok && slices.Contains(moves, r.Kind) && main.Consumers.Known() && main.Consumers.N == 0 {
		return queue
	}
	return ""
}

// cause returns the error of a group of letters; empty if no look has seen one.
func (s *letterStore) cause(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.piles {
		for _, c := range p.causes.values {
			if c.id == id && id != "" {
				return c.text
			}
		}
	}
	return ""
}
