package inorder

import (
	"context"
	"errors"
	"time"

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
func (l *lane) renewLease(until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !until.After(l.leased) {
		return
	}
	l.leased = until
	if l.leading != nil && l.leading.Err() == nil {
		l.lapse.Reset(time.Until(until))
		return
	}
	lead, end := context.WithCancelCause(l.ctx)
	l.leading = lead
	l.lapse = time.AfterFunc(time.Until(until), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if time.Now().Before(l.leased) {
			return // renewed meanwhile
		}
		end(errNoLease)
	})
}

// keepLead lets the messages in progress go on as long as their channels live. The process does not
// read its tokens any more.
func (l *lane) keepLead() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lapse != nil {
		l.lapse.Stop()
	}
}

// leads reports whether the process may begin a message.
func (l *lane) leads() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Before(l.leased)
}

// While implements consumer.Step: it returns ctx until the lease or the delivery ends. Otherwise a
// copy that waits for a new connection would be written behind copies that the next leader has
// handled.
func (t *step) While(ctx, gone context.Context) (while context.Context, end func()) {
	l := t.lane
	l.mu.Lock()
	lead := l.leading
	l.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	stopLead := context.AfterFunc(lead, func() { cancel(context.Cause(lead)) })
	stopDelivery := context.AfterFunc(gone, func() { cancel(context.Cause(gone)) })
	return ctx, func() {
		stopLead()
		stopDelivery()
		cancel(nil)
	}
}

// beat publishes a token that keeps the lead, unless one is on its way.
func (l *lane) beat() bool {
	if len(l.tokens) == 0 {
		return true // another process leads
	}
	if l.main != nil && l.lines.Conn().Unblocked() == nil && l.overFor() > lostLead {
		l.logger.Info("The queue is given back: its lease could not be renewed, so another process may "+
			"lead it", nil)
		l.GiveBack()
		return false
	}
	if l.crashes > 0 && !l.since.IsZero() && time.Since(l.since) >= calm {
		l.last, l.crashes = order.Note{}, 0
		l.beCareful(false)
	}
	for _, at := range l.mine {
		if time.Since(at) < lateToken {
			return true
		}
	}
	if l.barrier != "" {
		l.mu.Lock()
		epoch := l.line.Epoch()
		l.mu.Unlock()
		return l.raiseBarrier(epoch)
	}
	_, err := l.publishToken(l.epoch.Load())
	return err == nil
}

// overFor returns for how long the lease is over, since the process has begun to read its tokens.
func (l *lane) overFor() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return min(time.Since(l.leased), time.Since(l.reading))
}
