package middlewaretest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/internal/attached"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// MaxAttempts is the number of deliveries, snoozed ones too, after which Run leaves a
// message in the wait queue, because a policy may have no end.
const MaxAttempts = 250

// Outcome says how a Run ended for its message.
type Outcome string

// The outcomes of a Run.
const (
	// Handled: the handler succeeded and the message is acked.
	Handled Outcome = "handled"
	// DeadLettered: the message is in the dead-letter queue.
	DeadLettered Outcome = "dead-lettered"
	// Nacked: an error reached the router. On a broker the message would be handled
	// again, and no attempt is counted.
	Nacked Outcome = "nacked"
	// Waiting: the message was still retried or snoozed after MaxAttempts deliveries.
	Waiting Outcome = "waiting"
)

// Result is the result of a Run.
type Result struct {
	Outcome Outcome
	// Attempts counts the deliveries of the message that were attempts. A delivery
	// that was snoozed, or dead-lettered without being handled, is none.
	Attempts int
	// Delays are the delays that the middleware asked for after failures.
	Delays []time.Duration
	// Snoozes are the delays that middleware.Snooze asked for.
	Snoozes []time.Duration
	// Given are the real waits for Delays and Snoozes, in the order in which they
	// passed: see Broker.Given.
	Given []time.Duration
	// State travelled with the message last: the state of the dead letter, with
	// Reason, or of the last retry. It is zero if there was none.
	State header.RetryState
	// Produced are the messages that the handler returned. Empty unless Handled.
	Produced []*message.Message
	// Err is the error that the router would get. It is nil unless Nacked, or unless
	// the handler failed after it acked the message itself.
	Err error
}

// Elapsed returns the sum of all real waits.
func (r Result) Elapsed() time.Duration {
	var sum time.Duration
	for _, d := range r.Given {
		sum += d
	}
	return sum
}

// String returns one line, for example "dead-lettered (exhausted) after 3 attempts,
// delays 1s 10s, snoozed 1m0s". If the wait queues gave other delays, ", given"
// lists all of them.
func (r Result) String() string {
	var s strings.Builder
	s.WriteString(string(r.Outcome))
	if r.Outcome == DeadLettered {
		fmt.Fprintf(&s, " (%s)", r.State.Reason)
	}
	fmt.Fprintf(&s, " after %d attempt", r.Attempts)
	if r.Attempts != 1 {
		s.WriteByte('s')
	}
	write := func(title string, delays []time.Duration) {
		if len(delays) > 0 {
			fmt.Fprintf(&s, ", %s %s", title, strings.Trim(fmt.Sprint(delays), "[]"))
		}
	}
	write("delays", r.Delays)
	write("snoozed", r.Snoozes)
	asked := slices.Sorted(slices.Values(slices.Concat(r.Delays, r.Snoozes)))
	if !slices.Equal(asked, slices.Sorted(slices.Values(r.Given))) {
		write("given", r.Given)
	}
	if r.Err != nil {
		fmt.Fprintf(&s, ": %v", r.Err)
	}
	return s.String()
}

// NewMessage returns a message with a new UUID as a Subscriber delivers it: with a
// copy of the delivery attached, and its state in the metadata. A delivery without
// State.Failures is attempt 1; with State.FirstSeen it was snoozed before. Without
// Arrived it arrives now.
func NewMessage(delivery middleware.Delivery, payload message.Payload) *message.Message {
	msg := message.NewMessage(watermill.NewUUID(), payload)
	attach(context.Background(), msg, delivery)
	return msg
}

// Consumer adapts a handler of Router.AddConsumerHandler to Middleware.
func Consumer(handle message.NoPublishHandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) { return nil, handle(msg) }
}

// Run delivers msg to h, which is a handler inside the middleware under test. It
// delivers msg again after each delay, until the message is handled, dead-lettered
// or nacked. Delays pass at once; Broker.Given decides how long they are.
//
// A message that comes back is a new one. It has the context that msg has now, and
// the payload and metadata that msg had at first, except metadata that is kept (see
// middleware.WithKeptMetadata). A message without a Delivery, because NewMessage did
// not make it, has an empty queue name.
//
// Like the router, Run nacks on an error and acks otherwise. Unlike the router, it
// does not recover from panics.
func (b *Broker) Run(h message.HandlerFunc, msg *message.Message) Result {
	ctx, sent := msg.Context(), msg.Copy()
	sent.Payload = slices.Clone(sent.Payload)
	if d := attached.Of(ctx, msg); d != nil && d.Given == nil {
		d.Given = b.given
	}
	var result Result
	for deliveries := 1; ; deliveries++ {
		delivery := middleware.Delivery{Given: b.given}
		if d := attached.Of(msg.Context(), msg); d != nil {
			delivery = middleware.Delivery(d.Facts)
		}
		produced, call, err := b.deliver(h, msg)
		// Every attempt that is settled has an entry in the history.
		if call == nil || len(call.State.History) > len(delivery.State.History) {
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
			result.Outcome, result.State = DeadLettered, call.State
			return result
		}
		result.State, result.Given = call.State, append(result.Given, call.Given)
		if call.Snoozed {
			result.Snoozes = append(result.Snoozes, call.Delay)
		} else {
			result.Delays = append(result.Delays, call.Delay)
		}
		if deliveries == MaxAttempts {
			result.Outcome = Waiting
			return result
		}
		passed := call.Given
		if b.Sleep != nil {
			b.Sleep(passed)
			passed = 0
		}
		msg = redelivered(ctx, sent, delivery, call, passed)
	}
}

// deliver calls h once and settles msg as the router does. It returns the confirmed
// call that took msg over, if there was one.
func (b *Broker) deliver(
	h message.HandlerFunc, msg *message.Message,
) ([]*message.Message, *Call, error) {
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

// attach attaches delivery to msg, which gets ctx.
func attach(ctx context.Context, msg *message.Message, delivery middleware.Delivery) {
	if delivery.Arrived.IsZero() {
		delivery.Arrived = time.Now()
	}
	if delivery.State.HasWaited() {
		for key, value := range delivery.State.Headers(delivery.Queue) {
			msg.Metadata.Set(key, value)
		}
	}
	msg.SetContext(ctx)
	(&attached.Delivery{Facts: attached.Facts(delivery)}).Attach(msg)
}

// redelivered returns the message as it comes back after a call. The state passes
// through headers, as it does on the wire. Its times are set back by passed, so
// that to the middleware the delay seems to have passed. Kept metadata is written
// into sent, the message as it arrived, because a broker sends this one on.
func redelivered(
	ctx context.Context, sent *message.Message, old middleware.Delivery, call *Call,
	passed time.Duration,
) *message.Message {
	headers := setBack(call.State, passed).Headers(old.Queue)
	for key, value := range call.State.Metadata {
		sent.Metadata.Set(key, value)
	}
	msg := sent.Copy()
	msg.Payload = slices.Clone(sent.Payload)
	for key := range msg.Metadata {
		if keys.IsLive(key) {
			delete(msg.Metadata, key)
		}
	}
	old.Arrived = time.Time{}
	old.State = header.Parse(old.Queue, func(key string) (string, bool) {
		value, ok := headers[key]
		return value, ok
	})
	attach(ctx, msg, old)
	return msg
}

// setBack returns the state with every time earlier by d.
func setBack(n header.RetryState, d time.Duration) header.RetryState {
	for _, t := range []*time.Time{
		&n.FirstSeen, &n.FirstFailure, &n.NotBefore, &n.Deadline, &n.WaitingSince,
	} {
		if !t.IsZero() {
			*t = t.Add(-d)
		}
	}
	n.History = slices.Clone(n.History)
	for i := range n.History {
		n.History[i].At = n.History[i].At.Add(-d)
	}
	return n
}
