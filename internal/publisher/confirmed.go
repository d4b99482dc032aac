// Package publisher publishes one message at a time and returns the outcome. A nil error means
// that the broker has confirmed the message and that a queue took it.
//
// File confirmed.go reads from top to bottom: Publish takes a place on a channel, writes the
// message, waits for the confirm and looks for a return. Every publish is mandatory. A
// basic.return carries no tag, and message ids repeat. So each publish gets a nonce header, by
// which its return is recognised.
//
// Many callers share one channel (channel.go). Every call ends in time, and a call that ends
// early takes neither channel nor connection from the others. A target that the broker refuses,
// or whose confirms are late, gets its own channel (lane.go).
//
// A confirm may come after its call has ended. Pending keeps such a publish open, so that no
// second copy is published beside it (pending.go).
package publisher

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
)

// Config says how a Publisher works.
type Config struct {
	// Timeout bounds a whole Publish, including the waits for a connection and for the confirm.
	// A connection that does not even open a channel within Timeout is given up.
	Timeout time.Duration
	// NonceHeader is the header that carries the nonce.
	NonceHeader string
}

// Publisher publishes over its own connection, because RabbitMQ throttles connections that
// publish. Its methods may be called from many goroutines.
type Publisher struct {
	cfg     Config
	link    *link.Link
	prefix  string // of every nonce
	count   atomic.Uint64
	tooLate error // the cause of a call that ends at Config.Timeout

	mu      sync.Mutex
	closed  bool
	period  context.Context // ends a timeout after since
	since   time.Time
	common  lane
	apart   map[Target]*lane
	silent  map[Target]*silence
	known   map[string]bool // exchanges that have worked, other than the default one
	retired int             // channels that take no new publish and are still in use
	probed  struct {
		conn    *link.Conn
		at      time.Time
		running bool
	}
	wg sync.WaitGroup // calls, and goroutines that open and close
}

// New returns a Publisher on l. Close closes l.
func New(l *link.Link, cfg Config) *Publisher {
	seed := make([]byte, 8)
	_, _ = rand.Read(seed) // never fails
	return &Publisher{
		cfg: cfg, link: l, prefix: hex.EncodeToString(seed) + "-",
		apart: make(map[Target]*lane), silent: make(map[Target]*silence), known: make(map[string]bool),
		tooLate: fmt.Errorf("no answer from the broker within %v: %w",
			cfg.Timeout, context.DeadlineExceeded),
	}
}

// Publish sends msg and waits until the broker has confirmed it. It returns at the end of
// Config.Timeout or of ctx at the latest. After ErrUnknown the broker may have a copy. After any
// other error it has none.
//
// Publish does not write to msg, and does not read it after it has returned.
func (p *Publisher) Publish(
	ctx context.Context, exchange, routingKey string, msg amqp.Publishing,
) error {
	return p.PublishFor(ctx, nil, Target{Exchange: exchange, RoutingKey: routingKey}, withHeaders(msg))
}

// withHeaders gives msg its own headers, with room for one more.
func withHeaders(msg amqp.Publishing) *amqp.Publishing {
	headers := make(amqp.Table, len(msg.Headers)+1)
	maps.Copy(headers, msg.Headers)
	msg.Headers = headers
	return &msg
}

// PublishFor publishes a message that is tried until it is confirmed. It writes to the headers
// of msg, which must not be nil. If the confirm does not come in time, the publish stays open in
// pending. Then the caller must call Await before it publishes the message again. A nil pending
// gives the publish up.
func (p *Publisher) PublishFor(
	ctx context.Context, pending *Pending, to Target, msg *amqp.Publishing,
) error {
	ctx, cancel, err := p.begun(ctx)
	if err != nil {
		return err
	}
	defer p.wg.Done()
	defer cancel()
	s, err := p.start(ctx, pending, to, msg)
	if err != nil {
		return err
	}
	if pending != nil && pending.Written != nil {
		pending.Written.AfterWrite()
	}
	return p.outcome(ctx, &s, pending)
}

// begun counts a call and bounds its time. The caller calls cancel and p.wg.Done.
func (p *Publisher) begun(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if !p.enter() {
		return nil, nil, fmt.Errorf("%w: %w", ErrNotSent, ErrClosed)
	}
	if ctx.Done() == nil { // as of a hand-over
		return p.timeout(), func() {}, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.Timeout, p.tooLate)
	return ctx, cancel, nil
}

// timeout returns a context that ends when a call that begins now must end. The calls of the same
// hundredth of the timeout share it, because a timer and a context for each cost more than the
// encoding of a message.
func (p *Publisher) timeout() context.Context {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.period == nil || now.Sub(p.since) > p.cfg.Timeout/100 {
		ctx, end := context.WithCancelCause(context.Background())
		time.AfterFunc(p.cfg.Timeout, func() { end(p.tooLate) })
		p.period, p.since = ctx, now
	}
	return p.period
}

// enter counts a call, unless the publisher is closed.
func (p *Publisher) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.wg.Add(1)
	return true
}

// Target is the address of a message.
type Target struct {
	Exchange, RoutingKey string
	// Kept says that the exchange keeps the message until a later time and reports it as unroutable
	// meanwhile (F49). The message is not mandatory: its confirm says that the exchange has it.
	Kept bool
}

// sent is a publish that was written.
type sent struct {
	publisher *Publisher
	channel   *channel
	confirm   *link.Confirm
	nonce     string
	to        Target
}

// start writes msg on the channel of its target. It takes the next channel if that one ends
// before the message is written.
func (p *Publisher) start(
	ctx context.Context, pending *Pending, to Target, msg *amqp.Publishing,
) (sent, error) {
	nonce := p.prefix + strconv.FormatUint(p.count.Add(1), 36)
	msg.Headers[p.cfg.NonceHeader] = nonce
	if err := check(to.Exchange, to.RoutingKey, msg); err != nil {
		return sent{}, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	if pending != nil && pending.refused {
		p.separate(to, true) // other messages may have taken the target back
	}
	for {
		c, err := p.join(ctx, to)
		if err != nil {
			return sent{}, err
		}
		confirm, err := p.send(ctx, c, to, msg)
		if err == nil {
			return sent{publisher: p, channel: c, confirm: confirm, nonce: nonce, to: to}, nil
		}
		p.leave(c, to, false)
		if !errors.Is(err, errOver) {
			return sent{}, err
		}
	}
}

// send writes msg when it is its turn and the broker takes publishes. It does not wait until the
// broker has read the message.
func (p *Publisher) send(
	ctx context.Context, c *channel, to Target, msg *amqp.Publishing,
) (*link.Confirm, error) {
	if err := checkFrame(c.conn.Config.FrameSize, msg); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	select {
	case c.turn <- struct{}{}:
	case <-c.over:
		return nil, errOver
	case <-ctx.Done():
		return nil, p.notSent(ctx)
	}
	err := awaitRoom(ctx, c.conn)
	switch {
	case ctx.Err() != nil:
		err = p.notSent(ctx)
	case err != nil || c.isOver():
		err = errOver
	}
	if err != nil {
		<-c.turn
		return nil, err
	}

	var confirm *link.Confirm
	c.conn.Together(func() {
		confirm, err = c.ch.Send(to.Exchange, to.RoutingKey, !to.Kept, msg)
		<-c.turn
	})
	if err != nil {
		p.retire(c)
		return nil, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return confirm, nil
}

// awaitRoom waits while the broker has blocked the connection, or has stopped reading silently.
func awaitRoom(ctx context.Context, conn *link.Conn) error {
	if err := await(ctx, conn, conn.Unblocked()); err != nil {
		return err
	}
	return await(ctx, conn, conn.Backlog())
}

// await waits until end is closed. A nil end is over already.
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

// notSent returns the error of a call whose time was up before its turn.
func (p *Publisher) notSent(ctx context.Context) error {
	if err := p.Healthy(); err != nil {
		return fmt.Errorf("%w: %w: %w", ErrNotSent, err, context.Cause(ctx))
	}
	return fmt.Errorf("%w: %w", ErrNotSent, context.Cause(ctx))
}

// outcome waits for the broker's answer to a publish. If the answer does not come in time, the
// publish is kept in pending, or given up if pending is nil.
func (p *Publisher) outcome(ctx context.Context, s *sent, pending *Pending) error {
	select {
	case <-s.confirm.Done():
	case <-ctx.Done():
		// The confirm may have come in the same moment.
		select {
		case <-s.confirm.Done():
		default:
			return p.late(ctx, *s, pending)
		}
	}
	worked, err := p.answer(s)
	if err != nil && pending != nil {
		pending.refused = pending.refused || s.channel.refusal() != nil
	}
	p.leave(s.channel, s.to, worked)
	return err
}

// answer reads the broker's answer to a publish after its confirm has come. worked reports
// whether the target has worked: the broker has answered with an ack.
func (p *Publisher) answer(s *sent) (worked bool, err error) {
	answer := s.confirm.Answer()
	worked = answer == link.Acked
	returned, wasReturned := s.channel.takeReturn(s.nonce, p.cfg.NonceHeader)
	switch {
	case wasReturned:
		return worked, &ReturnedError{
			Exchange: s.to.Exchange, RoutingKey: s.to.RoutingKey,
			Code: returned.ReplyCode, Text: returned.ReplyText,
		}
	case worked:
		return true, nil
	case answer == link.Lost:
		if s.channel.refusal() != nil {
			p.separate(s.to, true)
		}
		return false, unknown(s.channel.cause())
	}
	return false, ErrRefused
}

// takeReturn reports whether the publish with this nonce was returned. The broker sends a return
// before the confirm (F4), and amqp091-go passes both on in that order. So a caller that has
// seen its confirm finds the return here. Another caller may have read it before and put it into
// unread, under the same lock.
func (c *channel) takeReturn(nonce, header string) (amqp.Return, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for more := true; more; {
		select {
		case r, open := <-c.returns:
			if open {
				key, _ := r.Headers[header].(string) // "" if the publish had no nonce
				c.unread[key] = r
			}
			more = open
		default:
			more = false
		}
	}
	r, ok := c.unread[nonce]
	delete(c.unread, nonce)
	return r, ok
}

// Errors of a publish. After ErrUnknown alone, the broker may have stored the message.
var (
	// ErrNotSent says that nothing was sent. There was no connection, the broker had blocked
	// publishing, the time was up before its turn, or AMQP cannot carry the message: a header of
	// an unknown type, a name or property over 255 bytes, headers over a frame.
	ErrNotSent = errors.New("not sent")
	// ErrUnknown says that the message was sent, and that no answer says whether it was stored.
	ErrUnknown = errors.New("outcome unknown")
	// ErrGivenUp says, beside ErrUnknown, that the outcome is not awaited any longer: its confirm is
	// taken for lost.
	ErrGivenUp = errors.New("the confirm is taken for lost")
	// ErrRefused says that the broker has answered with a nack and has not stored the message.
	ErrRefused = errors.New("refused by the broker")
	// ErrUnroutable says that no queue took the message.
	ErrUnroutable = errors.New("no queue took the message")
	// ErrClosed says that Close was called.
	ErrClosed = errors.New("publisher is closed")
)

func unknown(cause error) error { return fmt.Errorf("%w: %w", ErrUnknown, cause) }

// ReturnedError says that no queue took the message. The broker confirms such a message, too (F4).
type ReturnedError struct {
	Exchange, RoutingKey string
	Code                 uint16
	Text                 string
}

func (e *ReturnedError) Error() string {
	return fmt.Sprintf("returned by the broker: no queue for exchange %q, routing key %q (%d %s)",
		e.Exchange, e.RoutingKey, e.Code, e.Text)
}

// Unwrap returns ErrUnroutable.
func (e *ReturnedError) Unwrap() error { return ErrUnroutable }
