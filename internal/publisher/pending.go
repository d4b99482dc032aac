package publisher

import (
	"context"
	"errors"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"
)

// sent is a publish that was written.
type sent struct {
	publisher *Publisher
	session   *session
	confirm   *amqp.DeferredConfirmation
	nonce     string
	to        target
	lane      *lane // of its target from the moment when it was overdue
	lost      bool  // its confirm is; guarded by Publisher.mu
}

// Pending remembers, for one message, the publish whose outcome is open, so that no
// second copy is published beside it. The zero value remembers none. Release may be
// called at any time; the other methods, and publishing, by one goroutine at a time.
type Pending struct {
	sent atomic.Pointer[sent]
	// refused says that the broker has closed the channel on which the message was
	// published. The message may have been the reason.
	refused bool
}

// IsOpen reports whether there is a publish whose outcome is open.
func (o *Pending) IsOpen() bool { return o.sent.Load() != nil }

// Await waits for the outcome of the publish that is open, at most for
// Config.Timeout or until ctx is done, and returns it as Publish does. The outcome
// is still open where IsOpen says so afterwards, and otherwise known, or lost with
// the channel. It is an error to call Await where nothing is open.
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
			break // the end of the connection, which is near, is the outcome
		}
		defer p.wg.Done()
	}
	select {
	case <-s.confirm.Done():
	case <-ctx.Done():
		p.probe(s.session.conn)
		p.giveUpLost(s)
		return unknown(context.Cause(ctx))
	}
	worked, err := p.answer(s)
	if o.sent.CompareAndSwap(s, nil) {
		o.refused = o.refused || s.session.refusal() != nil
		p.settled(s, worked)
	}
	return err
}

// Release gives up the publish that is open, if there is one. Whether there is a
// copy then remains unknown.
func (o *Pending) Release() {
	if s := o.sent.Swap(nil); s != nil {
		s.publisher.retire(s.session)
		s.publisher.settled(s, false)
	}
}
