// Package native lets failed messages wait in the queue itself: the delivery is rejected, and a
// queue of RabbitMQ 4.3 with a delayed retry delivers it again when the delay is over (F14). There
// is no copy. The broker's delivery count takes the place of the header that counts the failures.
// The count also rises when a process or a connection ends, so a reject that was not written
// counts and waits like a written one.
package native

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millpond-go/millpond/internal/consumer"
)

// Keeper is the consumer.Keeper of one Subscription.
type Keeper struct {
	held   func(count int) time.Duration
	logger watermill.LoggerAdapter
	past   pastRejects
	// early is the channel on which a message has come back too soon: its queue holds no rejected
	// messages, as far as is known.
	early atomic.Pointer[consumer.Channel]
}

// New returns a Keeper for a queue that holds a rejected message so long, by its delivery count.
func New(held func(count int) time.Duration, logger watermill.LoggerAdapter) *Keeper {
	return &Keeper{held: held, logger: logger}
}

// holdsNone reports whether the queue does not hold rejected messages.
func (p *Keeper) holdsNone(on *consumer.Channel) bool {
	return on.HoldsNone || p.early.Load() == on
}

// Holds implements consumer.Keeper. A message without an id is not rejected: it could come back at
// once again and again without being noticed.
func (p *Keeper) Holds(k *consumer.Kept) time.Duration {
	if p.holdsNone(k.On) || k.Isolated || k.Raw.Expiration != "" || k.ID == "" {
		return 0
	}
	next := consumer.RejectCount(k.Raw) + 1
	if next >= consumer.MostRejected(k.On.Deliveries) {
		return 0
	}
	return p.held(int(next))
}

// Given implements consumer.Keeper. It does not see that the message will be snoozed, or that the
// handler changes kept metadata: then the wait may be longer, in rounds.
func (p *Keeper) Given(
	k *consumer.Kept, others func(time.Duration) time.Duration,
) func(asked time.Duration) time.Duration {
	return func(asked time.Duration) time.Duration {
		if asked > 0 && p.Holds(k) == asked {
			return asked
		}
		return others(asked)
	}
}

// Rejected implements consumer.Keeper.
func (p *Keeper) Rejected(k *consumer.Kept, held time.Duration) {
	p.past.add(pastReject{k.ID, consumer.RejectCount(k.Raw) + 1, time.Now()}, held)
}

var errNotHeld = errors.New("a rejected message has come back before its delay was over")

// Came implements consumer.Keeper. It ends the rejects of the channel if the message has come back
// in less than half of the time that the queue must hold it. From then on copies wait. The next
// channel asks the broker again how long the queue holds messages.
func (p *Keeper) Came(k *consumer.Kept) {
	count := consumer.RejectCount(k.Raw)
	if count == 0 || k.ID == "" || p.holdsNone(k.On) {
		return
	}
	r, ok := p.past.soonest(k.ID, count)
	if !ok {
		return
	}
	ago, held := k.Arrived.Sub(r.at), p.held(int(r.count))
	if ago >= held/2 || p.early.Swap(k.On) == k.On {
		return
	}
	p.logger.Error("The queue does not hold rejected messages any more: from now on failed "+
		"messages wait in wait queues, until this process connects again; set x-delayed-retry-type, "+
		"-min and -max, or the policy, as native.Strategy needs it", errNotHeld,
		watermill.LogFields{"message_id": k.ID, "held": ago, "expected": held})
}

// pastReject is a message that a Subscription has rejected.
type pastReject struct {
	id    string
	count int64 // the delivery count with which it comes back
	at    time.Time
}

// pastRejects are the last rejects of a Subscription, the oldest replaced first. They show that a
// queue holds messages no longer: a policy was changed after the Subscription began, or a cluster
// that is being upgraded has older nodes.
type pastRejects struct {
	mu   sync.Mutex
	list []pastReject
	next int // to be replaced
}

// mostPastRejects bounds the memory. A message that is not held comes back at once.
const mostPastRejects = 256

// add remembers a reject of a message that its queue must hold so long. It takes the place of one
// with the same count whose delay was over by then: a copy has begun a new count.
func (p *pastRejects) add(r pastReject, held time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.list {
		if old := &p.list[i]; old.id == r.id && old.count == r.count && r.at.Sub(old.at) >= held {
			*old = r
			return
		}
	}
	if len(p.list) < mostPastRejects {
		p.list = append(p.list, r)
		return
	}
	p.list[p.next] = r
	p.next = (p.next + 1) % mostPastRejects
}

// soonest returns the reject that says how soon a message may be back with a delivery count: the
// one with the highest count that is not above it. Another process may have rejected the message
// since then, which only makes it later. Of two with the same count it is the older, because a
// duplicate has the same id.
func (p *pastRejects) soonest(id string, count int64) (found pastReject, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.list {
		if r.id != id || r.count > count {
			continue
		}
		if !ok || r.count > found.count || r.count == found.count && r.at.Before(found.at) {
			found, ok = r, true
		}
	}
	return found, ok
}
