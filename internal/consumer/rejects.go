package consumer

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

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
// count, so that a message whose count rises further is a suspect of the crash guard.
const mostRejects = 50

// rejects reports whether rejects hold messages in their queue.
func (w *Waits) rejects() bool { return w.Rejected != nil }

// mostRejected returns the delivery count that rejects must not reach, under a delivery limit. At
// half of the limit the crash guard takes a message for endangered.
func mostRejected(limit int) int64 { return int64(min(mostRejects, limit/2)) }

// countRejects adds the broker's delivery count to the state: the headers do not have it. The
// broker knows no times, so the ages are the sums of the delays.
func (d *delivery) countRejects() {
	w := &d.sub.cfg.Waits
	if !w.rejects() || !interrupted(&d.raw) {
		return
	}
	count := int(min(deliveryCount(&d.raw), header.MaxFailures))
	waited := time.Duration(0)
	for n := range min(count, mostRejects) {
		waited += w.Rejected(n + 1)
	}
	s := &d.State
	s.Failures = min(s.Failures+count, header.MaxFailures)
	s.Delay, s.Snoozed = w.Rejected(count), 0
	s.NotBefore, s.WaitingSince = time.Time{}, time.Time{}
	if s.FirstSeen.IsZero() {
		s.FirstSeen = d.Arrived.Add(-waited)
	}
	if s.FirstFailure.IsZero() {
		s.FirstFailure = d.Arrived.Add(-waited)
	}
}

// reject decides that the delivery is rejected in place of acked, if the queue then holds the
// message for exactly the delay of this failure, and no header of the message must change.
func (d *delivery) reject(delay time.Duration, state *header.RetryState) bool {
	w := &d.sub.cfg.Waits
	d.rejected = false
	if !w.rejects() || state.Failures <= d.State.Failures || state.Inner != d.State.Inner ||
		d.State.Interruptions > 0 || d.raw.Expiration != "" {
		return false
	}
	next := int64(1)
	if d.raw.Redelivered {
		next += deliveryCount(&d.raw)
	}
	if next >= mostRejected(d.on.Deliveries) || w.Rejected(int(next)) != delay {
		return false
	}
	for key, value := range state.Metadata {
		if d.changes(key, value) {
			return false
		}
	}
	d.rejected = true
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
func (c *consumer) reject(tag uint64) (err error) {
	c.conn.Together(func() { err = c.ch.Reject(tag, true) })
	c.acks.nacked(tag)
	return err
}

// judgeRejected is judge for a queue whose delivery count is mostly failures.
func judgeRejected(raw *amqp.Delivery, limit int) verdict {
	if deliveryCount(raw) >= mostRejected(limit) {
		return endangered
	}
	return innocent
}
