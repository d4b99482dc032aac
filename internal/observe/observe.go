// Package observe tells observers of events, and survives their panics.
package observe

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/millpond-go/millpond/internal/nils"
)

// reportEvery keeps the log short if an observer panics at every event.
const reportEvery = time.Minute

// List tells several observers of the same events. A nil List has no observers: compare with
// nil before you build an event. Many goroutines may use it.
type List[E any] struct {
	observers []*observer[E]
	panicked  func(value any)
}

type observer[E any] struct {
	tell     func(context.Context, E)
	mu       sync.Mutex
	reported time.Time
}

// NewList returns a List of the observers; nil if there are none. panicked gets the value of an
// observer's panic, once a minute at most for each observer.
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

// Tell tells every observer of e, in their order, in this goroutine.
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

// observe returns the value that the observer panicked with, or nil.
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

// Union returns the observers and then those of more that are not among them. Observers that cannot
// be compared, as functions, are different from each other.
func Union[O comparable](observers, more []O) []O {
	all := slices.Clone(observers)
	for _, o := range more {
		if nils.Is(o) || !reflect.ValueOf(o).Comparable() || !slices.Contains(all, o) {
			all = append(all, o)
		}
	}
	return all
}
