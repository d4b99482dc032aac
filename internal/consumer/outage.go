package consumer

import (
	"context"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/millpond-go/millpond/internal/audit"
	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// checkPause is between two checks whether messages can be stored again.
	checkPause = 5 * time.Second
	// quietProbe is how long a probe must go on without a failure until the queue is consumed
	// as usual, if no hand-over has succeeded meanwhile either.
	quietProbe = time.Minute
	// firstProbePause is before the second probe. It doubles up to maxProbePause.
	firstProbePause = time.Minute
	maxProbePause   = 30 * time.Minute
	// lastProbePause is before a probe that may cost a message its last delivery.
	lastProbePause = 24 * time.Hour
)

// hold returns how long a delivery of the queue may be held, from its arrival, under the
// consumer timeout of the broker.
func (s *Subscription) hold(consumerTimeout time.Duration) time.Duration {
	if seen := time.Duration(s.timeout.Load()); seen > 0 {
		consumerTimeout = min(consumerTimeout, seen)
	}
	return audit.HoldFor(consumerTimeout, s.cfg.Group.ConfirmTimeout)
}

// outage is a time in which a subscription cannot store failed messages. It begins when a
// delivery has been held for as long as the broker allows. The queue is not consumed during
// an outage, because before RabbitMQ 4.3 every delivery that is given back counts against
// the delivery limit. When the broker looks sound, one message at a time probes it.
type outage struct {
	active atomic.Bool
	begun  atomic.Uint32 // outages so far
	logged sync.Once     // how long the queue endures an outage

	mu     sync.Mutex
	probes int           // that have failed
	left   int           // the fewest deliveries that a message has left
	failed time.Time     // the last hand-over that failed
	ended  chan struct{} // closed when the outage is over
}

// begin notes that a delivery was held for as long as the broker allows, and has left
// deliveries before its limit. It reports whether the outage is new.
func (o *outage) begin(left int, probe bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.active.Load() {
		o.begun.Add(1) // before the next line, so that no earlier publish ends this outage
		o.active.Store(true)
		o.probes, o.left, o.ended = 0, left, make(chan struct{})
		return true
	}
	if probe {
		o.probes++
	}
	o.left = min(o.left, left)
	return false
}

func (o *outage) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.active.Swap(false) {
		close(o.ended)
	}
}

// over returns a channel that is closed at the end of the outage if the consumer probes. It is
// nil for other consumers.
func (o *outage) over(probing bool) <-chan struct{} {
	if !probing {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ended
}

// wait returns when the outage is over, at the given time, or when stop or gone is closed.
func (o *outage) wait(until time.Time, stop, gone <-chan struct{}) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-o.over(true):
	case <-stop:
	case <-gone:
	}
}

// quiet ends the outage if no hand-over has failed for d.
func (o *outage) quiet(d time.Duration) {
	o.mu.Lock()
	failed := o.failed
	o.mu.Unlock()
	if time.Since(failed) >= d {
		o.end()
	}
}

// failedWithin reports whether a hand-over has failed within the last d.
func (o *outage) failedWithin(d time.Duration) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.failed.IsZero() && time.Since(o.failed) < d
}

// pause is before the next probe.
func (o *outage) pause() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.left == 0:
		return lastProbePause
	case o.probes == 0:
		return 0
	}
	return min(firstProbePause<<min(o.probes-1, 10), maxProbePause)
}

// note takes the outcome of a hand-over, and returns it. A stored copy ends the outage if it was
// published since the outage began. An earlier one, whose confirm is late, does not show that
// messages can be stored now.
func (o *outage) note(d *delivery, err error) error {
	if err != nil {
		o.logged.Do(d.logEndurance)
		o.mu.Lock()
		o.failed = time.Now()
		o.mu.Unlock()
	} else if o.active.Load() && d.during == o.begun.Load() {
		o.end()
	}
	return err
}

// left is how often the delivery may still be given back, without this time.
func (d *delivery) left() int {
	if !d.on.NackCounts || d.on.Deliveries == NoLimit {
		return NoLimit
	}
	return max(0, d.on.Deliveries-int(DeliveryCount(&d.raw))-1)
}

// logEndurance logs how long it takes at least until the broker drops a message, or
// dead-letters it past this library: each delivery that counts is held for as long as the
// broker allows.
func (d *delivery) logEndurance() {
	fields := watermill.LogFields{"held_for": d.on.hold}
	if left := d.left(); left != NoLimit {
		fields["delivery_count"], fields["delivery_limit"] = DeliveryCount(&d.raw), d.on.Deliveries
		fields["safe_for"] = audit.Times(left+1, d.on.hold)
	}
	d.sub.logger.Info("Failed messages cannot be stored: their deliveries are held; after that the "+
		"queue is not consumed until messages can be stored again", fields)
}

// suspend stops consuming because d was held for as long as the broker allows. It returns
// when the broker delivers nothing more, so that d, which is given back next, does not come
// again at once.
func (s *Subscription) suspend(d *delivery) {
	select {
	case <-d.on.cancelled:
		if !s.outage.active.Load() { // over, and another consumer goes on
			return
		}
	default:
	}
	if s.outage.begin(d.left(), d.on.use == ToProbe) {
		s.logger.Error("Messages could not be stored for as long as a delivery may be held: the queue "+
			"is not consumed until they can be stored again, and its messages stay in it; look at the "+
			"errors before this line",
			errCannotStore, d.logFields())
	}
	d.on.enoughNow()
	d.awaitCancel()
}

// overdue is how the broker ends the channel of a consumer that has kept a delivery for too
// long (F33).
var overdue = regexp.MustCompile(
	`delivery acknowledgement on channel .* timed out\. Timeout value used: (\d+) ms`)

// endedBy takes the broker's reason for ending the channel of c. If the reason is the
// consumer timeout, and it is shorter than the one assumed, deliveries are held for less time
// from now on. If hand-overs were failing, it is an outage.
func (s *Subscription) endedBy(c *Channel, reason *amqp.Error) {
	if reason == nil || reason.Code != amqp.PreconditionFailed {
		return
	}
	m := overdue.FindStringSubmatch(reason.Reason)
	if m == nil {
		return
	}
	ms, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil || ms <= 0 {
		return
	}
	timeout := time.Duration(min(ms, MaxHold.Milliseconds())) * time.Millisecond
	s.timeout.Store(int64(timeout))
	s.logger.Error("The broker has taken deliveries back after its consumer timeout: bound the "+
		"time of the handlers, and name the timeout with topology.WithConsumerTimeout", reason,
		watermill.LogFields{"consumer_timeout": timeout})
	if s.outage.failedWithin(timeout) {
		s.outage.begin(NoLimit, c.use == ToProbe)
	}
}

// awaitStorage waits during an outage until messages look as if they could be stored, and
// reports whether a probe must find out.
func (s *Subscription) awaitStorage() (probing bool) {
	began, pause := time.Now(), s.outage.pause()
	publisher := s.cfg.Group.Publisher
	conn := publisher.Conn()
	failed, logged := false, ""
	for s.outage.active.Load() {
		err := s.canStore()
		// A connection that is new, or a plan that can be declared again, makes another probe
		// worth its price.
		changed := failed || publisher.Conn() != conn
		if err == nil && (changed || time.Since(began) >= pause) {
			s.logger.Info("Consuming one message at a time, to find out whether messages can be stored "+
				"again", nil)
			return true
		}
		if err != nil && err.Error() != logged {
			logged = err.Error()
			s.logger.Error("Messages cannot be stored yet: the queue is not consumed", err, nil)
		}
		failed = failed || err != nil
		if !Sleep(s.stop, checkPause) {
			return false
		}
	}
	return false
}

// canStore reports what keeps messages from being stored, as far as that can be told without
// a message.
func (s *Subscription) canStore() error {
	ctx, cancel := context.WithTimeout(s.stop, PrepareTimeout)
	defer cancel()
	if err := s.cfg.Group.Publisher.Healthy(); err != nil {
		return err
	}
	return s.cfg.CanStore(ctx)
}
