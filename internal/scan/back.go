package scan

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// atOnce is how many messages are given back together. Their order is kept only if one
	// consumer holds them, and a quorum queue of 3.10 mixes up more of them.
	atOnce = 32
	// unanswered is how many groups are given back before the queue is asked whether it has them.
	// The broker puts the names of more groups together, and forgets some of them when the channel
	// is closed too soon.
	unanswered = 16
	// awaitReady bounds that question. It also bounds how long the end of the scan waits for
	// messages that a consumer takes as soon as they are back.
	awaitReady = 2 * time.Second
	// awaitBack is how long messages may take to be back before they count as missing. A busy broker
	// says for a while that a quorum queue has none.
	awaitBack = 20 * time.Second
)

// MissingError says how many messages that were given back are not in the queue.
type MissingError struct{ Messages int }

func (e *MissingError) Error() string {
	return fmt.Sprintf("%d messages that were given back are not in the queue", e.Messages)
}

// back remembers the messages to give back, in groups whose order is kept.
type back struct {
	ch    *amqp.Channel
	queue string

	mu      sync.Mutex
	groups  []group
	inGroup int // messages of the last group
	keeps   int // messages to give back
	// expiring is how many of the taken messages have an expiration. leaving says that all of them
	// may leave the queue by themselves.
	expiring int
	leaving  bool
	overdue  bool         // some were not back in time
	given    atomic.Int64 // messages
}

// group is a run of messages that are given back together.
type group struct {
	first uint64 // tag of the first message
	last  uint64 // tag of the last message to give back; 0 for none
	keeps int    // messages to give back
}

// taken notes a message. otherConsumer says that the message before was taken by another consumer.
func (b *back) taken(tag uint64, otherConsumer bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.inGroup++; otherConsumer || b.inGroup > atOnce {
		b.groups, b.inGroup = append(b.groups, group{first: tag}), 1
	}
}

// keep notes a message to give back.
func (b *back) keep(tag uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i, found := slices.BinarySearchFunc(b.groups, tag, func(g group, tag uint64) int {
		return cmp.Compare(g.first, tag)
	})
	if !found {
		i-- // its group began before
	}
	b.groups[i].last = max(b.groups[i].last, tag)
	b.groups[i].keeps++
	b.keeps++
}

// expires notes whether a message may expire while it is held.
func (b *back) expires(d *amqp.Delivery) {
	if d.Expiration != "" {
		b.expiring++
	}
}

// all gives back the messages that are kept, and then the ones that Flush has taken behind. The
// error is a MissingError if some are not in the queue afterwards.
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
	for i, g := range b.groups {
		if g.last == 0 {
			continue
		}
		if err := b.ch.Nack(g.last, true, true); err != nil {
			return err
		}
		given := int(b.given.Add(int64(g.keeps)))
		if i%unanswered == unanswered-1 {
			if _, err := b.await(q.Messages+given, awaitReady); err != nil {
				return err
			}
		}
	}
	if err := b.ch.Nack(0, true, true); err != nil { // 0: all that are left, if any
		return err
	}
	want, patience := q.Messages+b.keeps+taken, awaitBack
	if b.leaving {
		patience = awaitReady
	} else {
		want -= b.expiring
	}
	b.overdue = false
	missing, err := b.await(want, patience)
	if err == nil && missing > 0 && !b.leaving {
		err = &MissingError{missing}
	}
	return err
}

// await returns how many of n messages are not ready. It returns 0 as soon as all are ready, and
// waits while their number grows. If the queue has a consumer that may have taken them, it returns
// 0 after awaitReady. Each page that a quorum queue does not have back yet counts as one (F45).
func (b *back) await(n int, patience time.Duration) (missing int, err error) {
	most, began := 0, time.Now()
	for grown := began; !b.overdue; {
		q, err := b.ch.QueueDeclarePassive(b.queue, true, false, false, false, nil)
		now := time.Now()
		switch {
		case err != nil || q.Messages >= n:
			return 0, err
		case q.Messages > most:
			most, grown = q.Messages, now
		case q.Messages+q.Consumers == 0 && !b.leaving: // a busy quorum queue says so, too (F55)
			b.overdue, grown = now.Sub(began) > awaitBack, now
		case q.Consumers > 0 && now.Sub(grown) > awaitReady:
			b.overdue, most = true, n
		default:
			b.overdue = now.Sub(grown) > patience
		}
		time.Sleep(5 * time.Millisecond)
	}
	return n - most, nil
}
