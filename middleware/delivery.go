package middleware

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/internal/attached"
	"github.com/millpond-go/millpond/middleware/header"
)

// Delivery describes the delivery behind a message. The Subscriber makes it. Of a message of
// another Pub/Sub the middleware makes one from the metadata.
type Delivery struct {
	// Queue is the AMQP queue that the message was consumed from.
	Queue string
	// Handler and Topic name the handler and its topic where no router does, as in tests. A router's
	// names come first.
	Handler, Topic string
	// MessageID and CorrelationID are the properties of that name, for log lines and
	// events. They are empty if the delivery has none.
	MessageID, CorrelationID string
	// Arrived is when this process received the delivery.
	Arrived time.Time
	// HoldUntil is when the last try to hand the message over may begin, because the
	// broker takes the delivery back soon after that. Zero means 25 minutes after Arrived.
	HoldUntil time.Time
	// State is the retry state that the message came with. At attempt 1 it holds no
	// failure. The Subscriber adds the origin and, if the message expires, the deadline.
	State header.RetryState
	// Gone is closed when the delivery is stale: its channel is closed, or the broker has
	// the message back. A copy that is published later is a duplicate. Nil means never.
	Gone <-chan struct{}
	// Closing is closed when the Subscriber begins to shut down. Nil means never.
	Closing <-chan struct{}
	// Redelivered says that the broker delivered the message before and got it back
	// without an ack. See DeduplicationKey.
	Redelivered bool
	// Probe says that the Subscriber has stopped consuming because of a Budget with Brake, and
	// that this message finds out whether the downstream works.
	Probe bool
	// Given returns how long a message waits if it asks for a delay: never shorter, and
	// longer if no wait queue has exactly that delay. The limits on age, expiration and
	// Snooze count this time. Many goroutines call Given at once. Nil means that a message
	// waits exactly as long as it asks.
	Given func(asked time.Duration) time.Duration
}

// givenBy returns how long a message waits that asks for a delay; given may be nil.
func givenBy(given func(time.Duration) time.Duration, asked time.Duration) time.Duration {
	if given == nil {
		return asked
	}
	return max(given(asked), asked)
}

// DeliveryOf returns the delivery of the message whose context is ctx, or of the message from whose
// context ctx was made. It reports false if there is none, as before the middleware of a message of
// another Pub/Sub. The caller owns the Delivery, but only reads State.History.
func DeliveryOf(ctx context.Context) (d Delivery, ok bool) {
	a := attached.Of(ctx, nil)
	if a == nil {
		return d, false
	}
	return Delivery(a.Facts), true
}

// eventOf returns an event with everything that the delivery knows.
func eventOf(
	ctx context.Context, d *attached.Delivery, kind EventKind, at time.Time, ids attached.IDs,
) Event {
	where, attempt, times := d.Place(ctx), d.Attempt(), d.Times(at)
	return Event{
		Kind: kind, At: at,
		Handler: where.Handler, Queue: where.Queue, Topic: where.Topic,
		Attempt: attempt, Failures: attempt - 1, Interruptions: d.State.Interruptions,
		MessageID: ids.Message, MessageUUID: ids.UUID, CorrelationID: ids.Correlation,
		Age: times.Age, LastDelay: times.LastDelay, DelayMeasured: times.DelayMeasured,
	}
}

func isAcked(msg *message.Message) bool { return isClosed(msg.Acked()) }

func isNacked(msg *message.Message) bool { return isClosed(msg.Nacked()) }

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}
