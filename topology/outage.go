package topology

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
)

const (
	// checkPause is between two looks at whether messages can be stored again.
	checkPause = 5 * time.Second
	// quietProbe is how long a probe must go on without a failure before the queue
	// is consumed as usual, where no hand-over has succeeded either.
	quietProbe = time.Minute
	// firstProbePause is before the second probe; it doubles up to maxProbePause.
	firstProbePause = time.Minute
	maxProbePause   = 30 * time.Minute
	// lastProbePause is before a probe that may cost a message its last delivery.
	lastProbePause = 24 * time.Hour
)

// WithConsumerTimeout says how long the broker lets a consumer keep a delivery:
// its consumer_timeout. While a failed message cannot be stored its delivery is
// held until shortly before that. 0 means that the broker has no such timeout.
// Not negative.
//
// Default: what the queue says by its argument x-consumer-timeout, or by a policy
// that the management API shows, and from 4.3 on Consume.Arguments; else 30 min,
// RabbitMQ's own default.
func WithConsumerTimeout(d time.Duration) SubscriberOption {
	return func(o *subscriberOptions) error {
		if d < 0 {
			return fmt.Errorf("WithConsumerTimeout: %v is negative", d)
		}
		if d == 0 {
			d = audit.MaxHold
		}
		o.consumerTimeout = d
		return nil
	}
}

// hold is how long a delivery of the queue may be held, from its arrival.
func (s *subscription) hold(f *audit.Facts) time.Duration {
	timeout := f.ConsumerTimeout(s.subscriber.opts.consumerTimeout, s.subscriber.cfg.arguments)
	if seen := time.Duration(s.timeout.Load()); seen > 0 {
		timeout = min(timeout, seen)
	}
	return audit.HoldFor(timeout, s.subscriber.client.opts.confirmTimeout)
}

// outage is a time in which failed messages cannot be stored, seen by one
// subscription. It begins when a delivery has been held for as long as the broker
// allows. Its queue is not consumed then, because every delivery that is given
// back counts against the delivery limit before RabbitMQ 4.3. Once the broker
// looks sound, one message at a time probes it.
type outage struct {
	active atomic.Bool
	said   sync.Once // how long the queue endures an outage

	mu     sync.Mutex
	probes int           // that have failed
	left   int           // the fewest deliveries that a message has left
	failed time.Time     // the last hand-over that failed
	ended  chan struct{} // closed when the outage is over
}

// begin notes that a delivery was held for as long as the broker allows, and has
// left deliveries before its limit. It reports whether the outage is new.
func (o *outage) begin(left int, probe bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.active.Swap(true) {
		o.probes, o.left, o.ended = 0, left, make(chan struct{})
		return true
	}
	if probe {
		o.probes++
	}
	o.left = min(o.left, left)
	return false
}

// end ends the outage.
func (o *outage) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.active.Swap(false) {
		close(o.ended)
	}
}

// over is closed when the outage is over, for a consumer that probes; nil for any
// other.
func (o *outage) over(probing bool) <-chan struct{} {
	if !probing {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ended
}

// wait returns when the outage is over, at the given time, or when stop or gone is
// closed.
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

// quiet ends the outage where no hand-over has failed for d.
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

// note takes the outcome of a hand-over, and returns it.
func (o *outage) note(d *delivery, err error) error {
	if err != nil {
		o.said.Do(d.sayEndurance)
		o.mu.Lock()
		o.failed = time.Now()
		o.mu.Unlock()
	} else if o.active.Load() {
		o.end()
	}
	return err
}

// left is how often the delivery may still be given back, this time not counted.
func (d *delivery) left() int {
	if !d.on.counts || d.on.limit == audit.NoLimit {
		return audit.NoLimit
	}
	return max(0, d.on.limit-int(deliveryCount(&d.raw))-1)
}

// sayEndurance says how long it must take at least until the broker drops a
// message, or dead-letters it past this library: each delivery that counts is held
// for as long as the broker allows.
func (d *delivery) sayEndurance() {
	fields := watermill.LogFields{"held_for": d.on.hold}
	if left := d.left(); left != audit.NoLimit {
		fields["delivery_count"], fields["delivery_limit"] = deliveryCount(&d.raw), d.on.limit
		fields["safe_for"] = audit.Times(left+1, d.on.hold)
	}
	d.sub.logger.Info("Failed messages cannot be stored: their deliveries are held; after that the queue is not consumed until "+
		"messages can be stored again", fields)
}

// suspend stops consuming because d was held for as long as the broker allows. It
// returns when the broker sends nothing more, so that d, which is given back next,
// does not come again at once.
func (s *subscription) suspend(d *delivery) {
	select {
	case <-d.on.cancelled:
		if !s.outage.active.Load() { // over, and another consumer goes on
			return
		}
	default:
	}
	if s.outage.begin(d.left(), d.on.probing) {
		s.logger.Error("Messages cannot be stored for longer than a delivery may be held: the queue is not consumed until that works "+
			"again, and its messages stay in it; look at the errors before this one", errCannotStore, d.LogFields())
	}
	d.on.enoughNow()
	select {
	case <-d.on.cancelled:
	case <-d.ctx.Done():
	case <-time.After(goodbyeTimeout):
	}
}

// overdue is how the broker ends the channel of a consumer that has kept a delivery
// for too long (F33).
var overdue = regexp.MustCompile(`delivery acknowledgement on channel .* timed out\. Timeout value used: (\d+) ms`)

// endedBy takes the broker's reason for ending the channel of c. Where it is the
// consumer timeout, and the timeout is shorter than the one assumed, deliveries are
// held for less time from now on. Where hand-overs were failing, it is an outage.
func (s *subscription) endedBy(c *consumer, reason *amqp.Error) {
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
	timeout := time.Duration(min(ms, audit.MaxHold.Milliseconds())) * time.Millisecond
	s.timeout.Store(int64(timeout))
	s.logger.Error("The broker has taken deliveries back after its consumer timeout: give handlers an end, and say the timeout with "+
		"topology.WithConsumerTimeout", reason, watermill.LogFields{"consumer_timeout": timeout})
	if s.outage.failedWithin(timeout) {
		s.outage.begin(audit.NoLimit, c.probing)
	}
}

// awaitHandOver waits while an outage lasts until messages look as if they could
// be stored, and reports whether that must be probed.
func (s *subscription) awaitHandOver() (probing bool) {
	began, pause := time.Now(), s.outage.pause()
	conn := s.subscriber.client.publisher.Conn()
	failed, said := false, ""
	for s.outage.active.Load() {
		err := s.canHandOver()
		// A connection that is new, or a plan that can be declared again, makes another
		// probe worth its price.
		changed := failed || s.subscriber.client.publisher.Conn() != conn
		if err == nil && (changed || time.Since(began) >= pause) {
			s.logger.Info("Consuming one message at a time, to find out whether messages can be stored again", nil)
			return true
		}
		if err != nil && err.Error() != said {
			said = err.Error()
			s.logger.Error("Messages cannot be stored yet: the queue is not consumed", err, nil)
		}
		failed = failed || err != nil
		if !sleep(s.stop, checkPause) {
			return false
		}
	}
	return false
}

// canHandOver reports what stands in the way of storing a message, as far as that
// can be told without one.
func (s *subscription) canHandOver() error {
	ctx, cancel := context.WithTimeout(s.stop, declareTimeout)
	defer cancel()
	client := s.subscriber.client
	if err := client.publisher.Healthy(); err != nil {
		return err
	}
	if client.opts.provisioned {
		return checkExists(ctx, client.publisher.Do, s.plan)
	}
	return declare(ctx, client.publisher.Do, s.plan, watermill.NopLogger{}) // said at the start
}
