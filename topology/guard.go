package topology

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/middleware"
)

const (
	// suspicion is the broker's delivery count from which a delivery is a suspect,
	// unless a quarter of its queue's limit is less. A nack of the router never
	// counts, for it is none of the broker's: a count that rises means that
	// processes or connections have ended.
	suspicion = 5
	// maxInterruptions is how often a suspect is set aside before it is given up.
	maxInterruptions = 3
	// defaultDeliveryLimit is that of a quorum queue from RabbitMQ 4.0 on (F2).
	defaultDeliveryLimit = 20
)

// guard ends crash loops: a message whose handling kills the process is never
// failed by anyone, so the policy does not count it, and in the end the broker
// would drop it at its own limit.
//
// A suspect is set aside, which also resets the broker's count. All that was
// prefetched when the process died looks alike, so only one at a time is set
// aside and the others are tried, one after the other (turns): once the culprit is
// the one that is away they are handled, and it stands alone when it comes back.
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
	innocent verdict = iota
	suspect
	culprit
)

// judge is pure. Only quorum queues count deliveries; a count on a message that
// was not redelivered is the producer's own (F2).
func judge(raw *amqp.Delivery, interruptions, limit int) verdict {
	count := deliveryCount(raw)
	switch {
	case !interrupted(raw):
		return innocent
	case interruptions >= maxInterruptions:
		return culprit
	case interruptions > 0 || count >= int64(max(1, min(suspicion, limit/4))):
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

// limitOf returns the delivery limit in the arguments of the user's queue.
func limitOf(args amqp.Table) int {
	switch n := args["x-delivery-limit"].(type) {
	case int:
		return positiveOr(int64(n))
	case int32:
		return positiveOr(int64(n))
	case int64:
		return positiveOr(n)
	}
	return defaultDeliveryLimit
}

// positiveOr: a negative limit is none.
func positiveOr(n int64) int {
	if n < 0 || n > 1<<30 {
		return 1 << 30
	}
	return int(n)
}

// turnFor returns a place in the line of suspects if the delivery may be one,
// else nil. The order of the calls is that of the line.
func (s *subscription) turnFor(raw *amqp.Delivery) *turn {
	if s.subscriber.opts.requeue || !interrupted(raw) {
		return nil
	}
	return s.subscriber.client.turns.join()
}

// guarded reports whether the guard has dealt with the delivery: set aside, given
// up, or given back before its turn has come. A suspect that it leaves to the
// handler keeps its turn.
func (d *delivery) guarded(turn *turn) bool {
	sub := d.sub.subscriber
	if turn == nil {
		return false
	}
	verdict := judge(&d.raw, d.Notes.Interruptions, limitOf(sub.cfg.queueArgs))
	if verdict == innocent {
		turn.leave()
		return false
	}
	select {
	case <-turn.come:
	case <-d.ctx.Done():
		return true // stale: the broker has it back
	case <-d.Closing:
		d.giveBack()
		return true
	}
	fields := d.LogFields().Add(watermill.LogFields{
		"delivery_count": deliveryCount(&d.raw), "interruptions": d.Notes.Interruptions,
	})
	notes := d.Notes
	if verdict == culprit {
		notes.Reason, notes.DeadAt = middleware.ReasonCrashLoop, time.Now()
		err := fmt.Errorf("the process ended %d times and more while it had this message", d.Notes.Interruptions+1)
		notes.Error = err.Error()
		d.sub.logger.Error("Message keeps killing the process, dead-lettering it", err, fields)
		d.settle("Message of a crash loop cannot be dead-lettered, holding it", func(ctx context.Context) error {
			return d.deadLetter(ctx, notes)
		}, func() { d.observeSettled(middleware.EventDeadLettered, notes, err) })
		return true
	}
	route, err := d.plan().Route(Retry{Delay: minSetAside})
	if err != nil || !sub.client.guard.take(time.Now(), route.Delay) {
		return false // tried
	}
	d.sub.logger.Info("Message may have killed the process, setting it aside", fields)
	notes = d.asideNotes()
	notes.Interruptions++
	d.settle("Suspect cannot be set aside, holding it", func(ctx context.Context) error {
		again := notes
		return d.republish(ctx, minSetAside, &again)
	}, func() { d.observeSettled(middleware.EventCrashRound, notes, nil) })
	return true
}
