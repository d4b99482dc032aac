package chaos

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/middleware/header"
)

// Letter is a dead letter.
type Letter struct {
	N      int
	At     time.Time // read
	Nonce  string
	Reason string
}

// filler is the body of what fills the dead-letter queue.
const filler = "filler"

// letters reads dead letters off their queue, as somebody does who looks after them. What it has
// read it keeps.
type letters struct {
	urls  []string
	queue string
	// back, if set, is the queue to which each message goes, confirmed, before it is acked: it is not
	// kept then.
	back string

	turn sync.Mutex // held while reading, or by who wants nobody to read

	mu     sync.Mutex
	seen   map[string]bool // nonces
	got    []Letter
	moved  int
	broken []string // what could not be understood
}

// run reads until ctx is done.
func (l *letters) run(ctx context.Context) {
	for tries := 0; ctx.Err() == nil; tries++ {
		_ = l.connected(ctx, l.urls[tries%len(l.urls)]) // the next node then
		select {
		case <-time.After(300 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func (l *letters) connected(ctx context.Context, url string) error {
	ch, hangUp, err := dial(url)
	if err != nil {
		return err
	}
	defer hangUp()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := l.empty(ctx, ch); err != nil {
			return err
		}
	}
}

// empty reads until the queue is empty.
func (l *letters) empty(ctx context.Context, ch *amqp.Channel) error {
	l.turn.Lock()
	defer l.turn.Unlock()
	for ctx.Err() == nil {
		d, ok, err := ch.Get(l.queue, false)
		if err != nil || !ok {
			return err
		}
		if err := l.take(ch, d); err != nil {
			return err
		}
		if err := d.Ack(false); err != nil {
			return err
		}
	}
	return nil
}

func (l *letters) take(ch *amqp.Channel, d amqp.Delivery) error {
	if l.back != "" {
		confirm, err := ch.PublishWithDeferredConfirm("", l.back, false, false, amqp.Publishing{
			Headers: d.Headers, Body: d.Body, DeliveryMode: amqp.Persistent,
		})
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), confirmTimeout)
		defer cancel()
		if ok, err := confirm.WaitContext(ctx); err != nil || !ok {
			return errors.Join(errors.New("not confirmed"), err)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.moved++
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	text := func(key string) string { s, _ := d.Headers[key].(string); return s }
	nonce := text(header.Publish)
	n, err := strconv.Atoi(string(d.Body))
	switch {
	case string(d.Body) == filler || l.seen[nonce]:
	case err != nil || nonce == "":
		l.broken = append(l.broken, string(d.Body))
	default:
		l.seen[nonce] = true
		l.got = append(l.got, Letter{N: n, At: time.Now(), Nonce: nonce, Reason: text(header.DeadReason)})
	}
	return nil
}

func (l *letters) all() []Letter {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.got[:len(l.got):len(l.got)]
}
