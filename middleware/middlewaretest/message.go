package middlewaretest

import (
	"context"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// NewMessage returns a message with a new UUID as a Subscriber delivers it: with
// a copy of the delivery attached, and its notes in the metadata. A delivery
// without Notes.Failures is attempt 1; with Notes.FirstSeen as well it was set
// aside before. One without Arrived arrives now.
func NewMessage(delivery middleware.Delivery, payload message.Payload) *message.Message {
	msg := message.NewMessage(watermill.NewUUID(), payload)
	deliver(context.Background(), msg, delivery)
	return msg
}

// deliver attaches delivery to msg, which gets ctx.
func deliver(ctx context.Context, msg *message.Message, delivery middleware.Delivery) {
	if delivery.Arrived.IsZero() {
		delivery.Arrived = time.Now()
	}
	if delivery.State.Failures > 0 || !delivery.State.FirstSeen.IsZero() {
		for key, value := range delivery.State.Headers(delivery.Queue) {
			msg.Metadata.Set(key, value)
		}
	}
	msg.SetContext(ctx)
	(&middleware.Attached{Delivery: delivery}).Attach(msg)
}

// redeliver returns msg as it comes back after a delay. The notes go through the
// headers as they do on the wire, and are set back by the delay: to the
// middleware it looks as if the delay had passed. Metadata that is kept is
// written into sent, the message as it arrived, for that is what a broker sends
// on.
func redeliver(
	ctx context.Context, sent *message.Message, old middleware.Delivery, notes header.RetryState, delay time.Duration,
) *message.Message {
	kept, headers := notes.Metadata, setBack(notes, delay).Headers(old.Queue)
	notes = header.Parse(old.Queue, func(key string) (string, bool) {
		value, ok := headers[key]
		return value, ok
	})
	for key, value := range kept {
		sent.Metadata.Set(key, value)
	}
	msg := sent.Copy()
	msg.Payload = slices.Clone(sent.Payload)
	for key := range msg.Metadata {
		if header.IsLive(key) {
			delete(msg.Metadata, key)
		}
	}
	old.Arrived, old.State = time.Time{}, notes
	deliver(ctx, msg, old)
	return msg
}

// setBack returns the notes with every time earlier by d.
func setBack(n header.RetryState, d time.Duration) header.RetryState {
	for _, t := range []*time.Time{&n.FirstSeen, &n.FirstFailure, &n.NotBefore, &n.Deadline, &n.WaitingSince} {
		if !t.IsZero() {
			*t = t.Add(-d)
		}
	}
	history := make([]header.AttemptError, len(n.History))
	for i, entry := range n.History {
		entry.At = entry.At.Add(-d)
		history[i] = entry
	}
	n.History = history
	return n
}
