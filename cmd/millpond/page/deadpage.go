package page

import (
	"cmp"
	"context"
	"fmt"
	"html/template"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millpond-go/millpond/cmd/millpond/internal/overview"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

const (
	// perPage letters are on a page of the list, and maxGroups causes are shown.
	perPage   = 50
	maxGroups = 100
	// fewSources are so few that a look asks each of them, whatever the broker has counted.
	fewSources = 20
	// bins are the columns of a sparkline.
	bins = 40
)

// deadView is the page of dead letters.
type deadView struct {
	search
	Now time.Time
	// Sources are the dead-letter queues of the chosen queues, with the looks at them.
	Sources []source
	// Looked says that at least one has been looked at, Oldest when the first was, Running that a look
	// is under way.
	Looked  bool
	Oldest  time.Time
	Running []*task
	// Total counts the letters that the looks have seen, Chosen the letters that meet the filter, Left
	// the letters that may meet it and are not in the list.
	Total, Chosen, Left int
	// Kept counts the letters whose payloads are kept, Unseen the sources that were not looked at.
	Kept, Unseen   int
	Groups         []group
	MoreGroups     int
	Range          string // of the sparklines
	Letters        []letterRow
	Page, Pages    int
	ByQueue        map[string]int // letters that were chosen
	ExistsOnBroker operate.Count
}

type queueChoice struct {
	Name           string
	Count          operate.Count
	Shared, Chosen bool // Shared: Count counts messages of other queues, too
}

// share is the part of letters that a queue has.
type share struct {
	Queue string
	Count int
}

// source is a dead-letter queue.
type source struct {
	Queue string
	// Mains are the queues whose letters it keeps.
	Mains []string
	Dead  operate.Dead
	plan  topology.Plan
	pile  *pile
	At    time.Time
	Moved bool // an action has moved letters since
	Err   string
}

// group is a cause.
type group struct {
	operate.Group
	Spark template.HTML
	times []int
}

// letterRow is a letter in the list.
type letterRow struct {
	Dead                        string // the dead-letter queue
	ID, Error                   string
	Queue, Handler, Reason      string
	Position, Attempts, Replays int
	At                          time.Time
}

// sourcesOf returns the dead-letter queues of the chosen queues.
func sourcesOf(v operate.View, f filter) (list []source, unknown []string) {
	at := map[string]int{}
	for _, name := range f.Queues() {
		if _, ok := v.Main(name); !ok {
			unknown = append(unknown, name)
		}
	}
	for _, main := range v.Mains {
		if len(f.Queues()) > 0 && !slices.Contains(f.Queues(), main.Name) {
			continue
		}
		for _, d := range main.Dead {
			i, known := at[d.Name]
			if !known {
				plan := main.Plan
				plan.Dead = topology.Route{RoutingKey: d.Name}
				i, at[d.Name] = len(list), len(list)
				list = append(list, source{Queue: d.Name, Dead: d, plan: plan})
			}
			list[i].Mains = append(list[i].Mains, main.Name)
		}
	}
	return list, unknown
}

// lookKey names a look at a dead-letter queue.
func lookKey(queue, filter string) string { return "dead\x00" + queue + "\x00" + filter }

// dead shows groups and letters.
func (h *Handler) dead(w http.ResponseWriter, r *http.Request) error {
	f, err := filterOf(r.URL.Query(), conditions)
	if err != nil {
		return err
	}
	v, err := h.deadView(r.Context(), f)
	if err != nil {
		return err
	}
	if err := h.fillDead(v, pageOf(r)); err != nil {
		return err
	}
	return h.show(w, r, "dead", view{
		Title: "Dead letters", Nav: "dead", Data: v, Running: v.Running, Count: v.Chosen,
	})
}

// deadView finds the queues of a filter, and the looks at them.
func (h *Handler) deadView(ctx context.Context, f filter) (*deadView, error) {
	s, err := h.seen(ctx)
	if err != nil {
		return nil, err
	}
	v := &deadView{Now: time.Now(), search: h.searchOf("/dead", f,
		"words of the error, queue:orders, since:2h, header:tenant=7")}
	var unknown []string
	if v.Sources, unknown = sourcesOf(s.Vhost, f); len(unknown) > 0 {
		return nil, notFound("there is no queue %s with retries in this virtual host",
			quoted(unknown))
	}
	for _, main := range s.Vhost.Mains {
		if main.DeadLetters.N > 0 {
			v.offer(queueName, main.Name)
		}
	}
	v.ExistsOnBroker = operate.Count{Source: operate.SourceManagement}
	for i := range v.Sources {
		src := &v.Sources[i]
		v.ExistsOnBroker = v.ExistsOnBroker.Plus(src.Dead.Total)
		keys := slices.Compact([]string{f.deep().query(), f.exactly().query()})
		for _, key := range keys {
			l, _ := lastLook[any](h, lookKey(src.Queue, key))
			v.Running, src.Err = append(v.Running, l.Running...), cmp.Or(l.Err, src.Err)
		}
		if src.pile = h.letters.find(src.Queue, keys...); src.pile != nil {
			src.At, v.Looked = src.pile.at, true
			src.Moved = h.movedSince(src.Queue, src.At)
			if v.Oldest.IsZero() || src.At.Before(v.Oldest) {
				v.Oldest = src.At
			}
		} else {
			v.Unseen++
		}
	}
	return v, nil
}

// Seen counts the sources that were looked at.
func (v *deadView) Seen() int { return len(v.Sources) - v.Unseen }

func quoted(names []string) string {
	var list []string
	for _, name := range names[:min(len(names), 10)] {
		list = append(list, strconv.Quote(name))
	}
	return strings.Join(list, ", ")
}

// fillDead chooses the letters of the looks, groups them, and lists a page of them.
func (h *Handler) fillDead(v *deadView, page int) error {
	chosen, err := v.Filter.operate(v.Now)
	if err != nil {
		return err
	}
	first, last := int64(math.MaxInt64), int64(0)
	for i := range v.Sources {
		src := &v.Sources[i]
		if src.pile == nil {
			continue
		}
		v.Total += len(src.pile.stubs)
		v.Kept += len(src.pile.contents)
		for _, o := range src.pile.origins.values {
			v.offer("reason", o.reason)
			v.offer("handler", o.handler)
		}
		left, err := src.pile.chosen(chosen, func(s *stub, _ *detail) {
			v.Chosen++
			if s.dead != 0 {
				first, last = min(first, s.dead), max(last, s.dead)
			}
		})
		if v.Left += left; err != nil {
			return err
		}
	}
	v.ByQueue = map[string]int{}
	groups := map[string]*group{}
	listed := 0
	for i := range v.Sources {
		src := &v.Sources[i]
		if src.pile == nil {
			continue
		}
		tallies, err := src.pile.tallies(chosen, first, last, func(s *stub, d *detail) {
			if listed/perPage+1 == page {
				v.Letters = append(v.Letters, letterRowOf(src, s, d))
			}
			listed++
		})
		if err != nil {
			return err
		}
		for number, t := range tallies {
			if t == nil {
				continue
			}
			c := &src.pile.causes.values[number]
			g := groups[c.id]
			if g == nil {
				g = &group{times: make([]int, bins), Group: operate.Group{
					ID: c.id, Error: c.text,
					Queues: map[string]int{}, Handlers: map[string]int{}, Reasons: map[string]int{},
				}}
				groups[g.ID] = g
			}
			g.add(t, src.pile.origins.values, v.ByQueue)
		}
	}
	v.Page, v.Pages = page, (listed+perPage-1)/perPage
	v.Groups = sortedGroups(groups)
	if v.MoreGroups = max(len(v.Groups)-maxGroups, 0); v.MoreGroups > 0 {
		v.Groups = v.Groups[:maxGroups]
	}
	over := ""
	if last-first >= time.Minute.Milliseconds() {
		v.Range = about(time.Duration(last-first) * time.Millisecond)
		over = " over " + v.Range + ", the newest at the right"
	}
	for i := range v.Groups {
		g := &v.Groups[i]
		g.Spark = sparkline(g.times, plural(g.Count, "letter")+over)
	}
	return nil
}

// sparkline draws counts over time as columns.
func sparkline(counts []int, label string) template.HTML {
	const step, height = 4, 24
	most := slices.Max(counts)
	var svg strings.Builder
	fmt.Fprintf(&svg, `<svg class="spark" viewBox="0 0 %d %d" role="img" aria-label="%s"><path d="`,
		step*len(counts), height, template.HTMLEscapeString(label))
	for i, n := range counts {
		if n > 0 {
			fmt.Fprintf(&svg, "M%d %dv%dh%dV%dz", i*step, height, -max(n*height/most, 2), step-1, height)
		}
	}
	return template.HTML(svg.String() + `"/></svg>`)
}

// Mains are the queues on which an action can work, with their parts of the counts, the largest
// first.
func (v *deadView) Mains(counts map[string]int) (list []share) {
	for _, src := range v.Sources {
		for _, main := range src.Mains {
			s := share{main, counts[main]}
			if s.Count > 0 && !slices.Contains(list, s) {
				list = append(list, s)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b share) int { return b.Count - a.Count })
	return list
}

// add adds the letters of a tally, also to those of their queues.
func (g *group) add(t *tally, origins []origin, byQueue map[string]int) {
	for number, n := range t.from {
		if n == 0 {
			continue
		}
		from := &origins[number]
		g.Count += n
		g.Queues[from.queue] += n
		g.Handlers[from.handler] += n
		g.Reasons[from.reason] += n
		byQueue[from.queue] += n
	}
	if t.last == 0 {
		return
	}
	if at := time.UnixMilli(t.first); g.First.IsZero() || at.Before(g.First) {
		g.First = at
	}
	if at := time.UnixMilli(t.last); at.After(g.Last) {
		g.Last = at
	}
	for i, n := range t.times {
		g.times[i] += n
	}
}

func sortedGroups(groups map[string]*group) []group {
	list := make([]group, 0, len(groups))
	for _, g := range groups {
		list = append(list, *g)
	}
	slices.SortFunc(list, func(a, b group) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Error, b.Error))
	})
	return list
}

func shares(counts map[string]int) string {
	return overview.Shares(counts, func(name string) string {
		return oneLine(60, cmp.Or(name, "not known"))
	}, digits)
}

func letterRowOf(src *source, s *stub, d *detail) letterRow {
	from := &src.pile.origins.values[s.from]
	row := letterRow{
		Dead: src.Queue, ID: d.id, Error: d.err, Queue: from.queue, Handler: from.handler,
		Reason: from.reason, Position: int(s.position), Attempts: int(d.attempts),
		Replays: int(d.replays),
	}
	if s.dead != 0 {
		row.At = time.UnixMilli(s.dead)
	}
	return row
}

// Address is the address of the letter's page.
func (l letterRow) Address() template.URL { return letterAt(l.Dead, l.ID, l.Position) }

// lookDead looks at the dead-letter queues of a form's filter.
func (h *Handler) lookDead(w http.ResponseWriter, r *http.Request) error {
	f, err := filterOf(r.Form, conditions)
	if err != nil {
		return err
	}
	v, err := h.deadView(r.Context(), f)
	if err != nil {
		return err
	}
	chosen := f.deep()
	if r.Form.Get("exact") != "" {
		chosen = f.exactly()
	}
	key := chosen.query()
	look, err := h.withMasks(chosen, time.Now())
	if err != nil {
		return err
	}
	var started []*task
	for _, src := range v.Sources {
		if src.Dead.Total.N == 0 && len(v.Sources) > fewSources {
			// The broker counts late: a few queues are looked at also where they seem empty.
			h.letters.end(emptyPile(src.Queue, key))
			continue
		}
		started = append(started, h.begin(lookKey(src.Queue, key),
			h.lookAt(src, key, look)))
	}
	await(r.Context(), started)
	return h.to(w, r, "/dead?"+f.query())
}

func emptyPile(queue, key string) *pile { return &pile{queue: queue, key: key, at: time.Now()} }

// withMasks is the filter of a look. Its conditions on the payload see nothing that a mask hides.
func (h *Handler) withMasks(f filter, now time.Time) (operate.Filter, error) {
	o, err := f.operate(now)
	if err == nil {
		err = h.refuseKeys(o)
	}
	if err != nil || len(h.masks) == 0 || o.Payload == "" {
		return o, err
	}
	meets, err := operate.Filter{Payload: o.Payload}.Matcher()
	o.Payload = ""
	o.Match = func(l operate.Letter) bool {
		l.Delivery.Body = h.shownPayload(l.Delivery.Body)
		return meets(l)
	}
	return o, err
}

// lookAt looks at a dead-letter queue and keeps the letters, within the bounds.
func (h *Handler) lookAt(
	src source, key string, chosen operate.Filter,
) func(context.Context, func(string)) (any, error) {
	return func(ctx context.Context, note func(string)) (any, error) {
		operator, err := h.connected(ctx)
		if err != nil {
			return nil, err
		}
		p, room := h.letters.begin(src.Queue, key)
		if key == "" { // it chooses all letters, perhaps a million
			p.stubs = make([]stub, 0, max(src.Dead.Total.N, 0))
		}
		for l, err := range operator.Dead(ctx, src.plan, chosen, 0) {
			if err != nil {
				return nil, err
			}
			if p.add(l, room); len(p.stubs)%500 == 0 {
				note(counted(len(p.stubs), "letter"))
			}
		}
		p.at = time.Now()
		h.letters.end(p)
		return nil, nil //nolint:nilnil // the store has the letters
	}
}
