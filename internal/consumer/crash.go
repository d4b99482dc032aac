package consumer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/clock"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology/wait"
)

const (
	// suspicion is the broker's delivery count from which a delivery is a suspect, unless a
	// quarter of the delivery limit is less. Neither a failure nor a nack of the router
	// raises the count. A count that rises means that processes or connections have ended.
	suspicion = 5
	// unseenDanger is the count from which a delivery is endangered if a policy that cannot be
	// seen may set a smaller limit. It is not 1: before RabbitMQ 4.3 a clean stop, too, counts
	// once, and must cost no copy.
	unseenDanger = 2
	// maxInterruptions is how often a suspect is isolated before it is dead-lettered. The
	// first time may be a precaution: see rescued.
	maxInterruptions = 4
	// mostInterruptions is the same if the broker may have counted the end of a hold.
	mostInterruptions = 2 * maxInterruptions
	// putBackTimeout bounds the confirm of a message that is put back, because Close waits
	// for it.
	putBackTimeout = 5 * time.Second
)

// guard ends crash loops. If handling a message kills the process, no handler fails it: the
// policy does not count the message, and the broker drops it at the delivery limit.
//
// A suspect is isolated: it is snoozed, which also resets the broker's count. All messages
// that were prefetched when the process died look alike. So the guard isolates one at a
// time, and the others are tried one after the other (turns). While the message that kills
// the process is away, the others are handled. When it comes back, it dies alone.
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
	// Once more as long, so that the next suspect does not join it at once.
	g.until = now.Add(2 * d)
	return true
}

// verdict is the decision of the guard about a delivery.
type verdict int

const (
	innocent   verdict = iota
	suspect            // is tried alone
	endangered         // is so near to the delivery limit that it must not wait
	culprit            // was isolated as often as is allowed
)

// judge decides about a delivery. A delivery that the broker has not delivered before and
// that has no mark of the guard costs one lookup. Without an interruption a mark counts only if
// the message is back from a wait queue: a producer may write marks.
func (s *Subscription) judge(c *Channel, raw *amqp.Delivery) verdict {
	_, marked := raw.Headers[keys.Interruptions]
	switch {
	case !marked && !raw.Redelivered || s.cfg.givesStraightBack():
		return innocent
	case !marked && c.Rejected != nil:
		return judgeRejected(raw, c.Deliveries)
	case !interrupted(raw) && !s.cfg.Waits.waited(raw):
		return innocent
	}
	if s.cfg.OldInstances {
		return judgeBesideOld(raw, c.Deliveries)
	}
	state := State(s.cfg.Queue, raw)
	// Before RabbitMQ 4.3 the end of a hold counts like a crash (F34). The wait has reset the count,
	// so a hold can only have ended since then. Half of a hold allows for its last pause and for
	// the clocks of other hosts.
	held := c.NackCounts && !state.WaitingSince.IsZero() &&
		clock.Now().Sub(state.WaitingSince) >= c.hold/2
	return judge(raw, state.Interruptions, &c.Limits, held)
}

// judgeBesideOld decides beside old instances. Before RabbitMQ 4.3 their nacks count as the ends of
// processes do, so a count says only how near the delivery limit is.
func judgeBesideOld(raw *amqp.Delivery, limit int) verdict {
	if interrupted(raw) && 2*DeliveryCount(raw) >= int64(limit) {
		return endangered
	}
	return innocent
}

// judge is pure. Only quorum queues count deliveries. A count on a message that was not
// redelivered comes from the producer (F2). held says that the count may come from a hold that
// ended in an outage, and not from the end of a process.
func judge(raw *amqp.Delivery, interruptions int, limits *Limits, held bool) verdict {
	count := DeliveryCount(raw)
	suspicious := int64(max(1, min(suspicion, limits.Deliveries/4)))
	switch {
	case !interrupted(raw) && interruptions > 0:
		return suspect
	case !interrupted(raw):
		return innocent
	case interruptions >= mostInterruptions, interruptions >= maxInterruptions && !held:
		return culprit
	case count >= limits.Danger():
		return endangered
	case interruptions > 0 || count >= suspicious:
		return suspect
	}
	return innocent
}

// Danger is the delivery count from which a message must not wait in a consumer.
func (l *Limits) Danger() int64 {
	danger := int64(max(1, l.Deliveries/2))
	if l.Unseen {
		danger = min(danger, unseenDanger)
	}
	return danger
}

// interrupted reports whether a consumer of the delivery has ended or lost its connection.
func interrupted(raw *amqp.Delivery) bool { return raw.Redelivered && DeliveryCount(raw) > 0 }

// DeliveryCount is how often the broker has taken the message back from a consumer that did
// not give it back. It is 0 on a classic queue, which does not count.
func DeliveryCount(raw *amqp.Delivery) int64 {
	switch n := raw.Headers["x-delivery-count"].(type) {
	case int64:
		return n
	case int32:
		return int64(n)
	}
	return 0
}

// isolated reports whether a suspect whose turn has come was snoozed. Any other suspect goes
// to its handler and keeps its turn.
func (d *delivery) isolated() bool {
	if !interrupted(&d.raw) || !d.takeGuard() {
		return false
	}
	d.isolateOnce()
	return true
}

// isolateOnce isolates a delivery that has taken the guard.
func (d *delivery) isolateOnce() { d.isolate(d.State.Interruptions + 1) }

// rescued snoozes a delivery that is near to the delivery limit, while another one is isolated. The
// message comes back with a count of zero, as a suspect: it is tried alone.
func (d *delivery) rescued() { d.isolate(max(1, d.State.Interruptions)) }

func (d *delivery) takeGuard() bool {
	route, err := d.sub.cfg.Waits.Route(wait.Retry{Delay: MinSnooze})
	return err == nil && d.sub.cfg.Group.guard.take(time.Now(), route.Delay)
}

func (d *delivery) isolate(interruptions int) {
	d.sub.logger.Info("Processes or connections have ended repeatedly while they had the message, "+
		"snoozing it", d.guardFields())
	state := d.snoozed()
	state.Interruptions = interruptions
	d.settle("Interrupted message cannot be snoozed, holding it", func(ctx context.Context) error {
		again := state
		return d.republish(ctx, state.Snoozed, &again)
	}, func() { d.observeSettled(middleware.EventCrashRound, state, nil) })
}

// giveUp dead-letters a message that was isolated as often as is allowed.
func (d *delivery) giveUp() {
	err := fmt.Errorf("the process or its connection has ended each of the last %d times that a "+
		"consumer had this message, and at least %d of these times it had no other message; if an "+
		"instance of watermill-amqp has nacked it, use topology.WithOldInstances",
		d.State.Interruptions+1, maxInterruptions-1)
	state := d.State
	state.Reason, state.DeadAt = header.ReasonCrashLoop, clock.Now()
	state.Error = err.Error()
	d.sub.logger.Error("The process or its connection ends each time it has the message, "+
		"dead-lettering it", err, d.guardFields())
	d.settle("Message of a crash loop cannot be dead-lettered, holding it",
		func(ctx context.Context) error {
			return d.deadLetter(ctx, state)
		}, func() { d.observeSettled(middleware.EventDeadLettered, state, err) })
}

// blame settles a message of a queue that is handled in order, during whose handling the last
// process has ended.
func (d *delivery) blame() {
	if d.State.Interruptions >= maxInterruptions {
		d.giveUp()
		return
	}
	d.isolate(d.State.Interruptions + 1)
}

func (d *delivery) guardFields() watermill.LogFields {
	return d.logFields().Add(watermill.LogFields{
		"delivery_count": DeliveryCount(&d.raw), "interruptions": d.State.Interruptions,
	})
}

// counted reports whether giving the delivery back would bring its message nearer to the
// delivery limit or to the dead letters: its count has risen before, or the guard has marked
// the message. The first time does no harm and costs no copy. A message of another queue is
// never snoozed here.
func (d *delivery) counted() bool {
	return d.astray == nil && d.on.NackCounts && (interrupted(&d.raw) || d.State.Interruptions > 0) &&
		!d.sub.cfg.givesStraightBack() && !d.on.ch.IsClosed()
}

// putBack brings a delivery back to its queue for a reason that must not count against the
// delivery limit, such as a clean shutdown, and reports whether it was snoozed. Before
// RabbitMQ 4.3 each nack counts, so a delivery with a count is snoozed, which resets the
// count. If that is not confirmed in time, or if the headers of the message leave no room,
// the delivery is given back.
func (d *delivery) putBack() (snoozed bool) {
	if d.on.Together || !d.counted() {
		d.giveBack()
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), putBackTimeout)
	defer cancel()
	state := d.snoozed()
	tried := state
	_, _, err := d.waiting(clock.Now(), state.Snoozed, &tried)
	if err == nil {
		err = d.republish(ctx, state.Snoozed, &state)
	}
	if err != nil {
		d.sub.logger.Info("Message cannot be snoozed at shutdown, giving it back, which counts "+
			"against the delivery limit",
			d.guardFields().Add(watermill.LogFields{"error": err.Error()}))
		d.giveBack()
		return false
	}
	d.ackAfter(func() { d.observeSettled(middleware.EventSnoozed, state, nil) })
	return true
}

// abandon puts a delivery back while its handler still runs. It does not touch the values of
// the handler.
func (d *delivery) abandon() {
	own, end := d.sub.newDelivery(Arrival{Raw: d.raw, At: d.since, On: d.on, Step: asArrived{}})
	defer end()
	own.putBack()
}

// turnsOf returns the line of a queue. The suspects of other queues do not wait in it: slow
// handlers of one queue must not stop another.
func (g *Group) turnsOf(queue string) *turns {
	own, _ := g.turns.LoadOrStore(queue, new(turns))
	return own.(*turns)
}

// turns is the line in which the suspects of a queue wait in a process to be tried, one at a time
// and in the order of their delivery. Tried together they would end the process together, once with
// each restart, until the broker drops all of them at its limit.
type turns struct {
	mu   sync.Mutex
	line []*turn // the first has its turn
}

// turn is a place in the line.
type turn struct {
	of   *turns
	come chan struct{} // closed when all before have left
}

// join takes the last place.
func (t *turns) join() *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := &turn{of: t, come: make(chan struct{})}
	t.line = append(t.line, own)
	if len(t.line) == 1 {
		close(own.come)
	}
	return own
}

// leave gives the place up, before or after its turn has come. A second call does nothing,
// and neither does the call on nil.
func (own *turn) leave() {
	if own == nil {
		return
	}
	own.of.mu.Lock()
	defer own.of.mu.Unlock()
	i := slices.Index(own.of.line, own)
	if i < 0 {
		return
	}
	own.of.line = slices.Delete(own.of.line, i, i+1)
	if i == 0 && len(own.of.line) > 0 {
		close(own.of.line[0].come)
	}
}
