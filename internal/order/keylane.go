package order

import (
	"cmp"
	"container/heap"
	"slices"
	"time"
)

// lane has the messages of one key.
type lane[T any] struct {
	key       string
	waiting   []entry[T] // in the line, by number
	fresh     []fresh[T] // of the main queue, in their order
	handling  *Step[T]
	following *Step[T]
	last      uint64 // the highest number
	ready     bool
	full      bool
	wake      time.Time // of its timer
}

// entry is a message in the line.
type entry[T any] struct {
	Waiting[T]
	here bool // it was returned
	sure bool // it is in the line, or gone
}

type fresh[T any] struct {
	item T
	must bool
}

// lane returns the lane of a key. A message without an order has its own.
func (l *Line[T]) lane(key string) *lane[T] {
	if key == "" {
		a := &lane[T]{}
		l.alone[a] = struct{}{}
		return a
	}
	a, ok := l.lanes[key]
	if !ok {
		a = &lane[T]{key: key}
		l.lanes[key] = a
	}
	return a
}

// touch notes that a lane may have a step.
func (l *Line[T]) touch(a *lane[T]) {
	if a.isEmpty() {
		if l.lanes[a.key] == a {
			delete(l.lanes, a.key)
		}
		delete(l.alone, a)
		return
	}
	if !a.ready {
		a.ready = true
		l.ready = append(l.ready, a)
	}
}

func (a *lane[T]) isEmpty() bool {
	return len(a.waiting) == 0 && len(a.fresh) == 0 && a.handling == nil && a.following == nil
}

// step begins the next message of the lane, if it may begin now.
func (l *Line[T]) step(a *lane[T], now time.Time) *Step[T] {
	if !l.lineKnown {
		return nil // Know comes back to all
	}
	if len(a.waiting) > 0 && a.handling == nil {
		first := &a.waiting[0]
		if first.here && !first.Block {
			switch {
			case first.Due.After(now):
				l.sleep(a, first.Due)
			case l.careful && l.handling > 0, l.mustsWait():
				l.wait(a)
			default:
				return l.handleFirst(a)
			}
		}
	}
	if len(a.fresh) == 0 || a.following != nil || !l.mainKnown {
		return nil
	}
	if a.handling != nil && !a.handling.inLine {
		// Its outcome decides. Also when its copy or its mark has come back: until it is acked it may
		// come again, and would then be behind this message.
		return nil
	}
	inLine := len(a.waiting) > 0 || a.handling != nil
	must := a.fresh[0].must
	follows := inLine || must || l.careful
	if follows && !must && !l.hasRoom() || !l.hasReserve() || !follows && l.mustsWait() {
		l.wait(a)
		return nil
	}
	return l.begin(a, follows)
}

func (l *Line[T]) handleFirst(a *lane[T]) *Step[T] {
	e := a.waiting[0]
	a.waiting[0] = entry[T]{}
	a.waiting = a.waiting[1:]
	l.handling++
	first := cmp.Or(e.First, e.ID)
	a.handling = &Step[T]{
		From: e.ID, Item: e.Item, Key: a.key, Seq: e.Seq, ID: l.newID(a), First: first,
		Mark: a.markOf(first), lane: a, inLine: true, size: e.Size,
	}
	return a.handling
}

// markOf returns the mark of a message. Two messages may have the same number, because a key that
// has left the line begins anew. So the message is known by its first copy.
func (a *lane[T]) markOf(first ID) ID {
	for i := range a.waiting {
		if e := &a.waiting[i]; e.Block && e.here && cmp.Or(e.First, e.ID) == first {
			return e.ID
		}
	}
	return ID{}
}

func (l *Line[T]) begin(a *lane[T], follows bool) *Step[T] {
	s := &Step[T]{
		Item: a.fresh[0].item, Follows: follows, Key: a.key, Seq: a.last + 1, ID: l.newID(a), lane: a,
	}
	if a.fresh[0].must {
		if l.musts--; l.musts == 0 {
			l.retry()
		}
	}
	a.fresh[0] = fresh[T]{}
	a.fresh = a.fresh[1:]
	if follows {
		a.following, a.last = s, s.Seq
	} else {
		l.handling++
		a.handling = s
	}
	return s
}

func (l *Line[T]) newID(a *lane[T]) ID {
	l.writes++
	id := ID{l.epoch, l.writes}
	l.expected[id] = a
	return id
}

func (l *Line[T]) hasRoom() bool {
	return l.messages < l.limits.Messages && l.bytes < l.limits.Bytes
}

// hasReserve reports whether there is room for a message that may fail, or must follow.
func (l *Line[T]) hasReserve() bool {
	return l.messages+l.handling < l.limits.Messages+Reserve && l.bytes < 2*l.limits.Bytes
}

// mustsWait reports whether the messages that must follow go first. A handler may end the process,
// which counts against their delivery limit. They do not wait for a handler that hangs.
func (l *Line[T]) mustsWait() bool { return l.musts > 0 && l.handling == 0 && l.hasReserve() }

// noteFull looks at the lanes again if messages that must follow have no room.
func (l *Line[T]) noteFull() {
	if l.musts > 0 && !l.hasReserve() {
		l.retry()
	}
}

// out counts a message that has left the line.
func (l *Line[T]) out(size int) {
	l.messages--
	l.bytes -= size
	l.retry()
}

// wait keeps a lane until retry.
func (l *Line[T]) wait(a *lane[T]) {
	if !a.full {
		a.full = true
		l.full = append(l.full, a)
	}
}

// retry looks at the lanes that wait again.
func (l *Line[T]) retry() {
	for _, a := range l.full {
		a.full = false
		l.touch(a)
	}
	l.full = l.full[:0]
}

func (l *Line[T]) sleep(a *lane[T], until time.Time) {
	if a.wake.IsZero() || until.Before(a.wake) {
		a.wake = until
		heap.Push(&l.timers, timer[T]{until, a})
	}
}

// insert puts an entry in its place: behind those with the same number.
func (a *lane[T]) insert(e entry[T]) {
	i := len(a.waiting)
	for i > 0 && compare(a.waiting[i-1].Waiting, e.Waiting) > 0 {
		i--
	}
	a.waiting = slices.Insert(a.waiting, i, e)
}

func compare[T any](a, b Waiting[T]) int {
	return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.ID.Epoch, b.ID.Epoch),
		cmp.Compare(a.ID.N, b.ID.N))
}

// timer wakes a lane.
type timer[T any] struct {
	at   time.Time
	lane *lane[T]
}

// timers is a heap.
type timers[T any] []timer[T]

func (t timers[T]) Len() int { return len(t) }

func (t timers[T]) Less(i, j int) bool { return t[i].at.Before(t[j].at) }

func (t timers[T]) Swap(i, j int) { t[i], t[j] = t[j], t[i] }

func (t *timers[T]) Push(x any) { *t = append(*t, x.(timer[T])) }

func (t *timers[T]) Pop() any {
	last := len(*t) - 1
	x := (*t)[last]
	*t = (*t)[:last]
	return x
}
