// Package order decides which message of a queue may begin, so that the messages of each key are
// handled in their order, also while one of them waits for its retry.
//
// Messages come from two queues. The main queue is the user's. The line is a queue beside it: a
// failed message waits there, and the messages of its key that come after it wait there, too,
// each with the next number. One process consumes both queues and knows everything that is in the
// line. A Line is the memory of that process. It knows no broker.
//
//	main queue ── no message of the key is in the line ──► Handle
//	           ── else, one at a time for each key ──────► Follow: a copy to the line
//	line ─────── the first of its key, and due ──────────► Handle
//
// A copy must be confirmed before its message is acked. So at any time the messages of a key that
// have left the main queue come before the messages that are still in it, and a process that ends
// leaves nothing behind but copies beside their messages.
package order

import (
	"container/heap"
	"maps"
	"slices"
	"time"
)

// ID names one copy in the line.
type ID struct{ Epoch, N uint64 }

// Waiting is a message in the line.
type Waiting[T any] struct {
	Key string // "" for a message that has no order
	// Seq is the number of the message in its key.
	Seq uint64
	ID  ID
	// First is the ID of the first copy of the message; zero if this is the first. By it the mark of
	// a message is known.
	First ID
	Due   time.Time // zero: as soon as it is the first
	Size  int       // in memory
	// Block says that this is the mark of a dead letter whose key waits for a person.
	Block bool
	// Alone says that the message has been blamed before: it is tried with no other beside it.
	Alone bool
	Item  T
}

// Step is a message that may begin.
type Step[T any] struct {
	Item T
	// Follows says that the message must not be handled: a copy goes to the line, behind the
	// messages of its key.
	Follows bool
	// Key, Seq, ID and First belong to a copy that goes to the line.
	Key   string
	Seq   uint64
	ID    ID
	First ID
	// Mark is the mark of the message that is in the line already: an earlier process has ended
	// between the mark and the ack. If the message is dead again, it needs no other mark. Otherwise
	// the mark must be released. It is zero if there is none.
	Mark ID

	// From is the ID of the message in the line. It is zero if the message has come from the main
	// queue.
	From ID

	lane   *lane[T]
	inLine bool // the message has come from the line
	size   int
}

// Limits bound the line, because all of it is in memory. Beyond them nothing follows:
// the messages stay in the main queue. Messages that must follow, and messages whose key has
// nothing in the line and that may fail, have more room: Reserve messages and once more the bytes.
type Limits struct{ Messages, Bytes int }

// Reserve is how many more messages are in the line at most.
const Reserve = 4096

// MaxTried is how many messages are tried together at most.
const MaxTried = 32

// MaxEpoch and MaxSeq are the highest numbers that count, and MaxJump is how far an epoch may be
// above an epoch in which a process has led. Higher numbers are forged. They would leave no number
// to the next message or process.
const (
	MaxEpoch uint64 = 1 << 53
	MaxJump  uint64 = 1 << 20
	MaxSeq   uint64 = 1 << 53
)

// Line is the memory of the process that consumes. Only one goroutine at a time may use it.
type Line[T any] struct {
	limits Limits
	epoch  uint64
	led    uint64 // an epoch in which a process has led; 0: none is known
	writes uint64 // copies so far

	careful  bool
	window   int             // so many may be handled at once while careful
	most     int             // the largest window
	suspects map[ID]struct{} // one of them may have ended the process before; not handled yet
	trying   map[ID]struct{} // messages of the line that are handled while careful
	alone    *Step[T]        // nothing is handled beside it
	handling int             // messages
	musts    int             // messages of the main queue that must follow

	lineKnown bool // everything that is in the line has been returned
	mainKnown bool // and it was everything when the first message of the main queue came

	lanes    map[string]*lane[T]
	keyless  map[*lane[T]]struct{} // of messages that have no order
	expected map[ID]*lane[T]       // of copies that may be in the line and have not been returned
	ready    []*lane[T]            // that may have a step
	timers   timers[T]             // lanes whose first message is not due
	waiting  [queues][]*lane[T]    // in queues
	messages int                   // in the line
	bytes    int
}

// New returns a Line of which nothing is known yet.
func New[T any](limits Limits) *Line[T] {
	return &Line[T]{
		limits: limits, lanes: map[string]*lane[T]{}, keyless: map[*lane[T]]struct{}{},
		expected: map[ID]*lane[T]{}, trying: map[ID]struct{}{},
	}
}

// Arrived takes a message of the main queue. again says that an earlier process may have had it in
// hand. A message that must follow goes to the line also if no message of its key is there, and
// beyond the limits.
func (l *Line[T]) Arrived(key string, item T, again, must bool) {
	a := l.lane(key)
	a.fresh = append(a.fresh, fresh[T]{item, again, false})
	for i := len(a.fresh) - 1; must && i >= 0 && !a.fresh[i].must; i-- {
		a.fresh[i].must = true // what stands before it goes first
		l.musts++
	}
	l.touch(a)
}

// Returned takes a message of the line.
func (l *Line[T]) Returned(w Waiting[T]) {
	a, ok := l.expected[w.ID]
	if !ok {
		a = l.lane(w.Key)
	}
	delete(l.expected, w.ID)
	l.Seen(w.ID.Epoch)
	if w.Seq <= MaxSeq {
		a.last = max(a.last, w.Seq)
	}
	l.bytes += w.Size
	i := -1
	if ok {
		i = slices.IndexFunc(a.waiting, func(e entry[T]) bool { return !e.here && e.ID == w.ID })
	}
	if i >= 0 {
		a.waiting[i] = entry[T]{Waiting: w, here: true}
	} else {
		l.messages++
		a.insert(entry[T]{Waiting: w, here: true})
	}
	l.touch(a)
}

// Know says that everything in the line has been returned. With main it was so when the first
// message of the main queue had come.
func (l *Line[T]) Know(epoch uint64, main bool) {
	l.epoch, l.lineKnown, l.mainKnown = max(l.epoch, epoch), true, l.mainKnown || main
	l.led = l.epoch
	for a := range l.all {
		a.waiting = slices.DeleteFunc(a.waiting, func(e entry[T]) bool {
			gone := e.sure && !e.here // the line was purged
			if gone {
				delete(l.expected, e.ID)
				l.out(0)
			}
			return gone
		})
		l.touch(a)
	}
}

// all calls yield with each lane.
func (l *Line[T]) all(yield func(*lane[T]) bool) {
	for _, a := range l.lanes {
		if !yield(a) {
			return
		}
	}
	for a := range l.keyless {
		if !yield(a) {
			return
		}
	}
}

// Forget returns the messages of the line that have not begun, in no order. They are to be given
// back to the broker and will be returned. Nothing begins until Know is called.
func (l *Line[T]) Forget() (items []T) {
	l.lineKnown = false
	for a := range l.all {
		a.waiting = slices.DeleteFunc(a.waiting, func(e entry[T]) bool {
			if !e.here || e.Block && a.handling != nil && a.handling.Mark == e.ID {
				return false // the mark stays with its message
			}
			items = append(items, e.Item)
			l.out(e.Size)
			return true
		})
		for i := range a.waiting {
			a.waiting[i].sure = true
		}
	}
	return items
}

// BeCareful says whether the messages of the line are tried. At first one is handled alone. Each
// message that has ended in peace lets one more be handled at once, up to most. A message of the
// main queue that an earlier process may have had in hand goes to the line before.
//
// One of the suspects may have ended the process before. So half as many are handled at once until
// all of them have been: if this process ends, too, the next has half as many suspects. The last is
// handled alone. They come first: another message that ends its process would take their place, and
// they would be sought anew.
func (l *Line[T]) BeCareful(careful bool, most int, suspects ...ID) {
	l.careful, l.most, l.alone, l.suspects = careful, most, nil, map[ID]struct{}{}
	first := map[*lane[T]]int{}
	for a := range l.all {
		if careful && a.handling != nil && a.handling.inLine {
			l.trying[a.handling.From] = struct{}{}
		}
		for i := range a.waiting {
			if id := a.waiting[i].ID; slices.Contains(suspects, id) {
				l.suspects[id] = struct{}{}
				first[a] = -1
			}
		}
	}
	l.window = max(1, min(len(l.suspects)/2, most))
	for q, waiting := range l.waiting {
		l.waiting[q] = nil
		for _, a := range waiting {
			a.waits[q] = false
			l.touch(a)
		}
	}
	slices.SortStableFunc(l.ready, func(a, b *lane[T]) int { return first[a] - first[b] })
}

// Trying returns the messages of the line that are being tried: a single message if nothing is
// handled beside it, or the messages that are handled together, beside fresh messages, MaxTried of
// them at most.
func (l *Line[T]) Trying() (alone ID, together []ID) {
	if l.alone != nil {
		return l.alone.From, nil
	}
	together = slices.Collect(maps.Keys(l.trying))
	return ID{}, together[:min(len(together), MaxTried)]
}

// Epoch is the highest epoch that was seen.
func (l *Line[T]) Epoch() uint64 { return l.epoch }

// Led notes an epoch in which a process has led. It has no effect if one is known.
func (l *Line[T]) Led(epoch uint64) {
	if l.led == 0 && epoch <= MaxEpoch+MaxJump {
		l.led = epoch
	}
}

// Seen notes an epoch of another process. It reports whether the epoch counts.
func (l *Line[T]) Seen(epoch uint64) bool {
	if epoch > l.led+MaxJump {
		return false
	}
	l.epoch = max(l.epoch, epoch)
	return true
}

// Len returns how many messages are in the line, and their bytes in memory.
func (l *Line[T]) Len() (messages, bytes int) { return l.messages, l.bytes }

// HasSpare reports whether a tenth of the room is free.
func (l *Line[T]) HasSpare() bool {
	return l.messages <= l.limits.Messages*9/10 && l.bytes <= l.limits.Bytes/10*9
}

// Fresh calls yield with the first message of each key that waits in the main queue.
func (l *Line[T]) Fresh(yield func(T) bool) {
	for a := range l.all {
		if len(a.fresh) > 0 && !yield(a.fresh[0].item) {
			return
		}
	}
}

// Next returns a message that may begin.
func (l *Line[T]) Next(now time.Time) (*Step[T], bool) {
	for len(l.timers) > 0 && !l.timers[0].at.After(now) {
		t := heap.Pop(&l.timers).(timer[T])
		t.lane.wake = time.Time{}
		l.touch(t.lane)
	}
	for q := range l.waiting {
		for len(l.waiting[q]) > 0 && l.may(l.waiting[q][0], queue(q)) {
			a := pop(&l.waiting[q])
			a.waits[q] = false
			if step := l.step(a, now, queue(q)); step != nil {
				l.touch(a)
				return step, true
			}
		}
	}
	for len(l.ready) > 0 {
		a := pop(&l.ready)
		a.ready = false
		if step := l.step(a, now, none); step != nil {
			l.touch(a)
			return step, true
		}
	}
	return nil, false
}

// pop takes the first lane.
func pop[T any](lanes *[]*lane[T]) *lane[T] {
	a := (*lanes)[0]
	if *lanes = (*lanes)[1:]; len(*lanes) == 0 {
		*lanes = nil
	}
	return a
}

// Wake returns when Next may return a message that is not due now.
func (l *Line[T]) Wake() (at time.Time, any bool) {
	if len(l.timers) == 0 {
		return time.Time{}, false
	}
	return l.timers[0].at, true
}

// Ended takes the end of a step. The delivery is settled. copied says that a copy with the Seq
// and the ID of the step is in the line.
func (l *Line[T]) Ended(s *Step[T], copied bool) {
	a := s.lane
	if s.Follows {
		a.following = nil
	} else {
		a.handling = nil
		l.handling--
		l.tried(s)
	}
	if s.inLine {
		l.out(s.size)
	}
	_, expected := l.expected[s.ID]
	switch {
	case !copied:
		delete(l.expected, s.ID)
	case expected: // else it was returned before
		a.last = max(a.last, s.Seq)
		l.messages++
		a.insert(entry[T]{Waiting: Waiting[T]{Key: a.key, Seq: s.Seq, ID: s.ID}})
	}
	l.touch(a)
}

// tried notes that a message was handled, and that the process has not ended.
func (l *Line[T]) tried(s *Step[T]) {
	if l.alone == s {
		l.alone = nil
	}
	delete(l.trying, s.From)
	delete(l.suspects, s.From)
	if len(l.suspects) == 0 {
		l.window = min(l.window+1, l.most)
	}
}

// Release takes the marks of dead letters from the front of a key and returns them. It has no
// effect on a mark with another ID, and on the mark of a message that is handled again: its outcome
// decides whether the key is blocked.
func (l *Line[T]) Release(key string, id ID) (items []T) {
	a, ok := l.lanes[key]
	if !ok || a.handling != nil && a.handling.Mark == id {
		return nil
	}
	a.waiting = slices.DeleteFunc(a.waiting, func(e entry[T]) bool {
		if !e.Block || e.ID != id || !e.here {
			return false
		}
		items = append(items, e.Item)
		l.out(e.Size)
		return true
	})
	l.touch(a)
	return items
}
