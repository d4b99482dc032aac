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
	waits     [queues]bool
	wake      time.Time // of its timer
}

// queue has the lanes that wait for the same, in their order. If the first may not go on, none may.
// So a change costs as much as the lanes that it lets go on.
type queue int

const (
	forReserve queue = iota
	forRoom
	forTurn // to be handled
	queues
	none
)

// entry is a message in the line.
type entry[T any] struct {
	Waiting[T]
	here bool // it was returned
	sure bool // it is in the line, or gone
}

type fresh[T any] struct {
	item        T
	again, must bool
}

// lane returns the lane of a key. A message without an order has its own.
func (l *Line[T]) lane(key string) *lane[T] {
	if key == "" {
		a := &lane[T]{}
		l.keyless[a] = struct{}{}
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
		delete(l.keyless, a)
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

// step begins the next message of the lane, if it may begin now. called is the queue from which
// the lane comes, or none.
func (l *Line[T]) step(a *lane[T], now time.Time, called queue) *Step[T] {
	if !l.lineKnown {
		return nil // Know comes back to all
	}
	if len(a.waiting) > 0 && a.handling == nil {
		first := &a.waiting[0]
		if first.here && !first.Block {
			switch {
			case first.Due.After(now):
				l.sleep(a, first.Due)
			case l.passes(a, forTurn, called):
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
	follows := inLine || a.fresh[0].must || l.careful && a.fresh[0].again
	if !l.freshPasses(a, follows, called) {
		return nil
	}
	return l.begin(a, follows)
}

// freshPasses reports whether the first message of the queue need not wait for a place in the line,
// or for its turn if it does not follow others.
func (l *Line[T]) freshPasses(a *lane[T], follows bool, called queue) bool {
	if follows && !a.fresh[0].must && !l.passes(a, forRoom, called) {
		return false
	}
	return l.passes(a, forReserve, called) && (follows || l.passes(a, forTurn, called))
}

// passes reports whether a lane need not wait in a queue. Otherwise it waits, behind the others.
func (l *Line[T]) passes(a *lane[T], q, called queue) bool {
	if (called == q || len(l.waiting[q]) == 0) && l.may(a, q) {
		return true
	}
	if !a.waits[q] {
		a.waits[q] = true
		l.waiting[q] = append(l.waiting[q], a)
	}
	return false
}

// may reports whether a lane that waits in a queue may go on.
func (l *Line[T]) may(a *lane[T], q queue) bool {
	switch q {
	case forReserve:
		return l.hasReserve()
	case forRoom:
		return l.hasRoom() && l.hasReserve()
	}
	alone := len(a.waiting) > 0 && a.waiting[0].Alone
	return !l.mustsWait() && (!l.careful || l.handling == 0 ||
		!alone && l.alone == nil && l.handling < l.window)
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
	if l.careful {
		l.trying[e.ID] = struct{}{}
		if e.Alone || l.window == 1 {
			l.alone = a.handling
		}
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
		l.musts--
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

// out counts a message that has left the line.
func (l *Line[T]) out(size int) {
	l.messages--
	l.bytes -= size
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
