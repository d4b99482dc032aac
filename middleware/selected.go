package middleware

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millpond-go/millpond/internal/seam"
)

// selected finds the selectors that match no handler, as one with a misspelled name does. The name
// of a handler is known once it has a message.
type selected struct {
	mu       sync.Mutex
	handlers int     // that Middleware was called for, and that have had no message yet
	met      []place // of the others
	warned   []string
}

// startup is how long a router may take to start its handlers, one after the other.
const startup = time.Minute

// add counts a handler. The result is to be set at the handler's first message, and then meet to be
// called; it is nil if there are no selectors.
func (s *selected) add(r *DelayedRetry) (met *atomic.Bool) {
	if len(r.selectors()) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handlers++
	return new(atomic.Bool)
}

// meet notes where a handler is. A minute after each handler has had a message, it warns of the
// selectors that match none of them.
func (s *selected) meet(r *DelayedRetry, at place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handlers--; !slices.Contains(s.met, at) {
		s.met = append(s.met, at)
	}
	if s.handlers == 0 {
		time.AfterFunc(startup, func() { s.warn(r) })
	}
}

func (s *selected) warn(r *DelayedRetry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handlers > 0 { // another one has come
		return
	}
	for _, rule := range r.selectors() {
		name := rule.name()
		if slices.ContainsFunc(s.met, rule.matches) || slices.Contains(s.warned, name) {
			continue
		}
		s.warned = append(s.warned, name)
		r.logger.Error("Warning: a selector matches no handler that runs, so its policy or budget is "+
			"never used: correct its names", seam.ErrNotYet, watermill.LogFields{"selector": name})
	}
}

// selectors returns the rules of WithPolicyFor and WithBudget.
func (r *DelayedRetry) selectors() []rule {
	all := slices.Clone(r.limits.rules)
	for _, b := range r.budgets {
		all = append(all, b.only...)
	}
	return all
}

// name is the selector for a log line.
func (s Selector) name() string {
	var parts []string
	for _, p := range [][2]string{{"handler", s.Handler}, {"queue", s.Queue}, {"topic", s.Topic}} {
		if p[1] != "" {
			parts = append(parts, p[0]+" "+strconv.Quote(p[1]))
		}
	}
	return strings.Join(parts, ", ")
}
