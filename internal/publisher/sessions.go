package publisher

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
)

// opening is the one attempt to open a channel that all callers of a lane wait for.
type opening struct {
	done    chan struct{}
	session *session
	err     error
}

// join returns the current channel for a target, opening one if there is none, and
// counts the caller among its users.
func (p *Publisher) join(ctx context.Context, to target) (*session, error) {
	for {
		s, o, err := p.current(to)
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

// current returns the channel for a target with the caller counted among its users,
// or the attempt that will open one.
func (p *Publisher) current(to target) (*session, *opening, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil, ErrClosed
	}
	l := p.laneOf(to)
	if s := l.session; s != nil && !s.retired && !s.ch.IsClosed() {
		s.users++
		return s, nil, nil
	}
	p.begin(l)
	return nil, l.opening, nil
}

// begin begins to open a channel for a lane unless that is under way. p.mu is held.
func (p *Publisher) begin(l *lane) {
	if l.opening != nil {
		return
	}
	if l.session != nil {
		p.end(l.session)
	}
	l.opening = &opening{done: make(chan struct{})}
	p.wg.Add(1)
	go p.open(l, l.opening, l.slots())
}

// open opens the channel that all callers of a lane share.
func (p *Publisher) open(l *lane, o *opening, slots int) {
	defer p.wg.Done()
	o.session, o.err = p.openSession(context.Background(), slots) // ends when the link is closed

	p.mu.Lock()
	defer p.mu.Unlock()
	l.session, l.opening = o.session, nil
	if l.dissolved {
		p.endLane(l)
	}
	close(o.done)
}

// openSession opens a channel as soon as there is a connection that takes
// publishes, for which it waits as long as ctx. A connection that does not open
// one within the timeout is ended.
func (p *Publisher) openSession(ctx context.Context, slots int) (*session, error) {
	conn, err := p.link.Conn(ctx)
	if err == nil {
		err = await(ctx, conn, conn.Unblocked())
	}
	if err != nil {
		return nil, err
	}
	var s *session
	err = p.answered(conn, func() (err error) {
		s, err = newSession(conn, slots)
		return err
	})
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

// answered runs ask, which asks the broker for something small, and ends the
// connection where the answer takes longer than the timeout: this is how a broker
// is noticed that is gone without a word. Time during which the broker has blocked
// publishing does not count, because the broker reads nothing then.
func (p *Publisher) answered(conn *link.Conn, ask func() error) error {
	answered := make(chan struct{})
	defer close(answered)
	p.wg.Go(func() {
		limit := time.NewTimer(p.cfg.Timeout)
		defer limit.Stop()
		for {
			select {
			case <-limit.C:
			case <-answered:
				return
			}
			unblocked := conn.Unblocked()
			if unblocked == nil {
				conn.Kill(fmt.Errorf("opening a channel has taken longer than %v", p.cfg.Timeout))
				return
			}
			select {
			case <-unblocked:
			case <-answered:
				return
			}
			limit.Reset(p.cfg.Timeout)
		}
	})
	return ask()
}

// probe asks the broker in the background whether it still answers on a connection
// where a confirm has not come in time. A queue without its majority keeps confirms
// back for as long as it likes (F29), a broker that is there still opens channels.
func (p *Publisher) probe(conn *link.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.probed.running || p.probed.conn == conn && time.Since(p.probed.at) < p.cfg.Timeout {
		return
	}
	p.probed.conn, p.probed.at, p.probed.running = conn, time.Now(), true
	p.wg.Go(func() {
		defer func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.probed.running = false
		}()
		if await(context.Background(), conn, conn.Unblocked()) != nil {
			return
		}
		_ = p.answered(conn, func() error { // an error is that of a connection which has ended
			ch, err := conn.Channel()
			if err == nil {
				err = ch.Close()
			}
			return err
		})
	})
}

// leave gives back what join took. worked says that the broker has taken a message
// to that target.
func (p *Publisher) leave(s *session, to target, worked bool) {
	<-s.slots
	p.mu.Lock()
	defer p.mu.Unlock()
	s.users--
	if worked && len(p.apart) > 0 {
		p.rejoin(to, s)
	}
	if s.alone {
		p.end(s)
	}
	p.closeUnused(s)
}

// drop takes back that current has counted the caller.
func (p *Publisher) drop(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.users--
	p.closeUnused(s)
}

// retire takes a channel out of use: no new publish goes there, those under way
// still get their confirms, and with the last of them it is closed.
func (p *Publisher) retire(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end(s)
}

// end makes s take no new publish. p.mu is held.
func (p *Publisher) end(s *session) {
	if s.retired {
		return
	}
	s.retired = true
	p.retired++
	close(s.over)
	p.closeUnused(s)
}

// closeUnused closes a channel that takes no new publish and that no caller uses
// any more. p.mu is held.
func (p *Publisher) closeUnused(s *session) {
	if s.retired && s.users == 0 && !s.unused {
		s.unused = true
		p.retired--
		p.closeChannel(s)
	}
}

// closeChannel closes a channel in the background. p.mu is held. When the publisher
// is closed, all channels end with the connection.
func (p *Publisher) closeChannel(s *session) {
	if p.closed || s.closing || s.ch.IsClosed() {
		return
	}
	s.closing = true
	p.wg.Go(func() {
		s.turn <- struct{}{} // in the middle of a message it would end the connection
		_ = s.ch.Close()     // ends with the connection at the latest
	})
}
