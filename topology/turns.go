package topology

import (
	"slices"
	"sync"
)

// turns is the line in which the suspects of a process wait to be tried, one at a
// time and in the order they were delivered. Tried together they would go down
// together, once with each restart, until the broker drops them all at its limit.
type turns struct {
	mu   sync.Mutex
	line []*turn // the first has its turn
}

// turn is a place in the line.
type turn struct {
	of   *turns
	come chan struct{} // closed when all before have left
}

// join takes the last place.
func (t *turns) join() *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := &turn{of: t, come: make(chan struct{})}
	t.line = append(t.line, own)
	if len(t.line) == 1 {
		close(own.come)
	}
	return own
}

// leave gives up the place, whether its turn has come or not; a second time, or
// of nil, it does nothing.
func (own *turn) leave() {
	if own == nil {
		return
	}
	own.of.mu.Lock()
	defer own.of.mu.Unlock()
	i := slices.Index(own.of.line, own)
	if i < 0 {
		return
	}
	own.of.line = slices.Delete(own.of.line, i, i+1)
	if i == 0 && len(own.of.line) > 0 {
		close(own.of.line[0].come)
	}
}
