package topology

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

const (
	// suspicion is the broker's delivery count from which a delivery is a suspect,
	// unless a quarter of the delivery limit is less. Neither a failure nor a nack
	// of the router raises the count: a count that rises means that processes or
	// connections have ended.
	suspicion = 5
	// maxInterruptions is how often a suspect is isolated before it is given up.
	// The first time may be a precaution: see rescue.
	maxInterruptions = 4
	// putBackTimeout bounds the confirm of a message that is put back, because Close
	// waits for it.
	putBackTimeout = 5 * time.Second
)

// guard ends crash loops. A message whose handling kills the process is failed by
// no handler, so the policy does not count it, and the broker drops it at its own
// limit in the end.
//
// A suspect is isolated: it is set aside, which also resets the broker's count.
// All messages that were prefetched when the process died look alike. So one at a
// time is isolated, and the others are tried one after the other (turns). While
// the message that kills the process is away, the others are handled. When it
// comes back, it dies alone.
type guard struct {
	mu    sync.Mutex
	until time.Time // a suspect is away until then
}

// take reserves the guard for a suspect that will be away for d.
func (g *guard) take(now time.Time, d time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now.Before(g.until) {
		return false
	}
	// Once more as long, so that it is not joined by the next one at once.
	g.until = now.Add(2 * d)
	return true
}

// verdict is what the guard says about a delivery.
type verdict int

const (
	innocent   verdict = iota
	suspect            // is tried alone
	endangered         // is so near to the delivery limit that it must not wait
	culprit            // was isolated as often as is allowed
)

// judge says what the guard does with a delivery. Deliveries that the broker has
// not delivered before, and that bear no mark of the guard, cost one lookup.
func (s *subscription) judge(c *consumer, raw *amqp.Delivery) verdict {
	if _, marked := raw.Headers[header.Interruptions]; !marked && !raw.Redelivered || s.subscriber.opts.requeue {
		return innocent
	}
	notes := header.Parse(s.plan.Queue, func(key string) (string, bool) {
		text, ok := raw.Headers[key].(string)
		return text, ok
	})
	return judge(raw, notes.Interruptions, c.limit)
}

// judge is pure. Only quorum queues count deliveries; a count on a message that
// was not redelivered is the producer's own (F2).
func judge(raw *amqp.Delivery, interruptions, limit int) verdict {
	count := deliveryCount(raw)
	suspicious := int64(max(1, min(suspicion, limit/4)))
	switch {
	case !interrupted(raw) && interruptions > 0:
		return suspect
	case !interrupted(raw):
		return innocent
	case interruptions >= maxInterruptions:
		return culprit
	case count >= max(suspicious, int64(limit/2)):
		return endangered
	case interruptions > 0 || count >= suspicious:
		return suspect
	}
	return innocent
}

// interrupted reports whether someone ended while they had the delivery, or lost
// their connection.
func interrupted(raw *amqp.Delivery) bool { return raw.Redelivered && deliveryCount(raw) > 0 }

// deliveryCount is how often the broker has taken the message back from someone
// who did not give it back; 0 on a classic queue, which does not count.
func deliveryCount(raw *amqp.Delivery) int64 {
	switch n := raw.Headers["x-delivery-count"].(type) {
	case int64:
		return n
	case int32:
		return int64(n)
	}
	return 0
}

// isolated reports whether a suspect, whose turn has come, was set aside. Any
// other suspect is handed to its handler, and keeps its turn.
func (d *delivery) isolated() bool {
	if !interrupted(&d.raw) || !d.takeGuard() {
		return false
	}
	d.isolate(d.State.Interruptions + 1)
	return true
}

// rescue sets a delivery aside that is near to the delivery limit. It comes back
// with a count of zero, as a suspect: it is tried alone.
func (d *delivery) rescue() {
	interruptions := max(1, d.State.Interruptions)
	if d.takeGuard() {
		interruptions = d.State.Interruptions + 1
	}
	d.isolate(interruptions)
}

func (d *delivery) takeGuard() bool {
	route, err := d.plan().Route(Retry{Delay: minSetAside})
	return err == nil && d.sub.subscriber.client.guard.take(time.Now(), route.Delay)
}

func (d *delivery) isolate(interruptions int) {
	d.sub.logger.Info("Message was interrupted again and again, setting it aside", d.guardFields())
	notes := d.asideNotes()
	notes.Interruptions = interruptions
	d.settle("Interrupted message cannot be set aside, holding it", func(ctx context.Context) error {
		again := notes
		return d.republish(ctx, notes.Snoozed, &again)
	}, func() { d.observeSettled(middleware.EventCrashRound, notes, nil) })
}

// giveUp dead-letters a message that was isolated as often as is allowed.
func (d *delivery) giveUp() {
	err := fmt.Errorf("the process or its connection has ended each of the last %d times that a consumer had this message, "+
		"and was alone with it at least %d times", d.State.Interruptions+1, maxInterruptions-1)
	notes := d.State
	notes.Reason, notes.DeadAt = header.ReasonCrashLoop, time.Now()
	notes.Error = err.Error()
	d.sub.logger.Error("Message is interrupted each time, dead-lettering it", err, d.guardFields())
	d.settle("Message of a crash loop cannot be dead-lettered, holding it", func(ctx context.Context) error {
		return d.deadLetter(ctx, notes)
	}, func() { d.observeSettled(middleware.EventDeadLettered, notes, err) })
}

func (d *delivery) guardFields() watermill.LogFields {
	return d.LogFields().Add(watermill.LogFields{
		"delivery_count": deliveryCount(&d.raw), "interruptions": d.State.Interruptions,
	})
}

// counted reports whether giving the delivery back would count against it: its
// count has risen before, or the guard has marked its message. The first time does
// no harm, and costs no copy. A message of another queue is never set aside here.
func (d *delivery) counted() bool {
	return d.astray == nil && d.on.counts && (interrupted(&d.raw) || d.State.Interruptions > 0) &&
		!d.sub.subscriber.opts.requeue && !d.on.ch.IsClosed()
}

// putBack returns a delivery to its queue for a reason that must not count against
// its delivery limit, such as a clean shutdown, and reports whether it was set aside.
// Before RabbitMQ 4.3 each nack counts, so a delivery with a count is set aside,
// which resets the count. Where that is not confirmed in time, or the headers leave no
// room for the notes, the delivery is given back.
func (d *delivery) putBack() (aside bool) {
	if !d.counted() {
		d.giveBack()
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), putBackTimeout)
	defer cancel()
	notes := d.asideNotes()
	tried := notes
	_, _, err := d.waiting(time.Now(), notes.Snoozed, &tried)
	if err == nil {
		err = d.republish(ctx, notes.Snoozed, &notes)
	}
	if err != nil {
		d.sub.logger.Info("Message cannot be set aside at shutdown, giving it back, which counts against the delivery limit",
			d.guardFields().Add(watermill.LogFields{"error": err.Error()}))
		d.giveBack()
		return false
	}
	d.ack()
	d.observeSettled(middleware.EventSnoozed, notes, nil)
	return true
}

// abandon puts a delivery back while its handler still runs. What the handler has
// is left alone.
func (d *delivery) abandon() {
	own, end := d.sub.newDelivery(d.on, arrival{raw: d.raw, at: d.Arrived})
	defer end()
	own.putBack()
}
