// Package publisher publishes one message at a time and knows what became of
// it: nil means that the broker has confirmed it and that a queue took it.
//
// Every publish is mandatory and confirmed. basic.return carries no tag and
// message ids repeat, so each publish gets a nonce header by which its return
// is recognised. Many callers share one channel; every call ends in time, and
// none that ends early takes connection or channel from the others. A target that
// the broker refuses, or whose confirms are late, has a channel of its own.
package publisher

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
)

// Config of a Publisher.
type Config struct {
	// Timeout bounds a whole Publish, the wait for a connection and for the
	// confirm included. A connection on which even the opening of a channel takes
	// that long is given up.
	Timeout time.Duration
	// NonceHeader is the header that carries the nonce.
	NonceHeader string
}

// Publisher publishes over a connection that nothing else publishes on:
// RabbitMQ throttles publishing connections. Its methods may be called from
// many goroutines.
type Publisher struct {
	cfg     Config
	link    *link.Link
	prefix  string
	count   atomic.Uint64
	tooLate error // the cause of a call that ends at Config.Timeout

	mu      sync.Mutex
	closed  bool
	common  lane
	apart   map[target]*lane
	known   map[string]bool // exchanges that have worked, other than the default one
	retired int             // channels that take no new publish and are still in use
	probed  struct {
		conn    *link.Conn
		at      time.Time
		running bool
	}
	wg sync.WaitGroup // calls, and goroutines that open and close
}

// New returns a Publisher on l, which it closes in Close.
func New(l *link.Link, cfg Config) *Publisher {
	seed := make([]byte, 8)
	_, _ = rand.Read(seed) // never fails
	return &Publisher{
		cfg: cfg, link: l, prefix: hex.EncodeToString(seed) + "-",
		apart: make(map[target]*lane), known: make(map[string]bool),
		tooLate: fmt.Errorf("no answer from the broker within %v: %w", cfg.Timeout, context.DeadlineExceeded),
	}
}

// Publish sends msg and waits until the broker has confirmed it. It returns at
// the end of Config.Timeout, or of ctx, at the latest. After ErrUnknown there
// may be a copy or none; after any other error there is none.
//
// msg is not written to, and not read any more when Publish has returned.
func (p *Publisher) Publish(ctx context.Context, exchange, routingKey string, msg amqp.Publishing) error {
	return p.PublishOwn(ctx, exchange, routingKey, withHeaders(msg))
}

// PublishOwn is Publish of a message whose headers are the publisher's to write
// to, and not nil.
func (p *Publisher) PublishOwn(ctx context.Context, exchange, routingKey string, msg *amqp.Publishing) error {
	return p.PublishFor(ctx, nil, exchange, routingKey, msg)
}

// PublishFor is PublishOwn of a message that is published until that has succeeded.
// Where the confirm does not come in time, the publish stays open in pending: Await
// is to be called before the message is published again. A nil pending gives it up.
func (p *Publisher) PublishFor(ctx context.Context, pending *Pending, exchange, routingKey string, msg *amqp.Publishing) error {
	ctx, cancel, err := p.begun(ctx)
	if err != nil {
		return err
	}
	defer p.wg.Done()
	defer cancel()
	s, err := p.start(ctx, pending, target{exchange, routingKey}, msg)
	if err != nil {
		return err
	}
	return p.outcome(ctx, &s, pending)
}

// Do runs f on a channel of its own on the publisher's connection, for at most
// Config.Timeout.
func (p *Publisher) Do(ctx context.Context, f func(*amqp.Channel) error) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	conn, err := p.link.Conn(ctx)
	if err != nil {
		return ofLink(err)
	}
	return conn.Do(ctx, f)
}

// Conn returns the connection that there is now; nil while there is none.
func (p *Publisher) Conn() *link.Conn {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	conn, _ := p.link.Conn(ctx)
	return conn
}

// Healthy reports nil while there is a connection that takes publishes.
func (p *Publisher) Healthy() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	conn, err := p.link.Conn(ctx)
	switch {
	case errors.Is(err, link.ErrClosed):
		return ErrClosed
	case err != nil:
		return errors.New("publisher is not connected to RabbitMQ")
	case conn.Unblocked() != nil:
		return errors.New("RabbitMQ has blocked publishing (a resource alarm)")
	}
	return nil
}

// Close ends the connection. Calls under way end with an error, and no
// goroutine is left. It returns within a few seconds whatever the broker does.
func (p *Publisher) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.link.Close()
	p.wg.Wait()
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

// notSent is the error of a call whose time was up before its turn.
func (p *Publisher) notSent(ctx context.Context) error {
	if err := p.Healthy(); err != nil {
		return fmt.Errorf("%w: %w: %w", ErrNotSent, err, context.Cause(ctx))
	}
	return fmt.Errorf("%w: %w", ErrNotSent, context.Cause(ctx))
}

// ofLink is an error of the link as one of ours.
func ofLink(err error) error {
	if errors.Is(err, link.ErrClosed) {
		return ErrClosed
	}
	return err
}
