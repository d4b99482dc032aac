package operate

import (
	"context"
	"errors"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/topology"
)

const (
	// maxUnderWay and maxBytesUnderWay bound a batch: messages that are published before it is known
	// that their old queue has the acks. A killed process leaves copies of no more than one batch.
	maxUnderWay      = 64
	maxBytesUnderWay = 16 << 20
)

// mover publishes messages and acks each once it is confirmed, in batches and in their order.
// After the first failure it takes no more.
type mover struct {
	ctx      context.Context // without a cancel: a publish that was begun is finished
	operator *Operator
	taken    *taking
	done     func() // called for each that was moved
	// unroutable, if it is set, is called for a message that no queue took, in place of a failure.
	unroutable func(d amqp.Delivery)

	pending chan movement
	settled chan struct{}
	failed  chan struct{}

	// The batch that is open.
	open            sync.WaitGroup
	messages, bytes int

	mu  sync.Mutex
	err error
}

type movement struct {
	d    amqp.Delivery
	wait func() error
}

func newMover(ctx context.Context, o *Operator, taken *taking, done func()) *mover {
	m := &mover{
		ctx: context.WithoutCancel(ctx), operator: o, taken: taken, done: done,
		pending: make(chan movement, maxUnderWay), settled: make(chan struct{}),
		failed: make(chan struct{}),
	}
	go m.settle()
	return m
}

// move begins to move d, which becomes msg, to an exchange or a queue. With an error, which may
// come from an earlier message, d stays with the caller. The goroutine that takes the messages
// calls it.
func (m *mover) move(d amqp.Delivery, exchange, routingKey string, msg amqp.Publishing) error {
	if m.bytes > 0 && m.bytes+len(d.Body) > maxBytesUnderWay {
		m.flush()
	}
	m.mu.Lock()
	err := m.err
	m.mu.Unlock()
	var wait func() error
	if err == nil {
		wait, err = m.operator.startPublish(m.ctx, exchange, routingKey, msg)
	}
	if err != nil {
		return err
	}
	m.messages++
	m.bytes += len(d.Body)
	m.open.Add(1)
	m.pending <- movement{d, wait}
	if m.messages == maxUnderWay {
		m.flush()
	}
	return nil
}

// flush ends the batch. It returns when its messages are confirmed and their old queue has the
// acks: the broker forgets acks that it keeps back when the connection ends.
func (m *mover) flush() {
	m.open.Wait()
	m.fail(m.taken.explain(m.taken.Flush()))
	m.messages, m.bytes = 0, 0
}

// fail keeps the first failure.
func (m *mover) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil && m.err == nil {
		m.err = err
		close(m.failed)
	}
}

// settle acks the messages that are confirmed.
func (m *mover) settle() {
	defer close(m.settled)
	for p := range m.pending {
		err := p.wait()
		if err == nil {
			err = p.d.Ack(false)
		}
		if err == nil {
			m.done()
		} else {
			m.taken.Keep(p.d.DeliveryTag)
		}
		if m.unroutable != nil && errors.Is(err, topology.ErrUnroutable) {
			m.unroutable(p.d)
		} else {
			m.fail(err)
		}
		m.open.Done()
	}
}

// finish waits for the publishes under way and returns the first failure.
func (m *mover) finish() error {
	close(m.pending)
	<-m.settled
	return m.err
}

// catchUp is the part of a delay that is made up for by going faster afterwards.
const catchUp = 250 * time.Millisecond

// pace lets a number of messages pass each second. The zero value lets all pass.
type pace struct {
	interval time.Duration
	next     time.Time
}

func newPace(rate float64) pace {
	if rate <= 0 {
		return pace{}
	}
	return pace{interval: time.Duration(float64(time.Second) / rate)}
}

// wait returns when the next message may pass.
func (p *pace) wait(ctx context.Context) error {
	if p.interval == 0 {
		return context.Cause(ctx)
	}
	now := time.Now()
	if p.next.IsZero() {
		p.next = now
	}
	if earliest := now.Add(-catchUp); p.next.Before(earliest) {
		p.next = earliest
	}
	pause := p.next.Sub(now)
	p.next = p.next.Add(p.interval)
	if pause <= 0 {
		return context.Cause(ctx)
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Progress counts the messages of a call, while it runs and at its end.
type Progress struct {
	// Total is the number of messages in the queue at the beginning.
	Total int `json:"total"`
	// Seen of them were looked at.
	Seen int `json:"seen"`
	// Chosen are the messages that the filter chose.
	Chosen int `json:"chosen"`
	// Done counts the messages that were moved and confirmed in their queue, or thrown away. It is
	// less than Chosen while publishes are under way, and in a dry run.
	Done int `json:"done"`
	// Foreign were chosen, but not taken, because their headers name another queue, or none with
	// ReplayOptions.Named.
	Foreign int `json:"foreign,omitempty"`
	// Refused by the edit hook, or too large with the headers that a replay adds: still in the queue.
	Refused int `json:"refused,omitempty"`
}
