package chaos

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/middleware/header"
)

// Sent is a message that the broker has confirmed.
type Sent struct {
	N  int
	At time.Time
}

// producers publish numbered messages like a careful AMQP client: each once, mandatory and
// confirmed.
type producers struct {
	urls []string
	rate int // messages a second, all together
	// to returns the queue and the priority of a message.
	to func(n int) (queue string, priority uint8)

	next    atomic.Int64
	unknown atomic.Int64 // tried, and not confirmed

	mu   sync.Mutex
	sent []Sent
	wg   sync.WaitGroup
}

// producing is the number of messages on their way at once.
const producing = 8

// start publishes until ctx is done.
func (p *producers) start(ctx context.Context) {
	for i := range producing {
		p.wg.Go(func() { p.produce(ctx, i) })
	}
}

// wait returns when all have ended.
func (p *producers) wait() { p.wg.Wait() }

// confirmed returns the confirmed messages so far.
func (p *producers) confirmed() []Sent {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sent[:len(p.sent):len(p.sent)]
}

func (p *producers) produce(ctx context.Context, i int) {
	ticker := time.NewTicker(time.Second * producing / time.Duration(p.rate))
	defer ticker.Stop()
	for tries := i; ctx.Err() == nil; tries++ {
		_ = p.connected(ctx, p.urls[tries%len(p.urls)], ticker.C) // the next node then
		rest(ctx, 200*time.Millisecond)
	}
}

// connected publishes on one connection, until something is wrong with it.
func (p *producers) connected(ctx context.Context, url string, due <-chan time.Time) error {
	ch, hangUp, err := Dial(url)
	if err != nil {
		return err
	}
	defer hangUp()
	returned := ch.NotifyReturn(make(chan amqp.Return, 1))
	for {
		select {
		case <-due:
		case <-ctx.Done():
			return ctx.Err()
		}
		n := int(p.next.Add(1))
		queue, priority := p.to(n)
		if err := PublishOne(ch, returned, queue,
			amqp.Publishing{Body: []byte(strconv.Itoa(n)), Priority: priority}); err != nil {
			p.unknown.Add(1)
			return err
		}
		p.mu.Lock()
		p.sent = append(p.sent, Sent{n, time.Now()})
		p.mu.Unlock()
	}
}

// PublishOne publishes to the queue key on a channel of Dial, and returns nil once the queue has
// the message. returned is the channel's NotifyReturn, or nil.
func PublishOne(
	ch *amqp.Channel, returned <-chan amqp.Return, key string, msg amqp.Publishing,
) error {
	ctx, cancel := context.WithTimeout(context.Background(), confirmTimeout)
	defer cancel()
	msg.DeliveryMode = amqp.Persistent
	confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", key, true, false, msg)
	if err != nil {
		return err
	}
	ok, err := confirm.WaitContext(ctx)
	if err != nil {
		return err
	}
	select {
	case <-returned: // before its confirm (F4)
		return errors.New("returned")
	default:
	}
	if !ok {
		return errors.New("not confirmed")
	}
	return nil
}

// Dial opens a channel in confirm mode on a new connection. Every step that a frozen node could
// hold up is bounded.
func Dial(url string) (ch *amqp.Channel, hangUp func(), err error) {
	conn, err := amqp.DialConfig(url, amqp.Config{
		Dial: amqp.DefaultDial(3 * time.Second), Heartbeat: 5 * time.Second,
	})
	if err != nil {
		return nil, nil, err
	}
	hangUp = func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }
	ch, err = conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		hangUp()
	}
	return ch, hangUp, err
}

// Letter is a dead letter.
type Letter struct {
	N      int
	At     time.Time // read
	Nonce  string
	Reason string
}

// filler is the body of messages that fill the dead-letter queue.
const filler = "filler"

// letters takes dead letters off their queue, as an operator does, and keeps them.
type letters struct {
	urls  []string
	queue string
	// back, if set, returns the queue to which a message is moved by its body, confirmed before its
	// ack. Otherwise the message is kept.
	back func(body string) (string, error)

	turn sync.Mutex // held while reading, or to keep the reader out

	mu     sync.Mutex
	seen   map[string]bool // nonces
	got    []Letter
	moved  int
	broken []string // bodies without a number or a nonce
}

// run reads until ctx is done.
func (l *letters) run(ctx context.Context) {
	for tries := 0; ctx.Err() == nil; tries++ {
		_ = l.connected(ctx, l.urls[tries%len(l.urls)]) // the next node then
		rest(ctx, 300*time.Millisecond)
	}
}

func (l *letters) connected(ctx context.Context, url string) error {
	ch, hangUp, err := Dial(url)
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
	if l.back != nil {
		to, err := l.back(string(d.Body))
		if err != nil {
			return err
		}
		confirm, err := ch.PublishWithDeferredConfirm("", to, false, false, amqp.Publishing{
			Headers: d.Headers, Body: d.Body, DeliveryMode: amqp.Persistent, Priority: d.Priority,
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
	nonce := text(keys.Publish)
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
