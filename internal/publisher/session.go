package publisher

import (
	"context"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
)

// maxInFlight bounds the publishes of one channel that wait for their confirm,
// and with them the returns that may be waiting to be read.
const maxInFlight = 2048

// session is one channel in confirm mode.
type session struct {
	conn *link.Conn
	ch   *amqp.Channel

	slots chan struct{} // one for each publish under way
	turn  chan struct{} // held while writing
	// returns never fills up: each return belongs to a publish under way. A full
	// one would block the reader and, after five seconds, lose a return.
	returns chan amqp.Return
	closed  chan *amqp.Error

	mu       sync.Mutex
	unread   map[string]amqp.Return // returns read on behalf of other calls
	closeErr *amqp.Error

	users   int  // guarded by Publisher.mu
	retired bool // guarded by Publisher.mu
}

func newSession(conn *link.Conn) (*session, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, fmt.Errorf("open channel: %w", err)
	}
	if err := ch.Confirm(false); err != nil {
		return nil, fmt.Errorf("confirm mode: %w", err)
	}
	return &session{
		conn: conn, ch: ch,
		slots:   make(chan struct{}, maxInFlight),
		turn:    make(chan struct{}, 1),
		returns: ch.NotifyReturn(make(chan amqp.Return, maxInFlight)),
		closed:  ch.NotifyClose(make(chan *amqp.Error, 1)),
		unread:  make(map[string]amqp.Return),
	}, nil
}

// send writes msg when it is its turn and the broker takes publishes.
func (s *session) send(ctx context.Context, exchange, routingKey string, msg amqp.Publishing) (*amqp.DeferredConfirmation, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrNotSent, context.Cause(ctx))
	}
	if err := awaitUnblocked(ctx, s.conn); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	if ctx.Err() != nil || s.ch.IsClosed() {
		return nil, fmt.Errorf("%w: %w", ErrNotSent, firstError(context.Cause(ctx), s.cause()))
	}
	deadline, _ := ctx.Deadline()
	s.conn.LimitWrites(deadline)
	confirm, err := s.ch.PublishWithDeferredConfirm(exchange, routingKey, true, false, msg)
	s.conn.LimitWrites(time.Time{})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return confirm, nil
}

// awaitUnblocked waits while the broker has blocked the connection: it would
// not read what is sent.
func awaitUnblocked(ctx context.Context, conn *link.Conn) error {
	unblocked := conn.Unblocked()
	if unblocked == nil {
		return nil
	}
	select {
	case <-unblocked:
		return nil
	case <-conn.Gone():
		return conn.Cause()
	case <-ctx.Done():
		return fmt.Errorf("the broker has blocked publishing (a resource alarm): %w", context.Cause(ctx))
	}
}

// takeReturn reports whether the publish with this nonce was returned. The
// broker sends a return before the confirm (F4), and amqp091-go passes both on
// in that order: whoever has seen the confirm finds the return here, or with
// whom it was that read it first, under the same lock.
func (s *session) takeReturn(nonce, header string) (amqp.Return, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for more := true; more; {
		select {
		case r, open := <-s.returns:
			if open {
				if key, ok := r.Headers[header].(string); ok {
					s.unread[key] = r
				}
			}
			more = open
		default:
			more = false
		}
	}
	r, ok := s.unread[nonce]
	delete(s.unread, nonce)
	return r, ok
}

// cause returns why the channel is closed.
func (s *session) cause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case err := <-s.closed:
		if s.closeErr == nil {
			s.closeErr = err
		}
	default:
	}
	if s.closeErr != nil {
		return s.closeErr
	}
	return link.ErrLost
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// join returns the current channel, opening one if there is none, and counts
// the caller among its users.
func (p *Publisher) join(ctx context.Context) (*session, error) {
	for {
		p.mu.Lock()
		select {
		case <-p.closed:
			p.mu.Unlock()
			return nil, fmt.Errorf("%w: %w", ErrNotSent, ErrClosed)
		default:
		}
		if s := p.session; s != nil && !s.ch.IsClosed() {
			s.users++
			p.mu.Unlock()
			select {
			case s.slots <- struct{}{}:
				return s, nil
			case <-ctx.Done():
				p.drop(s)
				return nil, fmt.Errorf("%w: %w", ErrNotSent, context.Cause(ctx))
			}
		}
		o := p.opening
		if o == nil {
			o = &opening{done: make(chan struct{})}
			p.opening = o
			p.wg.Add(1)
			go p.open(o)
		}
		p.mu.Unlock()

		select {
		case <-o.done:
			if o.err != nil {
				return nil, fmt.Errorf("%w: %w", ErrNotSent, o.err)
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrNotSent, context.Cause(ctx))
		}
	}
}

// open opens a channel within the timeout; a connection that does not even do
// that in time is given up.
func (p *Publisher) open(o *opening) {
	defer p.wg.Done()
	ctx, cancel := context.WithTimeout(context.Background(), p.cfg.Timeout)
	defer cancel()
	conn, err := p.link.Conn(ctx)
	if err == nil {
		err = awaitUnblocked(ctx, conn)
	}
	if err == nil {
		stop := context.AfterFunc(ctx, conn.Kill)
		o.session, err = newSession(conn)
		stop()
	}
	o.err = err

	p.mu.Lock()
	defer p.mu.Unlock()
	p.session, p.opening = o.session, nil
	close(o.done)
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
// still get their confirms, and with the last of them it is closed.
func (p *Publisher) retire(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.retired = true
	if p.session == s {
		p.session = nil
	}
}

func (p *Publisher) closeUnused(s *session) {
	if !s.retired || s.users > 0 || s.ch.IsClosed() {
		return
	}
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		_ = s.ch.Close() // ends with the connection at the latest
	}()
}
