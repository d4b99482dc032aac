package publisher

import (
	"context"
	"errors"
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
		s.lane = p.separate(s.to, false)
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

// Await waits for the outcome of the open publish, for at most Config.Timeout or until ctx is
// done, and returns it as Publish does. If IsOpen reports true afterwards, the outcome is still
// open. Otherwise it is known, or was lost with the channel. Await returns an error if nothing
// is open.
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
		p.giveUpLost(s)
		return unknown(context.Cause(ctx))
	}
	worked, err := p.answer(s)
	if o.sent.CompareAndSwap(s, nil) {
		o.refused = o.refused || s.channel.refusal() != nil
		p.settled(s, worked)
	}
	return err
}

// giveUpLost gives up a publish whose confirm is lost: its target has worked on another channel
// for the whole timeout. The channel is closed when all publishes left on it are lost. Before
// 4.3, RabbitMQ may lose a publish together with its confirm when the leader of a quorum queue
// dies together with the majority (F29).
func (p *Publisher) giveUpLost(s *sent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.lane == nil || s.lane.worked.IsZero() || time.Since(s.lane.worked) < p.cfg.Timeout {
		return
	}
	p.end(s.channel)
	if !s.lost {
		s.lost = true
		s.channel.lost++
	}
	if s.channel.lost == s.channel.users {
		p.closeChannel(s.channel)
	}
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
	p.mu.Lock()
	if s.lost {
		s.channel.lost--
	}
	p.mu.Unlock()
	p.leave(s.channel, s.to, worked)
}
