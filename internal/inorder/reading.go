package inorder

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/clock"
	"github.com/millpond-go/millpond/internal/consumer"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/order"
	"github.com/millpond-go/millpond/internal/wire"
)

// This file takes the deliveries of the line and of the main queue.

// fromLine takes a delivery of the line. It reports whether the consumer can go on.
func (l *lane) fromLine(raw amqp.Delivery) bool {
	l.lines.Arrived(&raw)
	a := consumer.Arrival{Raw: raw, At: time.Now(), On: l.lines}
	text, _ := raw.Headers[keys.Line].(string)
	note := order.ParseNote(text)
	if l.barrier == "" && len(l.tokens) == 0 && !l.raiseBarrier(0) {
		return false
	}
	switch note.Kind {
	case order.Token:
		return l.token(raw, note)
	case order.Release:
		l.whenKnown(func() { l.unblock(a, note) })
	case order.Ask:
		l.whenKnown(func() {
			l.answer(&raw)
			_ = l.ack(raw.DeliveryTag)
		})
	case order.Wait, order.Block:
		l.waits(a, note, l.due(&raw))
	}
	return true
}

// whenKnown calls f when everything in the line is known.
func (l *lane) whenKnown(f func()) {
	if l.barrier == "" {
		f()
		return
	}
	l.later = append(l.later, f)
}

// waits takes a message that waits in the line. A message whose number cannot be read goes first.
func (l *lane) waits(a consumer.Arrival, note order.Note, due time.Time) {
	_, blamed := a.Raw.Headers[keys.Interruptions]
	key, _ := a.Raw.Headers[keys.Key].(string)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.line.Returned(order.Waiting[consumer.Arrival]{
		Key: key, Seq: note.Seq, ID: note.ID, First: note.First, Due: due,
		Size: len(a.Raw.Body) + besideBody, Block: note.Kind == order.Block,
		Alone: blamed, Item: a,
	})
}

// due returns when a message of the line may be handled; zero for at once. A forged time, and the
// time of a host whose clock was ahead, is bounded as in other queues.
func (l *lane) due(raw *amqp.Delivery) (at time.Time) {
	if _, waits := raw.Headers[keys.NotBefore]; !waits {
		return at
	}
	state := consumer.State(l.cfg.Queue, raw)
	if left := consumer.Remaining(&state); left > 0 {
		at = clock.Now().Add(left)
	}
	return at
}

const (
	// promptKey is how long everything waits for a key. Most are there sooner.
	promptKey = 10 * time.Millisecond
	// lateKey is how long a key may take until that is logged.
	lateKey = 30 * time.Second
)

// fromMain takes a delivery of the main queue. The next one is not taken before its key is known.
func (l *lane) fromMain(raw amqp.Delivery) bool {
	l.main.Arrived(&raw)
	l.asked = consumer.Arrival{Raw: raw, At: time.Now(), On: l.main}
	l.key = l.keyOf(l.main.Context(), &raw)
	l.late.Reset(promptKey)
	select {
	case key := <-l.key:
		return l.keyed(key)
	case <-l.late.C:
		l.late.Reset(lateKey)
		return true
	}
}

// keyed takes the delivery of the main queue whose key was asked for.
func (l *lane) keyed(key string) bool {
	a := l.asked
	l.asked, l.key = consumer.Arrival{}, nil
	l.late.Stop()
	// Every end of a channel counts against the delivery limit. A copy has a new count.
	must := a.Raw.Redelivered && consumer.DeliveryCount(&a.Raw) >= l.main.Danger()
	l.mu.Lock()
	l.line.Arrived(key, a, a.Raw.Redelivered, must)
	epoch := l.line.Epoch()
	l.mu.Unlock()
	if l.came {
		return true
	}
	l.came = true
	return l.barrier != "" || l.raiseBarrier(epoch)
}

// keyOf gets the key of a message as it stands in headers and in answers: as text. It is "" if
// it cannot be read. Such a message is dead-lettered when it is handled. The user's functions may
// hang. A consumer after c then waits for the same call.
func (l *lane) keyOf(ctx context.Context, raw *amqp.Delivery) <-chan string {
	told := make(chan string, 1)
	go func() {
		select {
		case l.q.asking <- struct{}{}:
		case <-ctx.Done():
			return
		}
		defer close(told) // the user's functions may end the goroutine
		defer func() { <-l.q.asking }()
		told <- order.KeyText(l.askKey(raw))
	}()
	return told
}

func (l *lane) askKey(raw *amqp.Delivery) (key string) {
	defer func() {
		l.q.inKeyBy.Store(false)
		if r := recover(); r != nil {
			key = ""
			l.q.keyless.Do(func() {
				l.logger.Error("KeyBy of inorder.Strategy has panicked: the message has no key and no order",
					fmt.Errorf("panic: %v", r), watermill.LogFields{"message_id": raw.MessageId})
			})
		}
	}()
	seen := *raw
	seen.Acknowledger = nil
	seen.Headers = wire.TextHeaders(raw.Headers)
	msg, err := l.cfg.Decode(seen)
	if err != nil || msg == nil {
		return ""
	}
	l.q.inKeyBy.Store(true)
	return l.q.KeyBy(msg)
}

// logLateKey names the function that keeps the queue waiting.
func (l *lane) logLateKey() {
	if l.key == nil {
		return
	}
	function := "the marshaler"
	if l.q.inKeyBy.Load() {
		function = "KeyBy of inorder.Strategy"
	}
	held := time.Since(l.asked.At)
	l.logger.Error("A message waits for its key, and the messages behind it in the queue wait, too, "+
		"while the line goes on: make KeyBy and the marshaler wait for nothing, and start again",
		consumer.HasHad(function, held),
		watermill.LogFields{"message_id": l.asked.Raw.MessageId, "held": held})
}

// mostRenewal is the longest time until the line is read again. So a message that was purged is not
// awaited for ever.
const mostRenewal = time.Hour

// renew gives everything in the line back before the broker's consumer timeout, and reads it
// again.
func (l *lane) renew() bool {
	if l.barrier != "" || len(l.tokens) == 0 {
		return true
	}
	if l.heldTooLong() {
		return false
	}
	l.mu.Lock()
	items := l.line.Forget()
	epoch := l.line.Epoch()
	l.mu.Unlock()
	l.lines.Flush()
	for _, a := range items {
		if l.lines.GiveBack(a.Raw.DeliveryTag) != nil {
			return false
		}
	}
	return l.raiseBarrier(epoch)
}

// heldTooLong reports whether a message of the main queue waits for its handling until the broker's
// consumer timeout may take it back, which would count and repeat the messages in progress. All go
// back before, in their order, when the messages in progress have ended. RabbitMQ 4.3 has no
// timeout for a quorum queue here; see consumeArguments.
func (l *lane) heldTooLong() bool {
	if !l.lines.NackCounts && !l.lines.Classic {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for a := range l.line.Fresh {
		if time.Since(a.At) > l.lines.Hold()/2 {
			return true
		}
	}
	return false
}

// unblock takes the mark of a dead letter away.
func (l *lane) unblock(a consumer.Arrival, note order.Note) {
	key, _ := a.Raw.Headers[keys.Key].(string)
	var items []consumer.Arrival
	if l.believes(&a.Raw) {
		l.mu.Lock()
		items = l.line.Release(key, note.ID)
		l.mu.Unlock()
	} else {
		l.logDisbelief(&a.Raw, note)
	}
	for _, mark := range append(items, a) {
		_ = l.ack(mark.Raw.DeliveryTag)
	}
}

// answer tells a tool which keys have messages in the line.
func (l *lane) answer(question *amqp.Delivery) {
	replyTo := question.ReplyTo
	if !strings.HasPrefix(replyTo, l.q.Line+".") { // a queue of this library, not of a user
		return
	}
	limits := l.q.Limits
	state := order.State{
		Instance: l.q.Instance, Epoch: l.epoch.Load(), Since: l.since,
		MaxMessages: limits.Messages, MaxBytes: limits.Bytes, Unbelieved: !l.believes(question),
	}
	l.mu.Lock()
	state.Messages, state.Bytes = l.line.Len()
	state.Keys = l.line.States(func(a consumer.Arrival) (time.Time, string) {
		return a.Raw.Timestamp, a.Raw.MessageId
	})
	l.mu.Unlock()
	name, _ := question.Headers[keys.Key].(string)
	state.Sort(name)
	l.s.Go(func() {
		body, err := json.Marshal(state)
		if err == nil {
			err = l.cfg.Group.Publisher.Publish(l.s.Stop(), "", replyTo, amqp.Publishing{
				ContentType: "application/json", Body: body,
			})
		}
		if err != nil {
			l.logger.Debug("Cannot answer a question about the line: "+err.Error(), nil)
		}
	})
}

// besideBody is the memory of a message in the line beside its body.
const besideBody = 2 << 10
