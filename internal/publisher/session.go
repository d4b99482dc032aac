package publisher

import (
	"context"
	"errors"
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
)

// maxInFlight bounds the publishes of one channel that wait for their confirm,
// and with them the returns that may be waiting to be read. From 300 to 400 publishes
// on, a channel to a queue without its majority stops the broker from reading the
// whole connection (F29).
const maxInFlight = 200

// errOver: nothing was sent, because the channel takes no more publishes.
var errOver = errors.New("channel is over")

// session is one channel in confirm mode.
type session struct {
	conn *link.Conn
	ch   *amqp.Channel

	slots chan struct{} // one for each publish under way
	turn  chan struct{} // held while writing
	over  chan struct{} // closed when no new publish may go here
	// returns never fills up: each return belongs to a publish under way, or to
	// one that has ended early, and then nothing new goes here. A full one would
	// block the reader and, after five seconds, lose a return.
	returns chan amqp.Return
	closed  chan *amqp.Error

	mu       sync.Mutex
	unread   map[string]amqp.Return // returns read on behalf of other calls
	closeErr *amqp.Error

	alone bool // for one publish only

	users   int  // guarded by Publisher.mu
	lost    int  // of them those whose confirm is lost; guarded by Publisher.mu
	retired bool // no new publish may go here; guarded by Publisher.mu
	unused  bool // retired, and without users; guarded by Publisher.mu
	closing bool // guarded by Publisher.mu
}

// newSession opens a channel for as many publishes at once as slots says.
func newSession(conn *link.Conn, slots int) (*session, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, fmt.Errorf("open channel: %w", err)
	}
	if err := ch.Confirm(false); err != nil {
		return nil, fmt.Errorf("confirm mode: %w", err)
	}
	return &session{
		conn: conn, ch: ch,
		slots:   make(chan struct{}, slots),
		turn:    make(chan struct{}, 1),
		over:    make(chan struct{}),
		returns: ch.NotifyReturn(make(chan amqp.Return, slots)),
		closed:  ch.NotifyClose(make(chan *amqp.Error, 1)),
		unread:  make(map[string]amqp.Return),
	}, nil
}

// isOver reports whether no new publish may go here.
func (s *session) isOver() bool {
	select {
	case <-s.over:
		return true
	default:
		return s.ch.IsClosed()
	}
}

// send writes msg when it is its turn and the broker takes publishes. It does
// not wait for the broker to read it.
func (p *Publisher) send(ctx context.Context, s *session, to target, msg *amqp.Publishing) (*amqp.DeferredConfirmation, error) {
	if err := checkFrame(s.conn.Config.FrameSize, msg); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	select {
	case s.turn <- struct{}{}:
	case <-s.over:
		return nil, errOver
	case <-ctx.Done():
		return nil, p.notSent(ctx)
	}
	err := awaitRoom(ctx, s.conn)
	switch {
	case ctx.Err() != nil:
		err = p.notSent(ctx)
	case err != nil || s.isOver():
		err = errOver
	}
	if err != nil {
		<-s.turn
		return nil, err
	}

	var confirm *amqp.DeferredConfirmation
	s.conn.Together(func() {
		confirm, err = s.ch.PublishWithDeferredConfirm(to.exchange, to.routingKey, true, false, *msg)
		<-s.turn
	})
	if err != nil {
		p.retire(s)
		return nil, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return confirm, nil
}

// awaitRoom waits while the broker has blocked the connection, or has stopped
// reading without a word.
func awaitRoom(ctx context.Context, conn *link.Conn) error {
	if err := await(ctx, conn, conn.Unblocked()); err != nil {
		return err
	}
	return await(ctx, conn, conn.Backlog())
}

// await waits for the end of something on a connection; nil has ended.
func await(ctx context.Context, conn *link.Conn, end <-chan struct{}) error {
	if end == nil {
		return nil
	}
	select {
	case <-end:
		return nil
	case <-conn.Gone():
		return conn.Cause()
	case <-ctx.Done():
		return context.Cause(ctx)
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
				key, _ := r.Headers[header].(string) // none where there is no nonce
				s.unread[key] = r
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

// refusal returns the error with which the broker has closed the channel; nil where
// the channel is open, or has ended with its connection.
func (s *session) refusal() *amqp.Error {
	var refusal *amqp.Error
	if !s.ch.IsClosed() || s.conn.IsClosed() || !errors.As(s.cause(), &refusal) {
		return nil
	}
	return refusal
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
