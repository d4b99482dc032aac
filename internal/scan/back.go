package scan

import (
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// atOnce is how many messages are given back together. Their order is kept
	// only where one consumer holds them, and a quorum queue of 3.10 mixes up
	// more than these.
	atOnce = 32
	// unanswered is how many groups are given back before the queue is asked
	// whether it has them: what more of them name the broker puts together, and
	// forgets some of it when the channel is closed too soon.
	unanswered = 16
	// awaitReady bounds that.
	awaitReady = 2 * time.Second
)

// back remembers what has to be given back, in groups whose order is kept.
type back struct {
	ch    *amqp.Channel
	queue string

	mu      sync.Mutex
	first   []uint64 // tag of the first message of each group
	kept    []uint64 // and of the last that is to be given back; 0 for none
	keptOf  []int    // and how many
	inGroup int      // messages of the last group
	keeps   int      // messages to give back
}

// taken notes a message, and whether another consumer has taken it than the one
// before.
func (b *back) taken(tag uint64, otherConsumer bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.inGroup++; otherConsumer || b.inGroup > atOnce {
		b.first, b.kept, b.keptOf, b.inGroup = append(b.first, tag), append(b.kept, 0), append(b.keptOf, 0), 1
	}
}

func (b *back) keep(tag uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i, found := slices.BinarySearch(b.first, tag)
	if !found {
		i-- // of the group that began before
	}
	b.kept[i] = max(b.kept[i], tag)
	b.keptOf[i]++
	b.keeps++
}

// all gives back what is kept, then what flush has taken: taken messages in all.
func (b *back) all(taken int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.keeps+taken == 0 {
		return nil
	}
	q, err := b.ch.QueueDeclarePassive(b.queue, true, false, false, false, nil)
	if err != nil {
		return err
	}
	for i, last := range b.kept {
		if last == 0 {
			continue
		}
		if err := b.ch.Nack(last, true, true); err != nil {
			return err
		}
		if i%unanswered == unanswered-1 {
			if err := b.await(q.Messages + b.sizes(i)); err != nil {
				return err
			}
		}
	}
	if err := b.ch.Nack(0, true, true); err != nil { // 0: whatever is left, if anything
		return err
	}
	return b.await(q.Messages + b.keeps + taken)
}

// await returns when so many messages are ready, or after a while: someone else
// may take them as soon as they are there.
func (b *back) await(n int) error {
	for end := time.Now().Add(awaitReady); ; {
		q, err := b.ch.QueueDeclarePassive(b.queue, true, false, false, false, nil)
		if err != nil || q.Messages >= n || time.Now().After(end) {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// sizes is how many messages of the groups up to i are given back.
func (b *back) sizes(i int) (n int) {
	for _, size := range b.keptOf[:i+1] {
		n += size
	}
	return n
}
