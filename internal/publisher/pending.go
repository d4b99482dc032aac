package publisher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"
)

// Pending remembers, for one message, the publish whose outcome is open, so that no second copy
// is published beside it. The zero value remembers none. Release may be called at any time. The
// other methods, and publishing, are for one goroutine at a time.
type Pending struct {
	// Written is told when PublishFor has written the message, before it waits for the confirm.
	// Default: none is told.
	Written interface{ AfterWrite() }

	sent atomic.Pointer[sent]
	// refused says that the broker has closed the channel on which the message was published.
	// The message may have been the reason.
	refused bool
}

// IsOpen reports whether there is a publish whose outcome is open.
func (o *Pending) IsOpen() bool { return o.sent.Load() != nil }

// late ends a call whose confirm has not come when ctx was done. It keeps the publish in pending.
func (p *Publisher) late(ctx context.Context, s sent, pending *Pending) error {
	p.overdue(ctx, &s)
	if pending != nil {
		p.keep(s.to)
		pending.sent.Store(&s)
	} else {
		p.retire(s.channel) // its return may still come, and has no place any more
		p.leave(s.channel, s.to, false)
	}
	return unknown(context.Cause(ctx))
}

// overdue separates the target of a late publish, and its channel, from the others. A short ctx
// of the caller says nothing about the target.
func (p *Publisher) overdue(ctx context.Context, s *sent) {
	if context.Cause(ctx) == p.tooLate {
		p.separate(s.to, false)
	}
	p.mu.Lock()
	// amqp091-go keeps every later confirm of a channel in memory while an earlier one is open.
	// So the common lane gets another channel. So does a lane whose channel has no place left.
	full := len(s.channel.slots) == cap(s.channel.slots)
	if (full || p.common.channel == s.channel) && p.retired < maxRetired {
		p.end(s.channel)
	}
	p.mu.Unlock()
	p.probe(s.channel.conn)
}

// silence has the knowledge of a target while outcomes of publishes to it are open.
type silence struct {
	open     int       // outcomes
	scouted  bool      // since the last success
	since    time.Time // of the last success or scout, or of the first of the publishes
	patience time.Duration
	worked   [2]struct { // the first successes, on two channels
		on *channel
		at time.Time
	}
}

// scoutAfter is how many timeouts a target has no success before the first scout.
const scoutAfter = 3

// keep counts a publish whose outcome is open.
func (p *Publisher) keep(to Target) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.silent[to]
	if t == nil {
		p.forgetScouts()
		t = &silence{since: time.Now().Add(-p.cfg.Timeout), patience: scoutAfter * p.cfg.Timeout}
		p.silent[to] = t
	}
	t.open++
}

// forgetScouts makes room where many scouts were not followed by a success. p.mu is held.
func (p *Publisher) forgetScouts() {
	if len(p.silent) < maxKnown {
		return
	}
	maps.DeleteFunc(p.silent, func(_ Target, t *silence) bool { return t.open == 0 })
}

// works notes that a publish to a silent target has worked on c. p.mu is held.
func (p *Publisher) works(to Target, c *channel) {
	t := p.silent[to]
	switch {
	case t == nil:
		return
	case t.open == 0:
		delete(p.silent, to)
		return
	}
	t.since, t.patience, t.scouted = time.Now(), scoutAfter*p.cfg.Timeout, false
	for i := range t.worked {
		if w := &t.worked[i]; w.on == nil || w.on == c {
			if w.on == nil {
				w.on, w.at = c, t.since
			}
			return
		}
	}
}

// givesUp reports whether an open publish is given up now, because its confirm is lost: RabbitMQ
// may lose a confirm, before 4.3 also together with its publish (F29). There are two reasons.
//
//   - Its target has worked on another channel, and the whole timeout has passed since.
//   - Its target had no success for three timeouts. Then this publish is the scout: sent again, it
//     shows whether the target works. Each scout without success doubles the time until the next.
//     If the first copy is stored after all, the scout is a second one.
func (p *Publisher) givesUp(s *sent) bool {
	select {
	case <-s.confirm.Done(): // in the same moment
		return false
	default:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.silent[s.to]
	if t == nil {
		return false
	}
	if s.channel.conn.Unblocked() != nil { // an alarm, under which nothing is confirmed
		t.since = time.Now()
		return false
	}
	for _, w := range t.worked {
		if w.on != nil && w.on != s.channel && time.Since(w.at) >= p.cfg.Timeout {
			return true
		}
	}
	if time.Since(t.since) < t.patience {
		return false
	}
	t.since, t.patience, t.scouted = time.Now(), 2*t.patience, true
	return true
}

// Await waits for the outcome of the open publish, for at most Config.Timeout or until ctx is
// done, and returns it as Publish does. If IsOpen reports true afterwards, the outcome is still
// open. Otherwise it is known, or was lost with the channel, or is given up: see givesUp. Await
// returns an error if nothing is open.
func (o *Pending) Await(ctx context.Context) error {
	s := o.sent.Load()
	if s == nil {
		return errors.New("no publish is open")
	}
	p := s.publisher
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.Timeout, p.tooLate)
	defer cancel()
	select {
	case <-s.confirm.Done():
	default:
		if !p.enter() {
			break // the connection ends soon, and that is the outcome
		}
		defer p.wg.Done()
	}
	select {
	case <-s.confirm.Done():
	case <-ctx.Done():
		p.probe(s.channel.conn)
		if p.givesUp(s) {
			o.Release()
			return unknown(fmt.Errorf("%w: %w", ErrGivenUp, context.Cause(ctx)))
		}
		return unknown(context.Cause(ctx))
	}
	worked, err := p.answer(s)
	if o.sent.CompareAndSwap(s, nil) {
		o.refused = o.refused || s.channel.refusal() != nil
		p.settled(s, worked)
	}
	return err
}

// Release gives up the open publish, if there is one. It remains unknown whether there is a copy.
func (o *Pending) Release() {
	if s := o.sent.Swap(nil); s != nil {
		s.publisher.retire(s.channel)
		s.publisher.settled(s, false)
	}
}

// settled gives back the place of a publish that was kept.
func (p *Publisher) settled(s *sent, worked bool) {
	p.leave(s.channel, s.to, worked)
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.silent[s.to]; t != nil {
		if t.open--; t.open == 0 && !t.scouted {
			delete(p.silent, s.to)
		}
	}
}
