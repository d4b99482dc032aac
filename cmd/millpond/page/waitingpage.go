package page

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/millpond-go/millpond/topology/operate"
	"github.com/millpond-go/millpond/topology/operate/discover"
)

// waitingView is the page of waiting messages.
type waitingView struct {
	Now    time.Time
	At     time.Time
	Queues []queueChoice
	// Main is the chosen queue; nil if none is chosen.
	Main     *discover.Main
	Running  []*task
	Err      string
	Looked   time.Time
	Messages []operate.Waiter
	Total    int
	Due      []dueChart
	Foreign  int // that wait for another queue
	Page     int
	Pages    int
	// Order are the keys of a queue that is handled in order; nil for another queue.
	Order *orderView
}

// maxWaiters is how many waiting messages of a look are kept.
const maxWaiters = 20_000

func (h *Handler) waiting(w http.ResponseWriter, r *http.Request) error {
	s := h.watcher.sight(r.Context())
	if s.At.IsZero() {
		return notSeen(s)
	}
	v := &waitingView{Now: time.Now(), At: s.At}
	name := r.URL.Query().Get("queue")
	for _, main := range s.Vhost.Mains {
		v.Queues = append(v.Queues, queueChoice{main.Name, rowOf(main).Waiting, main.Name == name})
	}
	if name != "" {
		main, ok := s.Vhost.Main(name)
		if !ok {
			return notFound("there is no queue %q with retries in this virtual host", name)
		}
		v.Main = &main
		v.read(h.tasks.last("waiting\x00"+name), pageOf(r))
		if main.Line != nil {
			v.Order = h.orderOf(&main)
			v.Running = append(v.Running, v.Order.Running...)
		}
	}
	h.render(w, r, http.StatusOK, "waiting", view{
		Title: "Waiting", Nav: "waiting", Data: v, Running: v.Running,
	})
	return nil
}

func pageOf(r *http.Request) int {
	n, _ := strconv.Atoi(r.URL.Query().Get("page"))
	return max(n, 1)
}

// read fills in the result of a look.
func (v *waitingView) read(t *task, page int) {
	switch {
	case t == nil:
		return
	case t.Running():
		v.Running = append(v.Running, t)
		return
	case t.Err != nil:
		v.Err = t.Err.Error()
	}
	found, ok := t.Value.([]operate.Waiter)
	if !ok {
		return
	}
	v.Looked, v.Total = t.At, len(found)
	v.Pages = (len(found) + perPage - 1) / perPage
	v.Page = min(page, max(v.Pages, 1))
	v.Messages = found[(v.Page-1)*perPage : min(v.Page*perPage, len(found))]
	var due []time.Time
	for _, m := range found {
		if !m.Due.IsZero() {
			due = append(due, m.Due)
		}
		if m.Queue != "" && m.Queue != v.Main.Name {
			v.Foreign++
		}
	}
	v.Due = chartsOf(due, t.At)
}

func (h *Handler) lookWaiting(w http.ResponseWriter, r *http.Request) error {
	name := r.Form.Get("queue")
	main, ok := h.watcher.sight(r.Context()).Vhost.Main(name)
	if !ok {
		return notFound("there is no queue %q with retries in this virtual host", name)
	}
	t := h.begin("waiting\x00"+name, func(ctx context.Context, _ func(string)) (any, error) {
		operator, err := h.connected(ctx)
		if err != nil {
			return nil, err
		}
		found, err := operator.Waiting(ctx, main.Plan, operate.Filter{})
		slices.SortStableFunc(found, func(a, b operate.Waiter) int {
			return cmp.Or(zeroLast(a.Due, b.Due), a.Due.Compare(b.Due))
		})
		found = slices.Clone(found[:min(len(found), maxWaiters)])
		for i := range found {
			found[i].Error = cutBytes(found[i].Error, maxError)
		}
		return found, err
	})
	await(r.Context(), []*task{t})
	h.to(w, r, "/waiting?"+url.Values{"queue": {name}}.Encode())
	return nil
}

func zeroLast(a, b time.Time) int {
	switch {
	case a.IsZero() == b.IsZero():
		return 0
	case a.IsZero():
		return 1
	}
	return -1
}

// strandedView is the page of stranded messages.
type strandedView struct {
	Now     time.Time
	At      time.Time
	Queues  []discover.Queue
	Orphans []discover.Orphan
	// Queue is the chosen stranded queue.
	Queue    string
	Running  []*task
	Err      string
	Looked   time.Time
	Messages []strandedRow
	More     bool
}

// strandedRow is a stranded message.
type strandedRow struct {
	ID, Queue, WaitQueue, Error, Why string
	Cause                            operate.Cause
	Since                            time.Time
	Attempts, Position               int
}

// maxStranded is how many stranded messages a look shows.
const maxStranded = 500

func (h *Handler) stranded(w http.ResponseWriter, r *http.Request) error {
	s := h.watcher.sight(r.Context())
	if s.At.IsZero() {
		return notSeen(s)
	}
	v := &strandedView{
		Now: time.Now(), At: s.At, Queues: s.Vhost.Stranded, Orphans: s.Vhost.Orphans,
		Queue: r.URL.Query().Get("queue"),
	}
	if v.Queue == "" && len(v.Queues) == 1 {
		v.Queue = v.Queues[0].Name
	}
	if v.Queue != "" && !keeps(s.Vhost, v.Queue) {
		return notFound("there is no queue %q that keeps stranded messages", v.Queue)
	}
	switch t := h.tasks.last("stranded\x00" + v.Queue); {
	case t == nil:
	case t.Running():
		v.Running = append(v.Running, t)
	default:
		if t.Err != nil {
			v.Err = t.Err.Error()
		}
		if v.Messages, _ = t.Value.([]strandedRow); v.Messages != nil || t.Err == nil {
			v.Looked, v.More = t.At, len(v.Messages) == maxStranded
		}
	}
	h.render(w, r, http.StatusOK, "stranded", view{
		Title: "Stranded", Nav: "stranded", Data: v, Running: v.Running,
	})
	return nil
}

func keeps(v discover.Vhost, queue string) bool {
	return slices.ContainsFunc(v.Stranded, func(q discover.Queue) bool { return q.Name == queue })
}

func (h *Handler) lookStranded(w http.ResponseWriter, r *http.Request) error {
	queue := r.Form.Get("queue")
	if !keeps(h.watcher.sight(r.Context()).Vhost, queue) {
		return notFound("there is no queue %q that keeps stranded messages", queue)
	}
	t := h.begin("stranded\x00"+queue, func(ctx context.Context, note func(string)) (any, error) {
		operator, err := h.connected(ctx)
		if err != nil {
			return nil, err
		}
		rows := []strandedRow{}
		for m, err := range operator.Stranded(ctx, queue, operate.Filter{}, maxStranded) {
			if err != nil {
				return rows, err
			}
			rows = append(rows, strandedRow{
				ID: m.ID, Queue: m.Queue, WaitQueue: m.WaitQueue, Error: cutBytes(m.Error, maxError),
				Why: cutBytes(m.Why, 500), Cause: m.Cause, Since: m.DeadAt, Attempts: m.Attempts,
				Position: m.Position,
			})
			note(counted(len(rows), "message"))
		}
		return rows, nil
	})
	await(r.Context(), []*task{t})
	h.to(w, r, "/stranded?"+url.Values{"queue": {queue}}.Encode())
	return nil
}
