package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// ErrLost is the cause of an operation that ended with its connection.
var ErrLost = errors.New("connection to the broker was lost")

// Conn is one connection, from its dial to its end.
type Conn struct {
	*amqp.Connection
	socket *socket
	gone   chan struct{}

	mu        sync.Mutex
	cause     error
	unblocked chan struct{} // nil while the broker takes publishes
}

// dial connects within the timeout of cfg and no longer than ctx.
func dial(ctx context.Context, cfg Config) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.ConnectTimeout)
	defer cancel()

	c := &Conn{gone: make(chan struct{})}
	stop := func() bool { return true }
	amqpCfg := cfg.amqpConfig()
	open := amqpCfg.Dial
	if open == nil {
		open = func(network, addr string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, addr)
		}
	}
	amqpCfg.Dial = func(network, addr string) (net.Conn, error) {
		conn, err := open(network, addr)
		if err != nil {
			return nil, err
		}
		c.socket = &socket{Conn: conn, timeout: cfg.WriteTimeout}
		// amqp091-go lifts this deadline when the handshake is over.
		deadline, _ := ctx.Deadline()
		if err := c.socket.SetDeadline(deadline); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		stop = context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
		return c.socket, nil
	}

	connection, err := amqp.DialConfig(cfg.URL, amqpCfg)
	if !stop() && err == nil {
		_ = connection.CloseDeadline(time.Now())
		err = errors.New("handshake took too long")
	}
	if err != nil {
		if c.socket != nil {
			_ = c.socket.Close()
		}
		if ctxErr := ctx.Err(); ctxErr != nil {
			err = fmt.Errorf("%w (%w)", err, ctxErr)
		}
		return nil, fmt.Errorf("connect to RabbitMQ at %s: %w", Address(cfg.URL), err)
	}
	c.Connection = connection
	go c.watch(connection.NotifyClose(make(chan *amqp.Error, 1)), connection.NotifyBlocked(make(chan amqp.Blocking, 8)))
	return c, nil
}

// watch follows the connection until it ends.
func (c *Conn) watch(closed <-chan *amqp.Error, blocked <-chan amqp.Blocking) {
	defer close(c.gone)
	for {
		select {
		case b, ok := <-blocked:
			if !ok {
				blocked = nil
				continue
			}
			c.setBlocked(b.Active)
		case err := <-closed:
			c.mu.Lock()
			c.cause = ErrLost
			if err != nil {
				c.cause = fmt.Errorf("%w: %w", ErrLost, err)
			}
			c.mu.Unlock()
			return
		}
	}
}

func (c *Conn) setBlocked(active bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case active && c.unblocked == nil:
		c.unblocked = make(chan struct{})
	case !active && c.unblocked != nil:
		close(c.unblocked)
		c.unblocked = nil
	}
}

// Unblocked returns a channel that is closed when the broker takes publishes
// again; nil while it takes them.
func (c *Conn) Unblocked() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unblocked
}

// Gone is closed when the connection has ended.
func (c *Conn) Gone() <-chan struct{} { return c.gone }

// Cause returns why the connection ended, nil while it lives.
func (c *Conn) Cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// LastRead is when the last byte came from the broker.
func (c *Conn) LastRead() time.Time { return time.Unix(0, c.socket.lastRead.Load()) }

// LimitWrites ends writes at t, zero lifts the limit. A write that hits it ends
// the connection.
func (c *Conn) LimitWrites(t time.Time) { c.socket.limitWrites(t) }

// Kill ends the connection without asking the broker.
func (c *Conn) Kill() { _ = c.socket.Close() }

// Close ends the connection, asking the broker for at most limit.
func (c *Conn) Close(limit time.Duration) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.CloseDeadline(time.Now().Add(limit))
	}()
	select {
	case <-done:
	case <-time.After(limit):
		c.Kill()
		<-done
	}
	<-c.gone
}

// Do runs f on a channel of its own, so that an error of the broker closes no
// channel that others use. It returns at the end of ctx at the latest; f may
// then still be waiting for the broker, and ends with the connection.
func (c *Conn) Do(ctx context.Context, f func(*amqp.Channel) error) error {
	done := make(chan error, 1)
	go func() {
		ch, err := c.Channel()
		if err != nil {
			done <- fmt.Errorf("open channel: %w", err)
			return
		}
		err = f(ch)
		_ = ch.Close()
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
