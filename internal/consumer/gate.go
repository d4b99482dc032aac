package consumer

import (
	"context"
	"math/rand/v2"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/link"
)

const (
	// probeWait is how long a probe waits for its message.
	probeWait = time.Second
	// startSpread spreads the consumers of many processes when their gates open.
	startSpread = 100 * time.Millisecond
)

// noGate is a seam.Gate that is never shut.
type noGate struct{}

func (noGate) Shut() <-chan struct{}                                  { return nil }
func (noGate) Await(<-chan struct{}, func() (none bool), func()) bool { return false }
func (noGate) Later() time.Duration                                   { return 0 }
func (noGate) Start(time.Time) func(ready int)                        { return nil }
func (noGate) SetOneActive(bool)                                      {}
func (noGate) Leave()                                                 {}

// isShut reports whether the queue must not be consumed now.
func (s *Subscription) isShut() bool {
	select {
	case <-s.gate.Shut():
		return true
	default:
		return false
	}
}

// awaitGate waits while the gate is shut, and reports whether it has.
func (s *Subscription) awaitGate() (waited bool) {
	var held *Channel // between two probes
	return s.gate.Await(s.stop.Done(), func() (none bool) {
		held, none = s.probe(held)
		return none
	}, func() {
		if held != nil {
			s.release(held, nil)
			held = nil
		}
	})
}

// nextPause is the pause before consuming again. It is short if the gate was shut.
func nextPause(waited bool) time.Duration {
	if waited {
		return time.Duration(rand.Int64N(int64(startSpread)))
	}
	return resumePause
}

// probe takes one message to its end while the gate is shut, and reports whether there was none to
// take. c is nil or what the last probe has returned: a channel with a lane goes on.
func (s *Subscription) probe(c *Channel) (next *Channel, none bool) {
	if c == nil {
		if !s.places.areFree() { // by handlers that have begun before the stop
			return nil, true
		}
		if c = s.consumeOne(); c == nil {
			return nil, true
		}
	}
	rest, came := s.receive(c)
	if !c.Together {
		s.release(c, rest)
	}
	settled := make(chan struct{})
	go func() {
		c.inFlight.Wait()
		close(settled)
	}()
	select {
	case <-settled:
	case <-s.stop.Done():
	}
	none = !came && !c.ended
	switch {
	case !c.Together:
		return nil, none
	case c.ctx.Err() != nil || c.ended || c.lane.Over():
		s.release(c, nil)
		return nil, none
	}
	return c, none
}

// consumeOne returns a consumer that gets one message, or nil if the queue is empty or cannot be
// consumed now.
func (s *Subscription) consumeOne() *Channel {
	ctx, cancel := context.WithTimeout(s.stop, probeWait)
	defer cancel()
	conn, err := s.cfg.Link.Conn(ctx)
	if err != nil {
		return nil
	}
	found, err := audit.Passive(ctx, conn.Do, s.cfg.Queue)
	// A user who may not look is refused (F24). A lane may have messages elsewhere.
	empty := err == nil && found.Messages == 0 && !s.limits.Together
	if empty || err != nil && !isCode(err, amqp.AccessRefused) {
		return nil
	}
	c, err := Within(ctx, s.cfg.Queue, func() (*Channel, error) {
		return s.cfg.Lanes.Open(s, conn, s.limits, ToGetOne)
	})
	if err != nil {
		s.logger.Debug("Cannot probe: "+err.Error(), nil)
		return nil
	}
	return c
}

// look tells how many messages have gathered in the queue. A user who may not look sees none (F24).
func (s *Subscription) look(conn *link.Conn, tell func(ready int)) {
	ctx, cancel := context.WithTimeout(s.stop, probeWait)
	defer cancel()
	found, err := audit.Passive(ctx, conn.Do, s.cfg.Queue)
	if err == nil || isCode(err, amqp.AccessRefused) {
		tell(found.Messages)
	}
}
