package order

import (
	"slices"
	"time"
)

// Key is a key with messages in the line.
type Key[T any] struct {
	Key     string
	Waiting int       // messages in the line
	Due     time.Time // of the first
	Mark    *T        // of a dead letter that blocks the key
	MarkID  ID
	// Replayed says that a copy of the dead letter, with the ID of the mark, waits, too.
	Replayed bool
}

// Keys calls yield for each key with messages in the line.
func (l *Line[T]) Keys(yield func(Key[T]) bool) {
	for a := range l.all {
		if len(a.waiting) == 0 {
			continue
		}
		k := Key[T]{Key: a.key, Waiting: len(a.waiting), Due: a.waiting[0].Due}
		isMark := func(e entry[T]) bool { return e.Block && e.here }
		if i := slices.IndexFunc(a.waiting, isMark); i >= 0 { // before it are only duplicates
			mark := &a.waiting[i]
			k.Mark, k.MarkID = &mark.Item, mark.ID
			k.Replayed = slices.ContainsFunc(a.waiting, func(e entry[T]) bool {
				return !e.Block && e.ID == mark.ID
			})
		}
		if !yield(k) {
			return
		}
	}
}

// States returns Keys as a tool is told them. about returns the time and the id of a mark.
func (l *Line[T]) States(about func(T) (blocked time.Time, messageID string)) (keys []KeyState) {
	for k := range l.Keys {
		s := KeyState{Key: k.Key, Waiting: k.Waiting, Due: k.Due, Replayed: k.Replayed}
		if k.Mark != nil {
			s.Waiting--
			s.Mark = k.MarkID.String()
			s.Blocked, s.MessageID = about(*k.Mark)
		}
		keys = append(keys, s)
	}
	return keys
}
