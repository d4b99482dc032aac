package middleware

import (
	"context"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
)

// How far a delivery has come, for the Subscriber, which looks on from a goroutine
// of its own.
const (
	waiting   uint32 = iota // for its first DelayedRetry
	inside                  // one, or past it
	unsettled               // DelayedRetry returned an error because it could not settle it
)

// enter notes that the delivery has entered a DelayedRetry.
func (d *Delivery) enter(ctx context.Context) {
	if atomic.LoadUint32(&d.progress) != inside { // apart, so that the rest is inlined
		d.begin(ctx)
	}
}

func (d *Delivery) begin(ctx context.Context) {
	switch atomic.LoadUint32(&d.progress) {
	case waiting:
		d.entry = ctx
		atomic.StoreUint32(&d.progress, inside)
	case unsettled: // a Watermill Retry outside
		atomic.StoreUint32(&d.progress, inside)
	}
}

// unsettled notes where err says that the delivery could not be settled, and
// returns err.
func (d *Delivery) unsettled(err error) error {
	if err != nil && isUnsettled(err, d.msg) {
		atomic.StoreUint32(&d.progress, unsettled)
	}
	return err
}

// Unsettled reports whether DelayedRetry has returned an error because it could
// not settle the message, which must not be acked then. It may be called at any
// time.
func (d *Delivery) Unsettled() bool { return atomic.LoadUint32(&d.progress) == unsettled }

// tellAgain forgets what observers were told: a Watermill Retry outside calls for
// the message once more.
func (d *Delivery) tellAgain() {
	if atomic.LoadUint32(&d.toldReturned) != 0 { // a store costs more
		atomic.StoreUint32(&d.toldReturned, 0)
	}
}

// EntryContext returns the context with which the message entered its first
// DelayedRetry; before that, the one it was attached with, nil where it was not.
// The handler may replace the context of the message, which therefore only the
// handler's goroutine may ask for. EntryContext may be called at any time.
func (d *Delivery) EntryContext() context.Context {
	if atomic.LoadUint32(&d.progress) == waiting {
		return d.ctx
	}
	return d.entry
}

// Handler returns the router's name of the handler that has the message; "" before
// the message has entered a DelayedRetry. It may be called at any time.
func (d *Delivery) Handler() string {
	if atomic.LoadUint32(&d.progress) == waiting {
		return ""
	}
	return message.HandlerNameFromCtx(d.entry)
}
