package middleware

import (
	"context"
	"errors"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/millpond-go/millpond/internal/attached"
	"github.com/millpond-go/millpond/internal/clock"
	"github.com/millpond-go/millpond/internal/excerpt"
	"github.com/millpond-go/millpond/internal/hold"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/middleware/header"
)

// Republisher gives a failed message to the broker. topology.Client is one; the one of package
// middlewaretest needs no broker.
//
// Both methods return nil only when the broker has confirmed a durable copy, because the
// message is acked then. After an error there may be a copy or none: the caller keeps the
// message and tries again. Neither method changes msg. Both write state beside the message,
// and the values of state.Metadata into the copy. Many goroutines call both at once.
//
// ctx has no end, so each call must limit its own time. It holds the delivery of msg, which
// msg's own context may have lost; see DeliveryOf.
//
// A DelayedRetry takes the logger and the observers of a topology.Client, also of one that a struct
// embeds, unless an option names another logger.
type Republisher interface {
	// Republish puts a copy of msg into a wait queue, from which it comes back to its own
	// queue after at least delay. A delay of 0 asks for a first retry at once: the copy joins the
	// tail of its queue, or waits as shortly as possible. Only a first failure may ask so.
	Republish(
		ctx context.Context, msg *message.Message, delay time.Duration, state header.RetryState,
	) (Republished, error)
	// DeadLetter puts a copy of msg into the dead-letter queue of the queue that msg came from.
	DeadLetter(ctx context.Context, msg *message.Message, state header.RetryState) error
}

// Republished says where the copy of a republished message is. The zero value says that it
// waits as long as Delivery.Given says.
type Republished struct {
	// Delay is how long the copy waits, in all rounds together.
	Delay time.Duration
	// Reason is set if the message could only be dead-lettered.
	Reason header.Reason
}

// defaultHold stays under RabbitMQ's consumer timeout of 30 minutes, after which the broker
// closes the channel (F16).
const defaultHold = 25 * time.Minute

// handOver returns nil once the broker has confirmed a copy of the message. Until then it
// holds the message in this goroutine and tries again: an ack would lose the message, and a
// nack would bring it back at once. The error is the one for the router.
func (f *failed) handOver(o *outcome) error {
	o.state.Metadata = f.r.kept.of(f.d.Message.Metadata, func(key, why string) {
		f.logNotKept(o, key, why)
	})
	// A publish that has begun is finished, also if the context ends meanwhile.
	detached := context.WithoutCancel(f.ctx)
	tries, held := 0, time.Duration(0)
	f.d.Advance(attached.Handing)
	err := hold.Do(f.ctx, hold.Options{
		Gone:  f.d.Gone,
		Stop:  f.d.Closing,
		Until: f.holdUntil(o.now),
		Final: func(err error) bool { return errors.Is(err, ErrNotDelivered) },
		Failed: func(err error, n int, t time.Duration) {
			tries, held = n, t
			f.observeFailing(err, n, t)
		},
		Failing:   func(err error, n int, t time.Duration) { f.logHolding(o, err, n, t) },
		Recovered: func(n int, t time.Duration) { f.reportRecovered(o, n, t) },
	}, func() error {
		if o.state.Reason != "" {
			return f.r.republisher.DeadLetter(detached, f.d.Message, o.state)
		}
		republished, err := f.r.republisher.Republish(detached, f.d.Message, o.delay, o.state)
		if err == nil {
			if o.state.Reason = republished.Reason; o.state.Reason != "" {
				o.state.WaitingSince, o.state.DeadAt = time.Time{}, f.r.now().UTC()
			}
			o.given = max(o.given, republished.Delay)
		}
		return err
	})
	if err == nil {
		f.d.Advance(attached.HandedOver)
		return nil
	}
	if f.d.Adopted && errors.Is(err, ErrNotDelivered) {
		f.slowDown(err)
	} else {
		f.logNotHandedOver(o, err)
	}
	kind := ErrNotHandedOver
	if errors.Is(err, hold.ErrGone) {
		kind = ErrInterrupted
	}
	return f.reportRequeued(&unsettledError{kind: kind, cause: err, tries: tries, held: held})
}

// holdUntil returns when the last try may begin.
func (f *failed) holdUntil(now time.Time) time.Time {
	switch {
	case !f.d.HoldUntil.IsZero():
		return f.d.HoldUntil
	case !f.d.Arrived.IsZero():
		return f.d.Arrived.Add(defaultHold)
	}
	return now.Add(defaultHold)
}

// record sets the state that travels on: the state that the message brought, which it does
// not change, and this failure. text is the text of the error.
func (o *outcome) record(f failure, text string) {
	o.now, o.given = f.now, givenBy(f.given, o.delay)
	n := f.state
	n.FirstSeen = clock.NotAfter(n.FirstSeen, f.now)
	n.NotBefore = time.Time{}
	n.Interruptions = 0
	n.WaitingSince = f.now
	if o.snoozed { // everything that tells of failures is left as it was
		n.Snoozed = o.delay
		o.state = n
		return
	}
	o.class = f.mark.class
	n.Failures, n.FirstFailure = o.count, o.first
	n.Delay, n.Snoozed = o.delay, 0
	n.Inner = f.inner
	n.Error = excerpt.Of(text, keys.MaxErrorBytes)
	n.Class, n.Handler, n.Reason = f.mark.class, f.at.Handler, o.reason
	entry := header.AttemptError{
		Attempt: o.count, At: f.now, Handler: n.Handler, Class: n.Class, Reason: o.reason,
		Error: excerpt.Of(text, keys.MaxEntryErrorBytes),
	}
	if o.reason == "" {
		entry.Delay = o.delay.String()
	} else {
		n.WaitingSince, n.DeadAt = time.Time{}, f.now
	}
	n.History = append(slices.Clip(n.History), entry)
	o.state = n
}

// maxMetadataBytes is the most that kept metadata takes, keys and values of a message together.
const maxMetadataBytes = 8 << 10

// kept are the metadata keys whose values travel, in order of importance.
type kept []string

var alwaysKept = kept{wmiddleware.CorrelationIDMetadataKey}

// of returns the keys that are there, and their values; nil if there are none. leftOut is
// told of the keys that cannot be kept.
func (k kept) of(metadata message.Metadata, leftOut func(key, why string)) map[string]string {
	var found map[string]string
	left := maxMetadataBytes
	for _, key := range k {
		value, ok := metadata[key]
		if !ok {
			continue
		}
		size := len(key) + len(value)
		switch {
		case !utf8.ValidString(value):
			leftOut(key, "not UTF-8")
		case size > left:
			leftOut(key, "too long")
		default:
			if found == nil {
				found = make(map[string]string, len(k))
			}
			found[key] = value
			left -= size
		}
	}
	return found
}
