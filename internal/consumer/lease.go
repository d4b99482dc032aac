package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/millpond-go/millpond/internal/clock"
	"github.com/millpond-go/millpond/internal/order"
)

// This file has the lease of the process that leads a queue that is handled in order.

const (
	// lease is how long a process leads after it has published a token that comes back. A process
	// that was frozen, or whose broker node was cut off, begins nothing when that is over. It must be
	// shorter than any time after which the broker lets another process lead: two heartbeats, or the
	// tick of the cluster.
	lease     = 3 * time.Second
	leaseBeat = time.Second
	// lateToken is how long a token may take to come back.
	lateToken = 10 * time.Second
	// lostLead is how long a process without a lease keeps its messages. The broker does not always
	// tell a process that it has lost its queue (F53). Then it may give the main queue back to the
	// process, while the line, and with it the lead, belongs to another one.
	lostLead = 20 * time.Second
)

var errNoLease = errors.New("the lease of the queue is over: another process may lead")

// renewLease lets the process lead until then.
func (o *inOrder) renewLease(until time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !until.After(o.leased) {
		return
	}
	o.leased = until
	if o.lead != nil && o.lead.Err() == nil {
		o.lapse.Reset(time.Until(until))
		return
	}
	lead, end := context.WithCancelCause(o.lines.ctx)
	o.lead = lead
	o.lapse = time.AfterFunc(time.Until(until), func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if time.Now().Before(o.leased) {
			return // renewed meanwhile
		}
		end(errNoLease)
	})
}

// keepLead lets the messages in progress go on as long as their channels live. The process does not
// read its tokens any more.
func (o *inOrder) keepLead() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lapse != nil {
		o.lapse.Stop()
	}
}

// leads reports whether the process may begin a message.
func (o *inOrder) leads() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return time.Now().Before(o.leased)
}

// whileLeading returns ctx until the lease or the delivery ends. Otherwise a copy that waits for a
// new connection would be written behind copies that the next leader has handled.
func (o *inOrder) whileLeading(
	ctx context.Context, d *delivery,
) (leading context.Context, end func()) {
	o.mu.Lock()
	lead := o.lead
	o.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	stopLead := context.AfterFunc(lead, func() { cancel(context.Cause(lead)) })
	stopDelivery := context.AfterFunc(d.ctx, func() { cancel(context.Cause(d.ctx)) })
	return ctx, func() {
		stopLead()
		stopDelivery()
		cancel(nil)
	}
}

// beat publishes a token that keeps the lead, unless one is on its way.
func (s *Subscription) beat(o *inOrder) bool {
	if len(o.tokens) == 0 {
		return true // another process leads
	}
	if o.main != nil && o.lines.conn.Unblocked() == nil && o.overFor() > lostLead {
		s.logger.Info("The queue is given back: its lease could not be renewed, so another process may "+
			"lead it", nil)
		o.giveAllBack()
		return false
	}
	if o.crashes > 0 && !o.since.IsZero() && time.Since(o.since) >= clock.Wait(calm) {
		o.last, o.crashes = order.Note{}, 0
		s.beCareful(o, false)
	}
	for _, at := range o.mine {
		if time.Since(at) < lateToken {
			return true
		}
	}
	if o.gate != "" {
		o.mu.Lock()
		epoch := o.line.Epoch()
		o.mu.Unlock()
		return s.shut(o, epoch)
	}
	_, err := s.publishToken(o, o.epoch.Load())
	return err == nil
}

// overFor returns for how long the lease is over, since the process has begun to read its tokens.
func (o *inOrder) overFor() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return min(time.Since(o.leased), time.Since(o.reading))
}
