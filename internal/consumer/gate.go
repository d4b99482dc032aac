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
	var held *consumer // of a queue that is handled in order, between two probes
	return s.gate.Await(s.stop.Done(), func() (none bool) {
		if s.cfg.Order == nil {
			return s.probe()
		}
		held, none = s.probeInOrder(held)
		return none
	}, func() {
		if held != nil {
			s.releaseInOrder(held)
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

// probe takes one message from the queue to its end while the gate is shut, and reports whether
// there was none to take.
func (s *Subscription) probe() (none bool) {
	if !s.places.areFree() { // by handlers that have begun before the stop
		return true
	}
	c := s.consumeOne()
	if c == nil {
		return true
	}
	var raw amqp.Delivery
	select {
	case raw, c.ended = <-c.deliveries:
		c.ended = !c.ended
	case <-time.After(probeWait):
		none = true
	case <-s.stop.Done():
		none = true
	}
	// Before the message is acked, so that the broker delivers no second one.
	within(goodbyeTimeout, c.cancel)
	var in intake
	if none = none || c.ended; !none {
		c.acks.arrived(raw.DeliveryTag)
		s.arrived(c, &in, arrival{raw: raw, at: time.Now()})
	}
	select {
	case <-in.turn(): // else it would come again and again, before all others
		in.ready.push(in.suspects.pop())
	default:
	}
	if in.ready.len() > 0 {
		s.begun(c, in.ready.pop())
	}
	s.release(c, in.rest())
	settled := make(chan struct{})
	go func() {
		c.inFlight.Wait()
		close(settled)
	}()
	select {
	case <-settled:
	case <-s.stop.Done():
	}
	return none
}

// consumeOne returns a consumer that gets one message, or nil if the queue is empty or cannot be
// consumed now.
func (s *Subscription) consumeOne() *consumer {
	ctx, cancel := context.WithTimeout(s.stop, probeWait)
	defer cancel()
	conn, err := s.cfg.Link.Conn(ctx)
	if err != nil {
		return nil
	}
	found, err := audit.Passive(ctx, conn.Do, s.cfg.Queue)
	// A user who may not look is refused (F24). With an order, a message may wait in the line.
	empty := err == nil && found.Messages == 0 && s.cfg.Order == nil
	if empty || err != nil && !isCode(err, amqp.AccessRefused) {
		return nil
	}
	c, err := s.consumeWithin(ctx, func() (*consumer, error) {
		if s.cfg.Order != nil {
			return s.consumeLine(conn, s.limits, toGetOne)
		}
		return s.consume(conn, s.limits, toGetOne)
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
