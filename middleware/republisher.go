package middleware

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/millpond-go/millpond/middleware/header"
)

// Republisher hands a failed message over to the broker. topology.Client is
// one; middlewaretest has another that needs no broker.
//
// Both methods return nil only when the broker has confirmed a durable copy;
// the message they were called for may then be acked. Any error means that
// there may be a copy or none: the caller keeps the message and tries again.
// Neither changes msg. Both write the notes beside the message, and
// notes.Metadata into it where it differs from what arrived. Both are called from
// many goroutines at once. ctx has no end, so that each call must be bounded in
// time; it has the delivery that belongs to msg, see DeliveryOf, which msg's own
// context may have lost.
type Republisher interface {
	// Republish puts msg into a wait queue, from which it returns to its own
	// queue after at least delay.
	Republish(ctx context.Context, msg *message.Message, delay time.Duration, notes header.RetryState) error
	// DeadLetter puts msg into the dead-letter queue of its own queue.
	DeadLetter(ctx context.Context, msg *message.Message, notes header.RetryState) error
}

// ErrNotDelivered is returned (wrapped) by a Republisher for a message that no
// Subscriber of its own delivered, a copy for example: there is no delivery to
// republish, and trying again cannot help.
var ErrNotDelivered = errors.New("message was not delivered by this client's subscriber: " +
	"make the subscriber with the client (Client.NewSubscriber), and pass on the message itself, no copy")
