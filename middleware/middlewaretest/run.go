package middlewaretest

import (
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/middleware"
)

// MaxAttempts is how often Run delivers a message, set aside or not, before it
// leaves it in the wait queue: a policy may be without an end.
const MaxAttempts = 250

// Consumer makes a handler for Router.AddConsumerHandler one that Middleware
// takes.
func Consumer(handle message.NoPublishHandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) { return nil, handle(msg) }
}

// Run delivers msg to h, which is a handler inside the middleware under test,
// and delivers it again after each delay, until it is handled, dead-lettered or
// nacked. Delays pass at once. A message that comes back is a new one with the
// payload and metadata that msg had at first, but for metadata that is kept (see
// middleware.WithKeptMetadata), and the context that msg has now.
// A message without a Delivery, one that NewMessage did not make, has an empty
// queue name.
//
// Like the router, Run nacks on an error and acks otherwise. Unlike the router,
// it does not recover from panics.
func (b *Broker) Run(h message.HandlerFunc, msg *message.Message) Result {
	ctx, sent := msg.Context(), msg.Copy()
	sent.Payload = slices.Clone(sent.Payload)
	var result Result
	for deliveries := 1; ; deliveries++ {
		delivery := middleware.Delivery{}
		if d := middleware.DeliveryOf(msg.Context(), msg); d != nil {
			delivery = d.Delivery
		}
		produced, call, err := b.deliver(h, msg)
		// Every attempt that is settled has an entry in the history.
		if call == nil || len(call.Notes.History) > len(delivery.State.History) {
			result.Attempts++
		}
		switch {
		case isNacked(msg):
			result.Outcome, result.Err = Nacked, err
			return result
		case call == nil:
			result.Outcome, result.Produced, result.Err = Handled, produced, err
			return result
		case call.Dead:
			result.Outcome, result.Notes = DeadLettered, call.Notes
			return result
		}
		result.Notes = call.Notes
		if call.SetAside {
			result.SetAside = append(result.SetAside, call.Delay)
		} else {
			result.Delays = append(result.Delays, call.Delay)
		}
		if deliveries == MaxAttempts {
			result.Outcome = Waiting
			return result
		}
		msg = redeliver(ctx, sent, delivery, call.Notes, call.Delay)
	}
}

// deliver calls h once, settles msg as the router does, and returns the call
// that took msg over, if one did.
func (b *Broker) deliver(h message.HandlerFunc, msg *message.Message) ([]*message.Message, *Call, error) {
	flying := &inFlight{}
	b.track(msg, flying)
	defer b.track(msg, nil)
	produced, err := h(msg)
	if err != nil {
		msg.Nack() // without effect if the handler has acked
	} else {
		msg.Ack() // without effect if it has nacked
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return produced, flying.confirmed, err
}

func (b *Broker) track(msg *message.Message, flying *inFlight) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if flying == nil {
		delete(b.inFlight, msg)
		return
	}
	b.inFlight[msg] = flying
}

func isNacked(msg *message.Message) bool {
	select {
	case <-msg.Nacked():
		return true
	default:
		return false
	}
}
