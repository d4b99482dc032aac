package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// ErrLost is the cause of an operation that ended with its connection.
var ErrLost = errors.New("connection to the broker was lost")

// Conn is one connection, from its dial to its end.
type Conn struct {
	*amqp.Connection
	socket  *socket
	stream  *stream
	cluster *Cluster
	gone    chan struct{}

	mu        sync.Mutex
	killed    error // why we have ended it ourselves
	cause     error
	unblocked chan struct{} // nil while the broker takes publishes
}

// dial connects within the timeout of cfg and no longer than ctx.
func dial(ctx context.Context, cfg Config) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.ConnectTimeout)
	defer cancel()

	uri, err := parse(cfg.URL)
	if err != nil {
		return nil, err
	}
	c := &Conn{gone: make(chan struct{})}
	stop := func() bool { return true }
	amqpCfg := cfg.amqpConfig()
	if cfg.Credentials != nil {
		user, password, err := cfg.Credentials(ctx)
		if err != nil {
			return nil, fmt.Errorf("connect to RabbitMQ at %s: ask for credentials: %w", cfg.address(), err)
		}
		amqpCfg.SASL = []amqp.Authentication{&amqp.PlainAuth{Username: user, Password: password}}
	}
	open := amqpCfg.Dial
	if open == nil {
		open = func(network, addr string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, addr)
		}
	}
	// TLS is made here and not by amqp091-go, so that frames can be looked at.
	addr := net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port))
	amqpCfg.Dial = func(network, _ string) (net.Conn, error) {
		conn, err := bounded(ctx, func() (net.Conn, error) { return open(network, addr) })
		if err != nil {
			return nil, err
		}
		c.socket = newSocket(conn, cfg.WriteTimeout)
		// A deadline of the socket itself may end before ctx is done.
		stop = context.AfterFunc(ctx, func() { _ = c.socket.SetDeadline(time.Unix(1, 0)) })
		secured, err := secure(c.socket, uri, amqpCfg.TLSClientConfig)
		if err != nil {
			return nil, err
		}
		c.stream = newStream(secured, cfg.Unreadable)
		return c.stream, nil
	}

	connection, err := amqp.DialConfig(withoutTLS(cfg.URL), amqpCfg)
	if !stop() && err == nil {
		err = errors.New("handshake took too long")
	}
	if err != nil {
		if c.socket != nil {
			_ = c.socket.Close()
		}
		if connection != nil { // begun: end its goroutines
			_ = connection.CloseDeadline(time.Now())
		}
		var cause error
		if c.stream != nil {
			cause = c.stream.cause()
		}
		explained := explained(err, cause)
		switch ctxErr := ctx.Err(); {
		case ctxErr != nil:
			explained = fmt.Errorf("%w (%w)", err, ctxErr)
		case explained == err && c.stream != nil && uri.Scheme == "amqps" && isBroken(err):
			explained = fmt.Errorf("%w: %w", err, errNotAdmitted)
		}
		return nil, fmt.Errorf("connect to RabbitMQ at %s: %w", cfg.address(), explained)
	}
	name, _ := connection.Properties["cluster_name"].(string)
	if err := cfg.Cluster.enter(name); err != nil {
		_ = connection.CloseDeadline(time.Now().Add(closeLimit))
		_ = c.socket.Close()
		return nil, fmt.Errorf("connect to RabbitMQ at %s: %w", cfg.address(), err)
	}
	c.Connection, c.cluster = connection, cfg.Cluster
	go c.watch(connection.NotifyClose(make(chan *amqp.Error, 1)), connection.NotifyBlocked(make(chan amqp.Blocking, 8)))
	return c, nil
}

// bounded returns what open returns, or an error at the end of ctx: the Dial of
// a user's configuration knows nothing of it.
func bounded(ctx context.Context, open func() (net.Conn, error)) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	opened := make(chan result, 1)
	go func() {
		conn, err := open()
		opened <- result{conn, err}
	}()
	select {
	case r := <-opened:
		return r.conn, r.err
	case <-ctx.Done():
		go func() {
			if r := <-opened; r.err == nil {
				_ = r.conn.Close()
			}
		}()
		return nil, context.Cause(ctx)
	}
}

// watch follows the connection until it ends.
func (c *Conn) watch(closed <-chan *amqp.Error, blocked <-chan amqp.Blocking) {
	defer close(c.gone)
	defer c.cluster.leave()
	// Where a write is blocked, amqp091-go cannot finish what it has begun.
	defer func() { _ = c.socket.Close() }()
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
			switch c.cause = ErrLost; {
			case c.killed != nil:
				c.cause = fmt.Errorf("%w: %w", ErrLost, c.killed)
			case err != nil:
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

// Together runs f. What f writes leaves in one system call with what others write
// at the same time. It is not waited for; an error ends the connection.
func (c *Conn) Together(f func()) {
	c.socket.hold()
	defer c.socket.release()
	f()
}

// Backlog returns a channel that is closed when what was written has left; nil
// where more may be written.
func (c *Conn) Backlog() <-chan struct{} { return c.socket.backlog() }

// Gone is closed when the connection has ended.
func (c *Conn) Gone() <-chan struct{} { return c.gone }

// Cause returns why the connection ended, nil while it lives.
func (c *Conn) Cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// Kill ends the connection without asking the broker; reason becomes its cause.
func (c *Conn) Kill(reason error) {
	c.mu.Lock()
	if c.killed == nil {
		c.killed = reason
	}
	c.mu.Unlock()
	_ = c.socket.Close()
}

// Close ends the connection, asking the broker for at most limit.
func (c *Conn) Close(limit time.Duration) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.CloseDeadline(time.Now().Add(limit))
	}()
	select {
	case <-c.gone: // amqp091-go may be closing it already, without a limit
	case <-time.After(limit):
		c.Kill(errors.New("the broker has not answered the goodbye"))
		<-c.gone
	}
	<-done
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
		if err = context.Cause(ctx); err == nil { // else nobody waits any more
			err = f(ch)
		}
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
