// Package history remembers the last hour of the queues of a vhost, and since when its incidents
// are there. It is in memory alone.
package history

import (
	"math"
	"sync"
	"time"

	"github.com/millpond-go/millpond/topology/operate"
)

const (
	// Step is the time between two points, at least, and Points how many each queue has: an hour.
	Step   = 15 * time.Second
	Points = 240
	// growth is the time of which Grown tells.
	growth = 10 * time.Minute
	// forget is how long an incident may be absent and be the same when it comes back.
	forget = time.Minute
	// All names all queues of the vhost together.
	All = ""
)

// History is the memory of one vhost. Its methods may be called from many goroutines. Of 3 000
// queues it needs 15 MB.
type History struct {
	mu     sync.Mutex
	n      int // points until now
	times  [Points]time.Time
	queues map[string]*series
	known  map[string]*beginning // incidents
}

// series are the points of a queue, in the places of the times.
type series struct {
	last   int // the number of its last point
	points [len(columns)][Points]float32
}

// columns are the names of the points of a queue: counts, and messages a second.
var columns = [...]string{"dead", "ready", "in", "out", "retries"}

var unknown = float32(math.NaN())

type beginning struct {
	at, seen time.Time
	longer   bool
}

// Look remembers a view of a time, and returns its incidents.
func (h *History) Look(
	at time.Time, v operate.View, keyText func(string) string,
) []operate.Incident {
	h.mu.Lock()
	defer h.mu.Unlock()
	first := h.n == 0
	if first {
		h.queues, h.known = map[string]*series{}, map[string]*beginning{}
	}
	list := v.Incidents(operate.IncidentOptions{
		KeyText: keyText,
		Since: func(i operate.Incident) (time.Time, bool) {
			b := h.known[i.ID()]
			if b == nil {
				// Messages that wait are looked at now and then.
				b = &beginning{at: at, longer: first || i.Kind == operate.IncidentGone}
				h.known[i.ID()] = b
			}
			if b.seen = at; first {
				return time.Time{}, false
			}
			return b.at, b.longer
		},
		Grown: func(queue string) (int, time.Time) {
			main, _ := v.Main(queue)
			return h.grown(main, at)
		},
	})
	for id, b := range h.known {
		if at.Sub(b.seen) >= forget {
			delete(h.known, id)
		}
	}
	if first || at.Sub(h.times[(h.n-1)%Points]) >= Step-time.Second/2 {
		h.add(at, v)
	}
	return list
}

// add adds a point for each queue.
func (h *History) add(at time.Time, v operate.View) {
	place := h.n % Points
	h.n++
	h.times[place] = at
	for i := range v.Mains {
		m := &v.Mains[i]
		h.note(m.Name, place, [...]float32{
			number(m.DeadLetters), number(m.Ready), rate(m.In), rate(m.Out), retries(m),
		})
	}
	h.note(All, place, sum(v))
	for name, s := range h.queues {
		if s.last < h.n {
			s.put(place, [...]float32{unknown, unknown, unknown, unknown, unknown})
		}
		if h.n-s.last >= Points {
			delete(h.queues, name)
		}
	}
}

// note puts the values of a queue at a place. h.mu is held.
func (h *History) note(queue string, place int, values [len(columns)]float32) {
	s := h.queues[queue]
	if s == nil {
		s = new(series)
		for p := range Points {
			s.put(p, [len(columns)]float32{unknown, unknown, unknown, unknown, unknown})
		}
		h.queues[queue] = s
	}
	s.last = h.n
	s.put(place, values)
}

// sum adds up the points of all queues. A wait queue or a dead-letter queue that several of them
// share counts once. An unknown number is left out.
func sum(v operate.View) (all [len(columns)]float32) {
	counted, known := map[string]bool{}, [len(columns)]bool{}
	add := func(column int, shared string, value float32) {
		if value == value && !counted[shared] {
			all[column], known[column] = all[column]+value, true
		}
		counted[shared] = shared != ""
	}
	for i := range v.Mains {
		m := &v.Mains[i]
		add(1, "", number(m.Ready))
		add(2, "", rate(m.In))
		add(3, "", rate(m.Out))
		for _, d := range m.Dead {
			add(0, d.Name, number(d.Total))
		}
		for _, w := range m.Waits {
			add(4, w.Name, rate(w.In))
		}
		if m.Line != nil {
			add(4, m.Line.Name, rate(m.Line.In))
		}
	}
	for column, is := range known {
		if !is {
			all[column] = unknown
		}
	}
	return all
}

func (s *series) put(place int, values [len(columns)]float32) {
	for i, value := range values {
		s.points[i][place] = value
	}
}

func number(c operate.Count) float32 {
	if !c.Known() {
		return unknown
	}
	return float32(c.N)
}

func rate(r *float64) float32 {
	if r == nil {
		return unknown
	}
	return float32(*r)
}

// retries are the messages a second that come into the wait queues. Where they are of other queues,
// too, it is not known.
func retries(m *operate.Main) (sum float32) {
	if m.WaitingShared {
		return unknown
	}
	for _, w := range m.Waits {
		if w.In != nil {
			sum += float32(*w.In)
		}
	}
	if m.Line != nil && m.Line.In != nil {
		sum += float32(*m.Line.In)
	}
	return sum
}

// grown returns by how much the dead letters of a queue have grown in the last ten minutes, or
// since the first point after that; the time is zero where that is not known.
func (h *History) grown(m operate.Main, at time.Time) (by int, since time.Time) {
	s := h.queues[m.Name]
	if s == nil || !m.DeadLetters.Known() {
		return 0, time.Time{}
	}
	for p := range h.since(at.Add(-growth - Step/2)) {
		if was := s.points[0][p]; was == was && h.times[p].Before(at) {
			return m.DeadLetters.N - int(was), h.times[p]
		}
	}
	return 0, time.Time{}
}

// since yields the places of the points since a time, the oldest first. h.mu is held.
func (h *History) since(from time.Time) func(yield func(place int) bool) {
	return func(yield func(int) bool) {
		for n := max(h.n-Points, 0); n < h.n; n++ {
			if p := n % Points; !h.times[p].Before(from) && !yield(p) {
				return
			}
		}
	}
}

// Chart are the points of a queue, the oldest first. A number that is not known is nil.
type Chart struct {
	// Times are in seconds since 1970, Columns by name: dead, ready, in, out and retries.
	Times   []int64               `json:"t"`
	Columns map[string][]*float64 `json:"columns"`
}

// Chart returns the last hour of a queue, or of All.
func (h *History) Chart(queue string, now time.Time) Chart {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := Chart{Columns: map[string][]*float64{}}
	s := h.queues[queue]
	if s == nil {
		return c
	}
	for p := range h.since(now.Add(-Points * Step)) {
		c.Times = append(c.Times, h.times[p].Unix())
		for i, name := range columns {
			var point *float64
			if value := float64(s.points[i][p]); value == value {
				point = &value
			}
			c.Columns[name] = append(c.Columns[name], point)
		}
	}
	return c
}

// Dead returns the dead letters of a queue in the last hour, in bins, the oldest first; 0 where
// they are not known.
func (h *History) Dead(queue string, bins int, now time.Time) []int {
	h.mu.Lock()
	defer h.mu.Unlock()
	list, begin := make([]int, bins), now.Add(-Points*Step)
	if s := h.queues[queue]; s != nil {
		for p := range h.since(begin) {
			bin := int(h.times[p].Sub(begin) / (Points * Step / time.Duration(bins)))
			if n := s.points[0][p]; n == n {
				list[min(bin, bins-1)] = int(n)
			}
		}
	}
	return list
}
