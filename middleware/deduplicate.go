package middleware

import (
	"cmp"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// DeduplicationKey is the KeyFactory for Watermill's Deduplicator. That one
// remembers a key before the handler is called and swallows what has the same, so
// that with its default key, of the payload, no message is ever tried twice.
//
// This key is the same only for messages that a producer has sent twice to a
// queue: with one message id, or without that property with one UUID. Whatever
// comes again for another reason has a key of its own and is let through: it was
// retried, set aside, nacked, moved back from the dead-letter queue, or delivered
// again after an interruption, and may not have been handled yet. So may a
// message without any id.
//
// That leaves the duplicates of the hand-over and of a crash to the handler: only
// an inbox in the transaction of the handler's own work finds those. See
// examples/idempotency.
//
//	deduplicator := &wmiddleware.Deduplicator{KeyFactory: middleware.DeduplicationKey, …}
//
// The message must come from a Subscriber that sets Delivery.Redelivered;
// topology's does. It never fails.
func DeduplicationKey(msg *message.Message) (string, error) {
	d := DeliveryIn(msg.Context())
	if d == nil {
		d = &Delivery{}
	}
	id := cmp.Or(d.MessageID, msg.UUID)
	if id == "" || d.Redelivered || d.State.HasWaited() || len(d.State.History) > 0 {
		return "again " + watermill.NewUUID(), nil
	}
	return "first " + id + " " + d.Queue, nil
}
