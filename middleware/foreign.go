package middleware

import (
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// The pauses after failures of a handler whose messages come from another Pub/Sub, which brings
// a nacked message back at once.
const (
	firstForeignPause = time.Second
	maxForeignPause   = 30 * time.Second
	// foreignCalm is the time without a failure after which the pauses begin anew, and the least time
	// between two log lines.
	foreignCalm = time.Minute
)

// foreign slows handlers down whose failures cannot be retried, each by its name.
type foreign struct {
	mu       sync.Mutex
	handlers map[string]*foreignHandler
}

type foreignHandler struct {
	pause       time.Duration
	until, said time.Time
}

// failed returns how long to pause after a failure of the handler, and whether to log it. Failures
// during a pause share it.
func (s *foreign) failed(handler string, now time.Time) (pause time.Duration, say bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.handlers[handler]
	if h == nil {
		if s.handlers == nil {
			s.handlers = map[string]*foreignHandler{}
		}
		h = &foreignHandler{}
		s.handlers[handler] = h
	}
	switch {
	case now.Sub(h.until) > foreignCalm:
		h.pause = firstForeignPause
	case !now.Before(h.until):
		h.pause = min(2*h.pause, maxForeignPause)
	}
	if !now.Before(h.until) {
		h.until = now.Add(h.pause)
	}
	if say = now.Sub(h.said) >= foreignCalm; say {
		h.said = now
	}
	return h.pause, say
}

// slowDown pauses before the nack of a message that another Pub/Sub delivered. Its successes need
// nothing of a DelayedRetry, so its handler is called as ever.
func (f *failed) slowDown(err error) {
	now := time.Now()
	pause, say := f.r.foreign.failed(f.at.Handler, now)
	if say {
		f.logger.Error("Failed message cannot be retried: its handler does not consume with a "+
			"Subscriber of this client; its failures are slowed down", err,
			watermill.LogFields{"pause": pause})
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-f.ctx.Done():
	}
}
