package publisher

import (
	"context"
	"time"
)

const (
	// maxApart bounds the targets that have a channel of their own.
	maxApart = 64
	// maxRetired bounds the channels that are open only because some of their
	// confirms have not come.
	maxRetired = 64
	// maxKnown bounds the exchanges that are known to work.
	maxKnown = 256
)

// target is where a message is published.
type target struct{ exchange, routingKey string }

// lane is a channel that is opened when it is needed, and again when it has ended.
// One lane is common to all targets that work. Another target has a lane of its own,
// because an error of the broker closes the whole channel, and because a queue
// without its majority may hold up everything behind it on its channel (F29).
type lane struct {
	session   *session
	opening   *opening
	single    bool      // one publish at a time, because an error would end the others
	dissolved bool      // no caller comes here any more
	worked    time.Time // when the target has worked; zero before
}

// slots is how many publishes may be under way on a lane.
func (l *lane) slots() int {
	if l.single {
		return 1
	}
	return maxInFlight
}

// laneOf returns the lane of a target. A target at a named exchange begins on a lane
// of its own, because the exchange may be missing or forbidden. p.mu is held.
func (p *Publisher) laneOf(to target) *lane {
	if len(p.apart) > 0 {
		if l := p.apart[to]; l != nil {
			return l
		}
	}
	if to.exchange != "" && !p.known[to.exchange] {
		if l := p.ownLane(to); l != nil {
			l.single = true
			return l
		}
	}
	return &p.common
}

// ownLane returns the lane that a target has for itself; nil where too many targets
// have one. p.mu is held.
func (p *Publisher) ownLane(to target) *lane {
	l := p.apart[to]
	if l == nil && (len(p.apart) < maxApart || p.forgetIdle()) {
		l = new(lane)
		p.apart[to] = l
	}
	return l
}

// separate gives a target a lane of its own until a message has gone through there.
// refused says that the broker has closed a channel on which the target was in use.
// The result is nil where too many targets have a lane of their own.
func (p *Publisher) separate(to target, refused bool) *lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	if refused {
		delete(p.known, to.exchange)
	}
	l := p.ownLane(to)
	if l != nil && refused && !l.single {
		l.single = true
		p.endLane(l) // its channel has room for many
	}
	return l
}

// forgetIdle makes room for another target by dissolving a lane that no caller
// uses. p.mu is held.
func (p *Publisher) forgetIdle() bool {
	for to, l := range p.apart {
		if l.opening == nil && (l.session == nil || l.session.users == 0) {
			p.dissolve(to, l)
			return true
		}
	}
	return false
}

// rejoin takes a target back to the common lane after a publish on s has worked.
// Where an error was to be expected, s must have been for one publish at a time.
// p.mu is held.
func (p *Publisher) rejoin(to target, s *session) {
	l := p.apart[to]
	if l == nil || l.single && cap(s.slots) > 1 {
		return
	}
	l.worked = time.Now()
	p.dissolve(to, l)
	if to.exchange != "" {
		if len(p.known) >= maxKnown {
			clear(p.known)
		}
		p.known[to.exchange] = true
	}
}

// dissolve ends a lane. Callers that wait for a place there go on to the common
// lane. p.mu is held.
func (p *Publisher) dissolve(to target, l *lane) {
	delete(p.apart, to)
	l.dissolved = true
	p.endLane(l)
}

// endLane takes the channel of a lane out of use. p.mu is held.
func (p *Publisher) endLane(l *lane) {
	if l.session != nil {
		p.end(l.session)
		l.session = nil
	}
}

// overdue deals with a publish whose confirm has not come when ctx was done. A short
// ctx of the caller says nothing about the target.
func (p *Publisher) overdue(ctx context.Context, s *sent) {
	if context.Cause(ctx) == p.tooLate {
		s.lane = p.separate(s.to, false)
	}
	p.mu.Lock()
	// amqp091-go keeps every later confirm of a channel in memory while an earlier one
	// is open, so the common lane gets another channel. So does one without a place.
	full := len(s.session.slots) == cap(s.session.slots)
	if (full || p.common.session == s.session) && p.retired < maxRetired {
		p.end(s.session)
	}
	p.mu.Unlock()
	p.probe(s.session.conn)
}

// giveUpLost gives up a publish whose confirm is lost, because its target works on
// another channel for the whole timeout. The channel is closed when all that is left on
// it is lost. RabbitMQ before 4.3 may lose a publish, and with it the confirm, where the
// leader of a quorum queue dies together with the majority (F29).
func (p *Publisher) giveUpLost(s *sent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.lane == nil || s.lane.worked.IsZero() || time.Since(s.lane.worked) < p.cfg.Timeout {
		return
	}
	p.end(s.session)
	if !s.lost {
		s.lost = true
		s.session.lost++
	}
	if s.session.lost == s.session.users {
		p.closeChannel(s.session)
	}
}

// settled gives back the place of a publish that was kept.
func (p *Publisher) settled(s *sent, worked bool) {
	p.mu.Lock()
	if s.lost {
		s.session.lost--
	}
	p.mu.Unlock()
	p.leave(s.session, s.to, worked)
}
