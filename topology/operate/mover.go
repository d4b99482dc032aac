package operate

import (
	"cmp"
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
// Messages that are thrown away are acked at the end of their batch. After the first failure it
// takes no more.
type mover struct {
	ctx    context.Context // without a cancel: a publish that was begun is finished
	replay *replay
	taken  *taking

	pending chan movement
	settled chan struct{}
	failed  chan struct{}

	// The batch that is open.
	open            sync.WaitGroup
	messages, bytes int
	dropped         []movement // messages to throw away

	mu  sync.Mutex
	err error
}

type movement struct {
	d    amqp.Delivery
	wait func() error
}

func newMover(ctx context.Context, r *replay, taken *taking) *mover {
	m := &mover{
		ctx: context.WithoutCancel(ctx), replay: r, taken: taken,
		pending: make(chan movement, maxUnderWay), settled: make(chan struct{}),
		failed: make(chan struct{}),
	}
	go m.settle()
	return m
}

// move begins to move d. With an error, which may come from an earlier message, d stays with the
// caller. The goroutine that takes the messages calls it.
func (m *mover) move(d amqp.Delivery, c copied) error {
	if m.bytes > 0 && m.bytes+len(d.Body) > maxBytesUnderWay {
		m.flush()
	}
	next, err := movement{d: d}, m.failure()
	if err == nil && m.replay.become != nil {
		next.wait, err = m.replay.operator.startPublish(m.ctx, c.Exchange, c.RoutingKey, c.msg)
	}
	if err != nil {
		return err
	}
	m.messages++
	m.bytes += len(d.Body)
	if next.wait == nil {
		m.dropped = append(m.dropped, next)
	} else {
		m.open.Add(1)
		m.pending <- next
	}
	if m.messages == maxUnderWay || m.replay.alone {
		m.flush()
	}
	return nil
}

// flush ends the batch. It returns when its messages are confirmed and their old queue has the
// acks: the broker forgets acks that it keeps back when the connection ends.
func (m *mover) flush() {
	m.open.Wait()
	m.drop()
	m.fail(m.taken.explain(m.taken.Flush()))
	m.messages, m.bytes = 0, 0
	step("the old queue has the acks")
}

// drop throws the messages of the batch away. After an error they stay.
func (m *mover) drop() {
	err := m.failure()
	if file := m.replay.KeepIn; err == nil && file != nil && len(m.dropped) > 0 {
		var lines []byte
		for _, p := range m.dropped {
			line, failed := Encode(p.d)
			lines, err = append(append(lines, line...), '\n'), cmp.Or(err, failed)
		}
		if err == nil {
			_, err = file.Write(lines)
		}
		if err == nil {
			err = file.Sync()
		}
	}
	for _, p := range m.dropped {
		m.end(p.d, err)
	}
	m.dropped = nil
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

func (m *mover) failure() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// settle acks the messages that are confirmed.
func (m *mover) settle() {
	defer close(m.settled)
	for p := range m.pending {
		m.end(p.d, p.wait())
		m.open.Done()
	}
}

// step is told of each step of a move, by tests that end the process there.
var step = func(string) {}

// end acks a message, or keeps it where err says that it is not at its goal.
func (m *mover) end(d amqp.Delivery, err error) {
	if err == nil {
		step("a copy is confirmed")
		err = d.Ack(false)
	}
	if err == nil {
		m.replay.count(func(p *Progress) { p.Done++ })
		return
	}
	m.taken.Keep(d.DeliveryTag)
	if !errors.Is(err, topology.ErrUnroutable) || !m.replay.leave(&d) {
		m.fail(err)
	}
}

// errStopped: the mover takes no more; it knows why.
var errStopped = errors.New("stopped")

// finish waits for the publishes under way and returns the first failure, or failed, with which the
// look at the messages has ended.
func (m *mover) finish(failed error) error {
	close(m.pending)
	<-m.settled
	if errors.Is(failed, errStopped) {
		failed = nil
	}
	m.fail(failed)
	m.drop()
	return cmp.Or(failed, m.err)
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
	return sleep(ctx, pause)
}

// Progress counts the messages of a call, while it runs and at its end.
type Progress struct {
	// Total is the number of messages in the queue at the beginning; of messages that wait, the number
	// that wait for the queue of the plan.
	Total int `json:"total"`
	// Seen of them were looked at.
	Seen int `json:"seen"`
	// Chosen are the messages that the filter chose.
	Chosen int `json:"chosen"`
	// Done counts the messages that were moved and confirmed in their queue, or thrown away. It is
	// less than Chosen while publishes are under way, and in a dry run.
	Done int `json:"done"`
	// Foreign were chosen, but not taken, because their headers name another queue, or none with
	// MoveOptions.Named.
	Foreign int `json:"foreign,omitempty"`
	// Spent are passed over because of MoveOptions.MaxReplays.
	Spent int `json:"spent,omitempty"`
	// Refused by the edit hook, or too large with the headers that a replay adds: still in the queue.
	Refused int `json:"refused,omitempty"`
	// Left are the messages that ReturnStranded has chosen and that stay because their queue does not
	// exist, by queue in the order of the names, as known at the end. After a thousand queues the
	// others are counted under OtherQueues.
	Left []QueueCount `json:"left,omitempty"`
}
