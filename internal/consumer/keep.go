package consumer

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// This file has the seam "who keeps": without a room there, a copy keeps each failed message. It
// also has the delivery counts of queues that hold rejected messages.

// Keeper lets a queue keep failed messages itself, without a copy: their deliveries are rejected.
type Keeper interface {
	// Given returns how long a message waits that asks for a delay; others is the same for a copy.
	Given(k *Kept, others func(time.Duration) time.Duration) func(asked time.Duration) time.Duration
	// Holds returns how long the queue holds the message if it is rejected; 0 if it may not be.
	Holds(k *Kept) time.Duration
	// Rejected notes that the message is rejected, and Came that one with an id has come.
	Rejected(k *Kept, held time.Duration)
	Came(k *Kept)
}

// Kept is what a Keeper is told of a delivery. Nothing in it changes but for the ID.
type Kept struct {
	ID       string // of the message; "" before it is known
	Raw      *amqp.Delivery
	On       *Channel
	Arrived  time.Time
	Isolated bool // by the crash guard
}

// copies is the Keeper of a queue that keeps nothing.
type copies struct{}

func (copies) Holds(*Kept) time.Duration     { return 0 }
func (copies) Rejected(*Kept, time.Duration) {}
func (copies) Came(*Kept)                    {}
func (copies) Given(
	_ *Kept, others func(time.Duration) time.Duration,
) func(time.Duration) time.Duration {
	return others
}

// keepInQueue notes that the queue keeps the message, if it then holds it for exactly the delay of
// this failure and no header must change. ack rejects the delivery then.
func (d *delivery) keepInQueue(delay time.Duration, state *header.RetryState) bool {
	keeper := d.sub.cfg.Keeper
	if delay == 0 || keeper.Holds(&d.kept) != delay ||
		state.Failures != d.State.Failures+1 || state.Inner != d.State.Inner {
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
	keeper.Rejected(&d.kept, delay)
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

// mostRejects bounds the delivery count that rejects may reach. Beyond it a copy begins a new
// count. It is half of the broker's default delivery limit, which is the limit again at once when a
// policy that raised it is removed: then the broker must drop no message that was only rejected.
const mostRejects = audit.DefaultDeliveryLimit / 2

// MostRejected returns the delivery count that rejects must not reach, under a delivery limit. At
// half of the limit the crash guard takes a message for endangered.
func MostRejected(limit int) int64 { return int64(min(mostRejects, limit/2)) }

// RejectCount is the delivery count of a message, as RabbitMQ 4.3 counts. A producer or a shovel
// may have left the count of another queue in the headers. The broker replaces it only by a count
// above zero, but it always writes how often the message was acquired, which is never less (F14).
func RejectCount(raw *amqp.Delivery) int64 {
	count := DeliveryCount(raw)
	acquired, known := audit.WholeNumber(raw.Headers["x-acquired-count"])
	if !raw.Redelivered || known && count > acquired {
		return 0
	}
	return count
}

// countRejects adds the broker's delivery count to the state: the headers do not have it. Another
// consumer may have rejected the message, with native.Strategy during a rollout. The broker knows
// no times, so the ages are the sums of the delays. A message between two rounds of its wait has
// not failed: its count tells of processes that ended before the next round began.
func (d *delivery) countRejects() {
	held := d.on.Rejected
	if held == nil || RejectCount(&d.raw) == 0 || d.remaining() > 0 {
		return
	}
	count := int(min(RejectCount(&d.raw), keys.MaxFailures))
	waited := time.Duration(0)
	for n := range min(count, mostRejects) {
		waited += held(n + 1)
	}
	s := &d.State
	s.Failures = min(s.Failures+count, keys.MaxFailures)
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

// judgeRejected is judge for a queue whose delivery count is mostly failures.
func judgeRejected(raw *amqp.Delivery, limit int) verdict {
	if count := RejectCount(raw); count > 0 && count >= MostRejected(limit) {
		return endangered
	}
	return innocent
}
