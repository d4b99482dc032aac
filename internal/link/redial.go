package link

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// ErrClosed says that Close was called.
var ErrClosed = errors.New("closed")

// closeLimit bounds the goodbye to the broker.
const closeLimit = 2 * time.Second

// Link is a connection that is made again when it is lost. Its methods may be called from many
// goroutines.
type Link struct {
	cfg     Config
	closing context.Context
	close   context.CancelFunc
	done    chan struct{}
	urls    []string
	next    int // of urls

	mu      sync.Mutex
	conn    *Conn
	changed chan struct{} // closed when conn is set
}

// Open connects once, to the first URL that works, within ctx and within cfg.ConnectTimeout for
// each URL. From then on it keeps the connection alive until Close.
func Open(ctx context.Context, cfg Config) (*Link, error) {
	l := &Link{
		cfg: cfg, urls: append([]string{cfg.URL}, cfg.More...),
		done: make(chan struct{}), changed: make(chan struct{}),
	}
	if cfg.Credentials != nil {
		l.cfg.Credentials = oneAtATime(cfg.Credentials)
	}
	for _, u := range l.urls {
		if err := CheckURL(u); err != nil {
			return nil, err
		}
	}
	var problems []error
	for range l.urls {
		conn, err := l.dialNext(ctx)
		if err == nil {
			l.closing, l.close = context.WithCancel(context.Background())
			l.conn = conn
			go l.run(conn)
			return l, nil
		}
		problems = append(problems, err)
	}
	return nil, errors.Join(problems...)
}

// oneAtATime returns ask for the dials, which follow one another. It returns at the end of ctx also
// if the user's function does not. A later dial then waits for the same call.
func oneAtATime(
	ask func(context.Context) (user, password string, err error),
) func(context.Context) (user, password string, err error) {
	type answer struct {
		user, password string
		err            error
	}
	var running chan answer
	return func(ctx context.Context) (string, string, error) {
		for {
			late := running != nil
			if !late {
				running = make(chan answer, 1)
				go func(told chan<- answer) {
					defer close(told) // the user's function may end its goroutine
					var a answer
					a.user, a.password, a.err = ask(ctx)
					told <- a
				}(running)
			}
			select {
			case a, ok := <-running:
				running = nil
				switch {
				case late && (!ok || a.err != nil): // of an earlier ctx
					continue
				case !ok:
					return "", "", errors.New("the function has ended its goroutine")
				}
				return a.user, a.password, a.err
			case <-ctx.Done():
				return "", "", context.Cause(ctx)
			}
		}
	}
}

// dialNext dials the URL whose turn it is. Only Open and then run call it.
func (l *Link) dialNext(ctx context.Context) (*Conn, error) {
	cfg := l.cfg
	cfg.URL = l.urls[l.next]
	conn, err := dial(ctx, cfg)
	if err != nil { // stay with a URL that works
		l.next = (l.next + 1) % len(l.urls)
	}
	return conn, err
}

// Conn returns the live connection. It waits for one until ctx is done.
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

// Do calls f with the live connection, for which it waits. If that connection is lost meanwhile, Do
// calls f once more, with the next: Conn cannot see at once that a connection has ended.
func (l *Link) Do(ctx context.Context, f func(*Conn) error) error {
	conn, err := l.Conn(ctx)
	if err != nil {
		return err
	}
	err = f(conn)
	if err == nil || !conn.IsClosed() || ctx.Err() != nil {
		return err
	}
	if conn, err = l.Conn(ctx); err != nil {
		return err
	}
	return f(conn)
}

// Close ends the connection and the reconnecting. It returns within a few seconds, even if the
// broker does not answer.
func (l *Link) Close() {
	l.close()
	<-l.done
}

func (l *Link) run(conn *Conn) {
	defer close(l.done)
	logFields := watermill.LogFields{"connection": l.cfg.Name, "broker": l.cfg.address()}
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

// redial dials until a connection is there. It returns nil if the link is closed first.
func (l *Link) redial(logFields watermill.LogFields) *Conn {
	for failed := 0; ; failed++ {
		select {
		case <-time.After(l.cfg.Reconnect.pause(failed)):
		case <-l.closing.Done():
			return nil
		}
		conn, err := l.dialNext(l.closing)
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

// set changes the connection, and wakes the callers of Conn when there is one.
func (l *Link) set(conn *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = conn
	if conn != nil {
		close(l.changed)
		l.changed = make(chan struct{})
	}
}
