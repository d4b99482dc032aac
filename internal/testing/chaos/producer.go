package chaos

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Sent is a message that the broker has confirmed.
type Sent struct {
	N  int
	At time.Time
}

// producers publish numbered messages as a careful AMQP client does: each once, mandatory and
// confirmed.
type producers struct {
	urls []string
	rate int // messages a second, all together

	next    atomic.Int64
	unknown atomic.Int64 // tried, and not confirmed

	mu   sync.Mutex
	sent []Sent
	wg   sync.WaitGroup
}

// producing is how many messages are on their way at once.
const producing = 8

// start publishes until ctx is done.
func (p *producers) start(ctx context.Context) {
	for i := range producing {
		p.wg.Go(func() { p.produce(ctx, i) })
	}
}

// wait returns when all have ended.
func (p *producers) wait() { p.wg.Wait() }

// confirmed returns what was confirmed so far.
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
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// connected publishes on one connection, until something is wrong with it.
func (p *producers) connected(ctx context.Context, url string, due <-chan time.Time) error {
	ch, hangUp, err := dial(url)
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
		if err := publishOne(ch, returned, queueName, strconv.Itoa(n)); err != nil {
			p.unknown.Add(1)
			return err
		}
		p.mu.Lock()
		p.sent = append(p.sent, Sent{n, time.Now()})
		p.mu.Unlock()
	}
}

// publishOne returns nil once a queue has the message.
func publishOne(ch *amqp.Channel, returned <-chan amqp.Return, key, body string) error {
	ctx, cancel := context.WithTimeout(context.Background(), confirmTimeout)
	defer cancel()
	confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", key, true, false,
		amqp.Publishing{Body: []byte(body), DeliveryMode: amqp.Persistent})
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

// dial opens a confirming channel on a connection of its own. All that a frozen node could hold up
// is bounded.
func dial(url string) (ch *amqp.Channel, hangUp func(), err error) {
	conn, err := amqp.DialConfig(url, amqp.Config{Dial: amqp.DefaultDial(3 * time.Second),
		Heartbeat: 5 * time.Second})
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
