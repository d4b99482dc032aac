package publisher

const (
	// maxApart bounds the targets that have their own channel.
	maxApart = 64
	// maxRetired bounds the channels that are open only because some of their confirms are late.
	maxRetired = 64
	// maxKnown bounds the exchanges that are known to work, and the targets that are known to be
	// silent although no outcome is open.
	maxKnown = 256
)

// lane is a channel that is opened when it is needed, and opened again when it has ended.
//
// All targets that work share the common lane. Another target has its own lane for two reasons. An
// error of the broker closes the whole channel. A queue without its majority may hold up all
// publishes behind it on its channel (F29).
type lane struct {
	channel   *channel
	opening   *opening
	single    bool // one publish at a time, because an error would end the others
	dissolved bool // no caller comes here any more
}

// slots returns how many publishes may be in flight on a lane.
func (l *lane) slots() int {
	if l.single {
		return 1
	}
	return maxInFlight
}

// laneOf returns the lane of a target. A target at a named exchange begins on its own lane,
// because the exchange may be missing or forbidden. p.mu is held.
func (p *Publisher) laneOf(to Target) *lane {
	if len(p.apart) > 0 {
		if l := p.apart[to]; l != nil {
			return l
		}
	}
	if to.Exchange != "" && !p.known[to.Exchange] {
		if l := p.ownLane(to); l != nil {
			l.single = true
			return l
		}
	}
	return &p.common
}

// ownLane returns the target's own lane, or nil if too many targets have one. p.mu is held.
func (p *Publisher) ownLane(to Target) *lane {
	l := p.apart[to]
	if l == nil && (len(p.apart) < maxApart || p.forgetIdle()) {
		l = new(lane)
		p.apart[to] = l
	}
	return l
}

// separate gives a target its own lane until a message has gone through there, unless too many
// targets have one. refused says that the broker has closed a channel on which the target was in
// use.
func (p *Publisher) separate(to Target, refused bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if refused {
		delete(p.known, to.Exchange)
	}
	l := p.ownLane(to)
	if l != nil && refused && !l.single {
		l.single = true
		p.endLane(l) // its channel has room for many
	}
}

// forgetIdle makes room for another target: it dissolves a lane without callers. p.mu is held.
func (p *Publisher) forgetIdle() bool {
	for to, l := range p.apart {
		if l.opening == nil && (l.channel == nil || l.channel.users == 0) {
			p.dissolve(to, l)
			return true
		}
	}
	return false
}

// rejoin takes a target back to the common lane after a publish on c has worked. If an error was
// to be expected, c must have been for one publish at a time. p.mu is held.
func (p *Publisher) rejoin(to Target, c *channel) {
	l := p.apart[to]
	if l == nil || l.single && cap(c.slots) > 1 {
		return
	}
	p.dissolve(to, l)
	if to.Exchange != "" {
		if len(p.known) >= maxKnown {
			clear(p.known)
		}
		p.known[to.Exchange] = true
	}
}

// dissolve ends a lane. Callers that wait for a place there go on to the common lane. p.mu is
// held.
func (p *Publisher) dissolve(to Target, l *lane) {
	delete(p.apart, to)
	l.dissolved = true
	p.endLane(l)
}

// endLane takes the channel of a lane out of use. p.mu is held.
func (p *Publisher) endLane(l *lane) {
	if l.channel != nil {
		p.end(l.channel)
		l.channel = nil
	}
}
