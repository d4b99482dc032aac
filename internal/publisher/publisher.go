// Package publisher publishes one message at a time and knows what became of
// it: nil means that the broker has confirmed it and that a queue took it.
//
// Every publish is mandatory and confirmed. basic.return carries no tag and
// message ids repeat, so each publish gets a nonce header by which its return
// is recognised. Many callers share one channel; every call ends in time.
package publisher

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
)

// Config of a Publisher.
type Config struct {
	// Timeout bounds a whole Publish, the wait for a connection and for the
	// confirm included.
	Timeout time.Duration
	// NonceHeader is the header that carries the nonce.
	NonceHeader string
}

// Publisher publishes over a connection that nothing else publishes on:
// RabbitMQ throttles publishing connections. Its methods may be called from
// many goroutines.
type Publisher struct {
	cfg    Config
	link   *link.Link
	prefix string
	count  atomic.Uint64
	closed chan struct{}

	mu      sync.Mutex
	session *session
	opening *opening
	wg      sync.WaitGroup // goroutines that open and close channels
}

// opening is the one attempt to open a channel that all callers wait for.
type opening struct {
	done    chan struct{}
	session *session
	err     error
}

// New returns a Publisher on l, which it closes in Close.
func New(l *link.Link, cfg Config) *Publisher {
	seed := make([]byte, 8)
	_, _ = rand.Read(seed) // never fails
	return &Publisher{
		cfg: cfg, link: l, prefix: hex.EncodeToString(seed) + "-",
		closed: make(chan struct{}),
	}
}

// Publish sends msg and waits until the broker has confirmed it. It returns at
// the end of Config.Timeout, or of ctx, at the latest. After ErrUnknown there
// may be a copy or none; after any other error there is none.
//
// msg.Headers must not be nil and must belong to the caller alone: the nonce is
// written into it.
func (p *Publisher) Publish(ctx context.Context, exchange, routingKey string, msg amqp.Publishing) error {
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.Timeout,
		fmt.Errorf("no answer from the broker within %v: %w", p.cfg.Timeout, context.DeadlineExceeded))
	defer cancel()

	nonce := p.prefix + strconv.FormatUint(p.count.Add(1), 36)
	msg.Headers[p.cfg.NonceHeader] = nonce
	if err := msg.Headers.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrNotSent, err)
	}

	s, err := p.join(ctx)
	if err != nil {
		return err
	}
	defer p.leave(s)
	begun := time.Now()
	confirm, err := s.send(ctx, exchange, routingKey, msg)
	if err != nil {
		if errors.Is(err, ErrUnknown) {
			p.retire(s)
		}
		return err
	}

	select {
	case <-confirm.Done():
	case <-ctx.Done():
		// The confirm may have come in the same moment.
		select {
		case <-confirm.Done():
		default:
			p.retire(s)
			if s.conn.LastRead().Before(begun) {
				s.conn.Kill() // not even a heartbeat: nobody is there
			}
			return fmt.Errorf("%w: %w", ErrUnknown, context.Cause(ctx))
		}
	}

	returned, wasReturned := s.takeReturn(nonce, p.cfg.NonceHeader)
	switch {
	case confirm.Acked() && !wasReturned:
		return nil
	case wasReturned:
		return &ReturnedError{
			Exchange: exchange, RoutingKey: routingKey,
			Code: returned.ReplyCode, Text: returned.ReplyText,
		}
	case s.ch.IsClosed():
		// An unresolved confirm reads like a nack when its channel closes (F13).
		p.retire(s)
		return fmt.Errorf("%w: %w", ErrUnknown, s.cause())
	}
	return ErrRefused
}

// Do runs f on a channel of its own on the publisher's connection, for at most
// Config.Timeout.
func (p *Publisher) Do(ctx context.Context, f func(*amqp.Channel) error) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	conn, err := p.link.Conn(ctx)
	if err != nil {
		return err
	}
	return conn.Do(ctx, f)
}

// Healthy reports nil while there is a connection that takes publishes.
func (p *Publisher) Healthy() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	conn, err := p.link.Conn(ctx)
	switch {
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
	select {
	case <-p.closed:
		p.mu.Unlock()
		return
	default:
	}
	close(p.closed)
	p.mu.Unlock()
	p.link.Close()
	p.wg.Wait()
}
