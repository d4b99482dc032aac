package link

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// ErrClosed is returned once Close was called.
var ErrClosed = errors.New("closed")

// closeLimit bounds the goodbye to the broker.
const closeLimit = 2 * time.Second

// Link is a connection that comes back. Its methods may be called from many
// goroutines.
type Link struct {
	cfg     Config
	closing context.Context
	close   context.CancelFunc
	done    chan struct{}

	mu      sync.Mutex
	conn    *Conn
	changed chan struct{} // closed when conn is set
}

// Open connects once, within ctx and the timeout of cfg, and from then on keeps
// the connection alive until Close.
func Open(ctx context.Context, cfg Config) (*Link, error) {
	if err := CheckURL(cfg.URL); err != nil {
		return nil, err
	}
	conn, err := dial(ctx, cfg)
	if err != nil {
		return nil, err
	}
	closing, cancel := context.WithCancel(context.Background())
	l := &Link{
		cfg: cfg, closing: closing, close: cancel,
		done: make(chan struct{}), conn: conn, changed: make(chan struct{}),
	}
	go l.run(conn)
	return l, nil
}

// Conn returns the live connection, waiting for one until ctx ends.
func (l *Link) Conn(ctx context.Context) (*Conn, error) {
	for {
		l.mu.Lock()
		conn, changed := l.conn, l.changed
		l.mu.Unlock()
		if l.closing.Err() != nil {
			return nil, ErrClosed
		}
		if conn != nil && !conn.IsClosed() {
			return conn, nil
		}
		select {
		case <-changed:
		case <-l.closing.Done():
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, fmt.Errorf("not connected to RabbitMQ: %w", context.Cause(ctx))
		}
	}
}

// Closing is done once Close was called.
func (l *Link) Closing() <-chan struct{} { return l.closing.Done() }

// Close ends the connection and the reconnecting. It returns within a few
// seconds whatever the broker does.
func (l *Link) Close() {
	l.close()
	<-l.done
}

func (l *Link) run(conn *Conn) {
	defer close(l.done)
	logFields := watermill.LogFields{"connection": l.cfg.Name, "broker": Address(l.cfg.URL)}
	for conn != nil {
		select {
		case <-conn.Gone():
			l.set(nil)
			l.cfg.Logger.Error("Connection to RabbitMQ lost, reconnecting", conn.Cause(), logFields)
			conn = l.redial(logFields)
			l.set(conn)
		case <-l.closing.Done():
			l.set(nil)
			conn.Close(closeLimit)
			return
		}
	}
}

// redial returns nil when the link is closed first.
func (l *Link) redial(logFields watermill.LogFields) *Conn {
	for failed := 0; ; failed++ {
		select {
		case <-time.After(l.cfg.Reconnect.pause(failed)):
		case <-l.closing.Done():
			return nil
		}
		conn, err := dial(l.closing, l.cfg)
		if err == nil {
			l.cfg.Logger.Info("Connected to RabbitMQ again", logFields)
			return conn
		}
		if l.closing.Err() != nil {
			return nil
		}
		l.cfg.Logger.Error("Cannot reconnect to RabbitMQ, trying again", err, logFields)
	}
}

// set changes the connection; whoever waits for one is woken when there is one.
func (l *Link) set(conn *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = conn
	if conn != nil {
		close(l.changed)
		l.changed = make(chan struct{})
	}
}
