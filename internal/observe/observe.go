// Package observe tells observers, and outlives what they do.
package observe

import (
	"context"
	"sync"
	"time"
)

// reportEvery keeps an observer that panics at every event from filling the log.
const reportEvery = time.Minute

// List tells several observers of the same events. A nil List has none, which is
// what whoever builds events should ask first. It may be used from many
// goroutines.
type List[E any] struct {
	observers []*observer[E]
	panicked  func(value any)
}

type observer[E any] struct {
	tell     func(context.Context, E)
	mu       sync.Mutex
	reported time.Time
}

// NewList returns a List of the observers; nil if there are none. panicked is
// told what one has panicked with, for each of them once a minute at most.
func NewList[E any](panicked func(value any), tell ...func(context.Context, E)) *List[E] {
	if len(tell) == 0 {
		return nil
	}
	l := &List[E]{panicked: panicked}
	for _, t := range tell {
		l.observers = append(l.observers, &observer[E]{tell: t})
	}
	return l
}

// Tell tells every observer of e, in the order they were given, in this
// goroutine.
func (l *List[E]) Tell(ctx context.Context, e E) {
	if l == nil {
		return
	}
	for _, o := range l.observers {
		if value := o.observe(ctx, e); value != nil && o.due(time.Now()) {
			l.panicked(value)
		}
	}
}

// observe returns what the observer panicked with, or nil.
func (o *observer[E]) observe(ctx context.Context, e E) (value any) {
	defer func() { value = recover() }()
	o.tell(ctx, e)
	return nil
}

func (o *observer[E]) due(now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.reported.IsZero() && now.Sub(o.reported) < reportEvery {
		return false
	}
	o.reported = now
	return true
}
