package consumer

import (
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// This file has the retries that wait in the queue itself: the delivery is rejected, and a queue
// of RabbitMQ 4.3 with a delayed retry delivers it again when the delay is over (F14). There is no
// copy. The broker's delivery count takes the place of the header that counts the failures. The
// count also rises when a process or a connection ends, so a reject that was not written counts
// and waits like a written one.

// mostRejects bounds the delivery count that rejects may reach. Beyond it a copy begins a new
// count. It is half of the broker's default delivery limit, which is the limit again at once when a
// policy that raised it is removed: then the broker must drop no message that was only rejected.
const mostRejects = audit.DefaultDeliveryLimit / 2

// rejects reports whether rejects hold messages in their queue.
func (w *Waits) rejects() bool { return w.Rejected != nil }

// held returns how long the queue holds a rejected message with a delivery count. It is nil where
// no consumer rejects messages: then the count tells of processes that ended, and of no failures.
func (c *Channel) held(w *Waits) func(count int) time.Duration {
	if w.rejects() {
		return w.Rejected
	}
	return c.Rejected
}

// copied returns how long a message waits that asks for a delay and is not rejected.
func (w *Waits) copied(asked time.Duration) time.Duration {
	if w.Copied == nil {
		return w.Given(asked)
	}
	return w.Copied(asked)
}

// mostRejected returns the delivery count that rejects must not reach, under a delivery limit. At
// half of the limit the crash guard takes a message for endangered.
func mostRejected(limit int) int64 { return int64(min(mostRejects, limit/2)) }

// rejectCount is the delivery count of a message, as RabbitMQ 4.3 counts. A producer or a shovel
// may have left the count of another queue in the headers. The broker replaces it only by a count
// above zero, but it always writes how often the message was acquired, which is never less (F14).
func rejectCount(raw *amqp.Delivery) int64 {
	count := DeliveryCount(raw)
	acquired, known := audit.WholeNumber(raw.Headers["x-acquired-count"])
	if !raw.Redelivered || known && count > acquired {
		return 0
	}
	return count
}

// countRejects adds the broker's delivery count to the state: the headers do not have it. Another
// consumer may have rejected the message, with topology.Native during a rollout. The broker knows
// no times, so the ages are the sums of the delays. A message between two rounds of its wait has
// not failed: its count tells of processes that ended before the next round began.
func (d *delivery) countRejects() {
	held := d.on.held(&d.sub.cfg.Waits)
	if held == nil || rejectCount(&d.raw) == 0 || d.remaining() > 0 {
		return
	}
	count := int(min(rejectCount(&d.raw), header.MaxFailures))
	waited := time.Duration(0)
	for n := range min(count, mostRejects) {
		waited += held(n + 1)
	}
	s := &d.State
	s.Failures = min(s.Failures+count, header.MaxFailures)
	s.Delay, s.Snoozed = held(count), 0
	s.Error, s.Class = "", "" // of the last attempt before these
	s.NotBefore, s.WaitingSince = time.Time{}, time.Time{}
	if s.FirstSeen.IsZero() {
		s.FirstSeen = d.Arrived.Add(-waited)
	}
	if s.FirstFailure.IsZero() {
		s.FirstFailure = d.Arrived.Add(-waited)
	}
}

// heldFor returns how long the queue holds the delivery if it is rejected, and 0 if it cannot be
// rejected. A message without an id is not rejected: it could come back at once again and again
// without being noticed.
func (d *delivery) heldFor() time.Duration {
	w := &d.sub.cfg.Waits
	if !w.rejects() || d.on.holdsNone.Load() || d.State.Interruptions > 0 ||
		d.raw.Expiration != "" || d.id == "" {
		return 0
	}
	next := rejectCount(&d.raw) + 1
	if next >= mostRejected(d.on.Deliveries) {
		return 0
	}
	return w.Rejected(int(next))
}

// givenHere is Given for a delivery that may be rejected. It does not see that its message will be
// snoozed, or that the handler changes kept metadata: then the wait may be longer, in rounds.
func (d *delivery) givenHere(asked time.Duration) time.Duration {
	if asked > 0 && d.heldFor() == asked {
		return asked
	}
	return d.sub.cfg.Waits.copied(asked)
}

// reject decides that the delivery is rejected in place of acked, if the queue then holds the
// message for exactly the delay of this failure, and no header of the message must change.
func (d *delivery) reject(delay time.Duration, state *header.RetryState) bool {
	if state.Failures != d.State.Failures+1 || state.Inner != d.State.Inner ||
		delay == 0 || d.heldFor() != delay {
		return false
	}
	for key, value := range state.Metadata {
		if d.changes(key, value) {
			return false
		}
	}
	if !d.life.know(kept) {
		return false
	}
	d.sub.lastRejects.add(pastReject{d.id, rejectCount(&d.raw) + 1, time.Now()}, delay)
	d.republished, d.died = middleware.Republished{Delay: delay}, nil
	return true
}

// changes reports whether kept metadata differ from the header that arrived. A header that a
// handler only read keeps its type.
func (d *delivery) changes(key, value string) bool {
	arrived, ok := d.raw.Headers[key]
	return ok && wire.Text(arrived) != value || !ok && value != ""
}

// reject rejects a delivery, so that its message waits in its queue.
func (c *Channel) reject(tag uint64) (err error) {
	c.conn.Together(func() { err = c.ch.Reject(tag, true) })
	c.acks.nacked(tag)
	return err
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

// noteEarly ends the rejects of its consumer if the message has come back in less than half of the
// time that the queue must hold it. From then on copies wait. The next consumer asks the broker
// again how long the queue holds messages.
func (d *delivery) noteEarly() {
	w, count := &d.sub.cfg.Waits, rejectCount(&d.raw)
	if !w.rejects() || count == 0 || d.id == "" || d.on.holdsNone.Load() {
		return
	}
	r, ok := d.sub.lastRejects.soonest(d.id, count)
	if !ok {
		return
	}
	ago, held := d.Arrived.Sub(r.at), w.Rejected(int(r.count))
	if ago >= held/2 || d.on.holdsNone.Swap(true) {
		return
	}
	d.sub.logger.Error("The queue does not hold rejected messages any more: from now on failed "+
		"messages wait in wait queues, until this process connects again; set x-delayed-retry-type, "+
		"-min and -max, or the policy, as topology.Native needs it", errNotHeld,
		d.LogFields().Add(watermill.LogFields{"held": ago, "expected": held}))
}

// judgeRejected is judge for a queue whose delivery count is mostly failures.
func judgeRejected(raw *amqp.Delivery, limit int) verdict {
	if count := rejectCount(raw); count > 0 && count >= mostRejected(limit) {
		return endangered
	}
	return innocent
}
