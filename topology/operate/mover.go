package operate

import (
	"context"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// maxUnderWay and maxBytesUnderWay bound the publishes that wait for their
	// confirm, and with them how many messages a killed process has doubled.
	maxUnderWay      = 128
	maxBytesUnderWay = 16 << 20
)

// mover publishes messages and acks each once it is confirmed, many under way,
// in their order. After the first failure it takes no more.
type mover struct {
	ctx      context.Context // of publishes: those that were begun are finished
	operator *Operator
	taken    *taking
	done     func() // called for each that was moved

	pending chan movement
	settled chan struct{}
	failed  chan struct{}

	mu    sync.Mutex
	room  *sync.Cond
	bytes int
	err   error
}

type movement struct {
	d    amqp.Delivery
	wait func() error
}

func newMover(ctx context.Context, o *Operator, taken *taking, done func()) *mover {
	m := &mover{
		ctx: context.WithoutCancel(ctx), operator: o, taken: taken, done: done,
		pending: make(chan movement, maxUnderWay), settled: make(chan struct{}), failed: make(chan struct{}),
	}
	m.room = sync.NewCond(&m.mu)
	go m.settle()
	return m
}

// move begins to move d, which becomes msg, to an exchange or a queue. An error may
// be that of an earlier message; d stays with the caller then.
func (m *mover) move(d amqp.Delivery, exchange, routingKey string, msg amqp.Publishing) error {
	m.mu.Lock()
	for m.err == nil && m.bytes > 0 && m.bytes+len(d.Body) > maxBytesUnderWay {
		m.room.Wait()
	}
	err := m.err
	m.bytes += len(d.Body)
	m.mu.Unlock()
	var wait func() error
	if err == nil {
		wait, err = m.operator.startPublish(m.ctx, exchange, routingKey, msg)
	}
	if err != nil {
		return err
	}
	m.pending <- movement{d, wait}
	return nil
}

// settle acks what is confirmed.
func (m *mover) settle() {
	defer close(m.settled)
	for p := range m.pending {
		err := p.wait()
		if err == nil {
			err = p.d.Ack(false)
		}
		m.mu.Lock()
		m.bytes -= len(p.d.Body)
		if err != nil {
			m.taken.Keep(p.d.DeliveryTag)
			if m.err == nil {
				m.err = err
				close(m.failed)
			}
		}
		m.mu.Unlock()
		m.room.Signal()
		if err == nil {
			m.done()
		}
	}
}

// finish waits for what is under way and returns the first failure.
func (m *mover) finish() error {
	close(m.pending)
	<-m.settled
	return m.err
}
