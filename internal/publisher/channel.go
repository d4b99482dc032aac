package publisher

import (
	"context"
	"errors"
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
)

// maxInFlight bounds the publishes of one channel that wait for their confirm, and so the
// returns that may wait to be read. From 300 to 400 publishes on, a channel to a queue without
// its majority stops the broker from reading the whole connection (F29).
const maxInFlight = 200

// errOver says that nothing was sent, because the channel takes no more publishes.
var errOver = errors.New("channel takes no more publishes")

// channel is one AMQP channel in confirm mode.
type channel struct {
	conn *link.Conn
	ch   *link.Channel

	slots chan struct{} // one for each publish in flight
	turn  chan struct{} // held while writing
	over  chan struct{} // closed when no new publish may go here
	// returns never fills up. Each return belongs to a publish in flight, or to a publish that
	// has ended early, and then nothing new goes here. A full channel would block the reader and,
	// after five seconds, lose a return.
	returns chan amqp.Return
	closed  chan *amqp.Error

	mu       sync.Mutex
	unread   map[string]amqp.Return // returns read on behalf of other calls
	closeErr *amqp.Error

	alone bool // for one publish only

	users   int  // guarded by Publisher.mu
	retired bool // no new publish may go here; guarded by Publisher.mu
	unused  bool // retired, and without users; guarded by Publisher.mu
	closing bool // guarded by Publisher.mu
}

// opening is one attempt to open a channel. All callers of a lane wait for it.
type opening struct {
	done    chan struct{}
	channel *channel
	err     error
}

// join takes a place on the channel of a target, and counts the caller among the channel's
// users. It opens the channel if there is none.
func (p *Publisher) join(ctx context.Context, to Target) (*channel, error) {
	for {
		c, o, err := p.current(to)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNotSent, err)
		}
		if c != nil {
			select {
			case c.slots <- struct{}{}:
				return c, nil
			case <-c.over:
				p.drop(c)
				continue
			case <-ctx.Done():
				p.drop(c)
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

// current returns the channel of a target with the caller counted among its users, or the
// attempt that will open one.
func (p *Publisher) current(to Target) (*channel, *opening, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil, ErrClosed
	}
	l := p.laneOf(to)
	if c := l.channel; c != nil && !c.retired && !c.ch.IsClosed() {
		c.users++
		return c, nil, nil
	}
	p.begin(l)
	return nil, l.opening, nil
}

// begin begins to open a channel for a lane, unless that is under way. p.mu is held.
func (p *Publisher) begin(l *lane) {
	if l.opening != nil {
		return
	}
	if l.channel != nil {
		p.end(l.channel)
	}
	l.opening = &opening{done: make(chan struct{})}
	p.wg.Add(1)
	go p.open(l, l.opening, l.slots())
}

// open opens the channel that all callers of a lane share.
func (p *Publisher) open(l *lane, o *opening, slots int) {
	defer p.wg.Done()
	// Closing the link ends the wait.
	o.channel, o.err = p.openChannel(context.Background(), slots)

	p.mu.Lock()
	defer p.mu.Unlock()
	l.channel, l.opening = o.channel, nil
	if l.dissolved {
		p.endLane(l)
	}
	close(o.done)
}

// openChannel opens a channel as soon as a connection takes publishes. It waits for the
// connection until ctx is done, and ends a connection that opens no channel within the timeout.
func (p *Publisher) openChannel(ctx context.Context, slots int) (*channel, error) {
	conn, err := p.link.Conn(ctx)
	if err == nil {
		err = await(ctx, conn, conn.Unblocked())
	}
	if err != nil {
		return nil, err
	}
	var c *channel
	err = p.answered(conn, func() (err error) {
		c, err = newChannel(conn, slots)
		return err
	})
	if isLoss(conn, err) {
		err = fmt.Errorf("%w: %w", link.ErrLost, err)
	}
	return c, err
}

// newChannel opens a channel with places for slots publishes in flight.
func newChannel(conn *link.Conn, slots int) (*channel, error) {
	ch, err := conn.Open()
	if err != nil {
		return nil, fmt.Errorf("open channel: %w", err)
	}
	if err := ch.Confirm(false); err != nil {
		return nil, fmt.Errorf("confirm mode: %w", err)
	}
	return &channel{
		conn: conn, ch: ch,
		slots:   make(chan struct{}, slots),
		turn:    make(chan struct{}, 1),
		over:    make(chan struct{}),
		returns: ch.NotifyReturn(make(chan amqp.Return, slots)),
		closed:  ch.NotifyClose(make(chan *amqp.Error, 1)),
		unread:  make(map[string]amqp.Return),
	}, nil
}

// isLoss reports whether the end of conn has caused err. A write may fail a moment before
// amqp091-go calls the connection closed. Then err is no answer of the broker.
func isLoss(conn *link.Conn, err error) bool {
	var answer *amqp.Error
	return err != nil && (conn.IsClosed() || !errors.As(err, &answer))
}

// isOver reports whether no new publish may go here.
func (c *channel) isOver() bool {
	select {
	case <-c.over:
		return true
	default:
		return c.ch.IsClosed()
	}
}

// refusal returns the error with which the broker has closed the channel. It is nil if the
// channel is open, or has ended with its connection.
func (c *channel) refusal() *amqp.Error {
	var refusal *amqp.Error
	if !c.ch.IsClosed() || c.conn.IsClosed() || !errors.As(c.cause(), &refusal) {
		return nil
	}
	return refusal
}

// cause returns why the channel is closed.
func (c *channel) cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case err := <-c.closed:
		if c.closeErr == nil {
			c.closeErr = err
		}
	default:
	}
	if c.closeErr != nil {
		return c.closeErr
	}
	return link.ErrLost
}

// leave gives back the place that join took. worked says that the broker has taken a message to
// the target.
func (p *Publisher) leave(c *channel, to Target, worked bool) {
	<-c.slots
	p.mu.Lock()
	defer p.mu.Unlock()
	c.users--
	if worked && len(p.apart) > 0 {
		p.rejoin(to, c)
	}
	if worked && len(p.silent) > 0 {
		p.works(to, c)
	}
	if c.alone {
		p.end(c)
	}
	p.closeUnused(c)
}

// drop takes the caller from the users again, among whom current has counted it.
func (p *Publisher) drop(c *channel) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.users--
	p.closeUnused(c)
}

// retire takes a channel out of use. No new publish goes there. The publishes in flight still
// get their confirms, and the channel is closed with the last of them.
func (p *Publisher) retire(c *channel) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end(c)
}

// end makes c take no new publish. p.mu is held.
func (p *Publisher) end(c *channel) {
	if c.retired {
		return
	}
	c.retired = true
	p.retired++
	close(c.over)
	p.closeUnused(c)
}

// closeUnused closes a channel that takes no new publish and has no users left. p.mu is held.
func (p *Publisher) closeUnused(c *channel) {
	if c.retired && c.users == 0 && !c.unused {
		c.unused = true
		p.retired--
		p.closeChannel(c)
	}
}

// closeChannel closes a channel in the background. If the publisher is closed, all channels end
// with the connection. p.mu is held.
func (p *Publisher) closeChannel(c *channel) {
	if p.closed || c.closing || c.ch.IsClosed() {
		return
	}
	c.closing = true
	p.wg.Go(func() {
		c.turn <- struct{}{} // a close in the middle of a message would end the connection
		_ = c.ch.Close()     // ends with the connection at the latest
	})
}
