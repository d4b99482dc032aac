package publisher

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
)

// opening is the one attempt to open a channel that all callers wait for.
type opening struct {
	done    chan struct{}
	session *session
	err     error
}

// join returns the current channel, opening one if there is none, and counts
// the caller among its users.
func (p *Publisher) join(ctx context.Context) (*session, error) {
	for {
		s, o, err := p.current()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNotSent, err)
		}
		if s != nil {
			select {
			case s.slots <- struct{}{}:
				return s, nil
			case <-s.over:
				p.drop(s)
				continue
			case <-ctx.Done():
				p.drop(s)
				return nil, p.notSent(ctx)
			}
		}
		select {
		case <-o.done:
			if o.err != nil && !errors.Is(o.err, link.ErrLost) {
				return nil, fmt.Errorf("%w: %w", ErrNotSent, ofLink(o.err))
			}
		case <-ctx.Done():
			return nil, p.notSent(ctx)
		}
	}
}

// current returns the channel with the caller counted among its users, or what
// will bring one.
func (p *Publisher) current() (*session, *opening, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil, ErrClosed
	}
	if s := p.session; s != nil && !s.ch.IsClosed() {
		s.users++
		return s, nil, nil
	}
	p.begin()
	return nil, p.opening, nil
}

// begin begins to open a channel unless that is under way. p.mu is held.
func (p *Publisher) begin() {
	if p.opening != nil || p.closed {
		return
	}
	if p.session != nil {
		p.end(p.session)
	}
	p.opening = &opening{done: make(chan struct{})}
	p.wg.Add(1)
	go p.open(p.opening)
}

// open opens the channel that all callers share.
func (p *Publisher) open(o *opening) {
	defer p.wg.Done()
	o.session, o.err = p.openSession(context.Background()) // ends when the link is closed

	p.mu.Lock()
	defer p.mu.Unlock()
	p.session, p.opening = o.session, nil
	close(o.done)
}

// openSession opens a channel as soon as there is a connection that takes
// publishes, for which it waits as long as ctx. A connection that does not open one within the timeout is given up:
// this is how a broker is noticed that is gone without a word.
func (p *Publisher) openSession(ctx context.Context) (*session, error) {
	conn, err := p.link.Conn(ctx)
	if err == nil {
		err = await(ctx, conn, conn.Unblocked())
	}
	if err != nil {
		return nil, err
	}
	limit := time.AfterFunc(p.cfg.Timeout, func() {
		conn.Kill(fmt.Errorf("opening a channel has taken longer than %v", p.cfg.Timeout))
	})
	s, err := newSession(conn)
	limit.Stop()
	if isLoss(conn, err) {
		err = fmt.Errorf("%w: %w", link.ErrLost, err)
	}
	return s, err
}

// isLoss reports whether err came of the end of conn. A write may fail a moment
// before amqp091-go calls the connection closed; then the error is not its own.
func isLoss(conn *link.Conn, err error) bool {
	var answer *amqp.Error
	return err != nil && (conn.IsClosed() || !errors.As(err, &answer))
}

// leave gives back what join took.
func (p *Publisher) leave(s *session) {
	<-s.slots
	p.drop(s)
}

func (p *Publisher) drop(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.users--
	p.closeUnused(s)
}

// retire takes a channel out of use: no new publish goes there, those under way
// still get their confirms, and with the last of them it is closed. The next one
// is opened at once, which tells whether the broker still answers.
func (p *Publisher) retire(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end(s)
	if p.session == s {
		p.session = nil
		p.begin()
	}
}

// end makes s take no new publish. p.mu is held.
func (p *Publisher) end(s *session) {
	if !s.retired {
		s.retired = true
		close(s.over)
	}
}

// closeUnused closes a channel that nobody uses any more. p.mu is held. When
// the publisher is closed, all channels end with the connection.
func (p *Publisher) closeUnused(s *session) {
	if !s.retired || s.users > 0 || p.closed || s.ch.IsClosed() {
		return
	}
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		s.turn <- struct{}{} // in the middle of a message it would end the connection
		_ = s.ch.Close()     // ends with the connection at the latest
	}()
}
