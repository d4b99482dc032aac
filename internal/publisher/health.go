package publisher

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
)

// Healthy returns nil while there is a connection that takes publishes.
func (p *Publisher) Healthy() error {
	conn, err := p.connNow()
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

// Conn returns the present connection, or nil if there is none.
func (p *Publisher) Conn() *link.Conn {
	conn, _ := p.connNow()
	return conn
}

// connNow returns the present connection without waiting for one.
func (p *Publisher) connNow() (*link.Conn, error) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return p.link.Conn(ctx)
}

// Do runs f on a new channel of the publisher's connection, for at most Config.Timeout.
func (p *Publisher) Do(ctx context.Context, f func(*amqp.Channel) error) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	return ofLink(p.link.Do(ctx, func(conn *link.Conn) error { return conn.Do(ctx, f) }))
}

// ofLink replaces the link's ErrClosed with the publisher's.
func ofLink(err error) error {
	if errors.Is(err, link.ErrClosed) {
		return ErrClosed
	}
	return err
}

// Close ends the connection. Calls under way end with an error, and no goroutine is left. Close
// returns within a few seconds, even if the broker does not answer.
func (p *Publisher) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.link.Close()
	p.wg.Wait()
}

// answered runs ask, which asks the broker for something small. It ends the connection if the
// answer takes longer than the timeout: so a broker that is gone silently is noticed. The time
// during which the broker has blocked publishing does not count, because then it reads nothing.
func (p *Publisher) answered(conn *link.Conn, ask func() error) error {
	answered := make(chan struct{})
	defer close(answered)
	p.wg.Go(func() {
		limit := time.NewTimer(p.cfg.Timeout)
		defer limit.Stop()
		for {
			select {
			case <-limit.C:
			case <-answered:
				return
			}
			unblocked := conn.Unblocked()
			if unblocked == nil {
				conn.Kill(fmt.Errorf("RabbitMQ has not opened a channel within %v", p.cfg.Timeout))
				return
			}
			select {
			case <-unblocked:
			case <-answered:
				return
			}
			limit.Reset(p.cfg.Timeout)
		}
	})
	return ask()
}

// probe asks the broker in the background whether it still answers on a connection where a
// confirm is late. A queue without its majority keeps confirms back for as long as it likes
// (F29), but a broker that is there still opens channels.
func (p *Publisher) probe(conn *link.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	recently := p.probed.conn == conn && time.Since(p.probed.at) < p.cfg.Timeout
	if p.closed || p.probed.running || recently {
		return
	}
	p.probed.conn, p.probed.at, p.probed.running = conn, time.Now(), true
	p.wg.Go(func() {
		defer func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.probed.running = false
		}()
		if await(context.Background(), conn, conn.Unblocked()) != nil {
			return
		}
		_ = p.answered(conn, func() error { // fails only if the connection has ended
			ch, err := conn.Channel()
			if err == nil {
				err = ch.Close()
			}
			return err
		})
	})
}
