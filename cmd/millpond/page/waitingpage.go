package page

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/millpond-go/millpond/topology/operate"
)

// waitingView is the page of waiting messages.
type waitingView struct {
	looked
	search
	Now    time.Time
	At     time.Time
	Mains  int           // queues with retries
	Queues []queueChoice // in which messages wait, most first
	// Gone are messages for queues that are gone.
	Gone []operate.Gone
	// Main is the chosen queue; nil if none is chosen.
	Main     *operate.Main
	Messages []operate.Waiter
	Total    int
	Foreign  int // that wait for another queue
	Page     int
	Pages    int
	// Groups are all messages that wait, by queue, if no queue is chosen.
	Groups []waitGroup
	// Order are the keys of a queue that is handled in order; nil for another queue.
	Order *orderView
}

// waitGroup are the messages that wait for one queue.
type waitGroup struct {
	Queue       string
	There       bool // the queue exists
	Count       int
	First, Last time.Time // of their returns; zero where no header says
}

// maxWaiters is how many waiting messages of a look are kept.
const maxWaiters = 20_000

func (h *Handler) waiting(w http.ResponseWriter, r *http.Request) error {
	s, err := h.seen(r.Context())
	if err != nil {
		return err
	}
	f, err := filterOf(r.URL.Query(), waitConditions)
	if err != nil {
		return err
	}
	v := &waitingView{
		Now: time.Now(), At: s.At, Gone: s.Vhost.Gone, Mains: len(s.Vhost.Mains),
		search: h.searchOf("/waiting", f, "queue:orders, then words of the error, id:…, delay:10s"),
	}
	name := f.Get(queueName)
	for _, main := range s.Vhost.Mains {
		if main.Waiting.N > 0 || !main.Waiting.Known() {
			v.offer(queueName, main.Name)
			v.Queues = append(v.Queues, queueChoice{main.Name, main.Waiting, main.WaitingShared, false})
		}
	}
	slices.SortStableFunc(v.Queues, func(a, b queueChoice) int { return b.Count.N - a.Count.N })
	v.Queues = v.Queues[:min(len(v.Queues), maxGroups)]
	if name == "" {
		v.looked, v.Groups = lastLook[[]waitGroup](h, "waiting\x00")
	} else {
		main, err := s.main(name)
		if err != nil {
			return err
		}
		v.Main = &main
		var found []operate.Waiter
		v.looked, found = lastLook[[]operate.Waiter](h, "waiting\x00"+name)
		v.Moved = h.movedSince(name, v.Looked)
		v.read(found, pageOf(r))
		if main.Line != nil {
			v.Order = h.orderOf(&main)
			v.Running = append(v.Running, v.Order.Running...)
		}
	}
	return h.show(w, r, "waiting", view{
		Title: "Waiting", Nav: "waiting", Data: v, Running: v.Running, Count: v.Total,
	})
}

func pageOf(r *http.Request) int {
	n, _ := strconv.Atoi(r.URL.Query().Get("page"))
	return max(n, 1)
}

// read fills in the messages of a look that meet the filter.
func (v *waitingView) read(found []operate.Waiter, page int) {
	chosen, _ := v.Filter.operate(v.Now) // filterOf has checked it
	meets, _ := operate.Filter{IDs: chosen.IDs, Error: chosen.Error}.Matcher()
	found = slices.DeleteFunc(slices.Clone(found), func(m operate.Waiter) bool {
		return chosen.Delay != 0 && m.Delay != chosen.Delay ||
			!meets(operate.Letter{ID: m.ID, Error: m.Error})
	})
	v.Total, v.Pages = len(found), (len(found)+perPage-1)/perPage
	v.Page = min(page, max(v.Pages, 1))
	v.Messages = found[(v.Page-1)*perPage : min(v.Page*perPage, len(found))]
	for _, m := range found {
		if m.Queue != "" && m.Queue != v.Main.Name {
			v.Foreign++
		}
	}
}

func (h *Handler) lookWaiting(w http.ResponseWriter, r *http.Request) error {
	f, err := filterOf(r.Form, waitConditions)
	if err != nil {
		return err
	}
	name := f.Get(queueName)
	seen := h.watcher.sight(r.Context())
	if name == "" {
		return h.lookAndShow(w, r, "waiting\x00", "/waiting",
			func(ctx context.Context, o *operate.Operator, _ func(string)) (any, error) {
				found, err := o.Waiting(ctx, seen.Vhost.Waits(), operate.Filter{})
				return waitGroups(found, seen), err
			})
	}
	main, err := seen.main(name)
	if err != nil {
		return err
	}
	return h.lookAndShow(w, r, "waiting\x00"+name, "/waiting?"+f.query(),
		func(ctx context.Context, o *operate.Operator, _ func(string)) (any, error) {
			found, err := o.Waiting(ctx, main.Plan, operate.Filter{})
			slices.SortStableFunc(found, func(a, b operate.Waiter) int {
				return sooner(a.Due, b.Due)
			})
			found = slices.Clone(found[:min(len(found), maxWaiters)])
			for i := range found {
				found[i].Error = cutBytes(found[i].Error, maxError)
			}
			return found, err
		})
}

// waitGroups counts messages by queue, those that return first at the top.
func waitGroups(found []operate.Waiter, seen *sight) (groups []waitGroup) {
	for _, m := range found {
		i := slices.IndexFunc(groups, func(g waitGroup) bool { return g.Queue == m.Queue })
		if i < 0 {
			_, there := seen.Vhost.Main(m.Queue)
			i, groups = len(groups), append(groups, waitGroup{Queue: m.Queue, There: there, First: m.Due})
		}
		g := &groups[i]
		g.Count++
		if sooner(m.Due, g.First) < 0 {
			g.First = m.Due
		}
		if m.Due.After(g.Last) {
			g.Last = m.Due
		}
	}
	slices.SortStableFunc(groups, func(a, b waitGroup) int {
		return sooner(a.First, b.First)
	})
	return groups
}

// sooner orders times. One that is not known comes last.
func sooner(a, b time.Time) int {
	if a.IsZero() != b.IsZero() {
		return -a.Compare(b)
	}
	return a.Compare(b)
}

// strandedView is the page of stranded messages.
type strandedView struct {
	looked
	At      time.Time
	Queues  []operate.Queue
	Orphans []operate.Orphan
	// Queue is the chosen stranded queue.
	Queue string
	search
	strays
	MoreGroups int
}

// strays are stranded messages as a look has seen them.
type strays struct {
	Total    int
	Messages []operate.StrandedMessage // the first, without payload and headers
	Groups   []operate.Group
}

// maxStranded is how many stranded messages a look shows.
const maxStranded = 500

func (h *Handler) stranded(w http.ResponseWriter, r *http.Request) error {
	s, err := h.seen(r.Context())
	if err != nil {
		return err
	}
	f, err := filterOf(r.URL.Query(), conditions)
	if err != nil {
		return err
	}
	v := &strandedView{
		At: s.At, Queues: s.Vhost.Stranded, Orphans: s.Vhost.Orphans,
		Queue:  f.Get(queueName),
		search: h.searchOf("/stranded", f, "words of the error, for:orders, since:2h"),
	}
	if v.Queue == "" && len(v.Queues) == 1 {
		v.Queue = v.Queues[0].Name
	}
	if v.Queue != "" && !s.keeps(v.Queue) {
		return noStranded(v.Queue)
	}
	v.looked, v.strays = lastLook[strays](h, "stranded\x00"+f.with(queueName, v.Queue).query())
	v.Moved = h.movedSince(v.Queue, v.Looked)
	v.MoreGroups = max(len(v.Groups)-maxGroups, 0)
	v.Groups = v.Groups[:len(v.Groups)-v.MoreGroups]
	return h.show(w, r, "stranded", view{
		Title: "Stranded", Nav: "stranded", Data: v, Running: v.Running, Count: v.Total,
	})
}

// keeps reports whether a queue keeps stranded messages.
func (s *sight) keeps(queue string) bool {
	return slices.ContainsFunc(s.Vhost.Stranded, func(q operate.Queue) bool {
		return q.Name == queue
	})
}

func noStranded(queue string) error {
	return notFound("there is no queue %q that keeps stranded messages", queue)
}

func (h *Handler) lookStranded(w http.ResponseWriter, r *http.Request) error {
	f, err := filterOf(r.Form, conditions)
	if err != nil {
		return err
	}
	chosen, err := h.withMasks(f, time.Now())
	if err != nil {
		return err
	}
	queue := f.Get(queueName)
	if !h.watcher.sight(r.Context()).keeps(queue) {
		return noStranded(queue)
	}
	return h.lookAndShow(w, r, "stranded\x00"+f.query(), "/stranded?"+f.query(),
		func(ctx context.Context, o *operate.Operator, note func(string)) (any, error) {
			var found strays
			var err error
			found.Groups, err = operate.GroupByError(func(yield func(operate.Letter, error) bool) {
				for m, err := range o.Stranded(ctx, queue, chosen, 0) {
					if !yield(m.Letter, err) {
						return
					}
					if found.Total++; found.Total <= maxStranded {
						m.Why, m.Letter = cutBytes(m.Why, 500), operate.Letter{
							ID: m.ID, Queue: m.Queue, DeadAt: m.DeadAt, Attempts: m.Attempts,
						}
						found.Messages = append(found.Messages, m)
					}
					note(counted(found.Total, "message"))
				}
			})
			return found, err
		})
}
