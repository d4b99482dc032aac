package consumer

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/clock"
	"github.com/millpond-go/millpond/internal/order"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware/header"
)

// This file takes the deliveries of the line and of the main queue, if there is an order.

// fromLine takes a delivery of the line. It reports whether the consumer can go on.
func (s *Subscription) fromLine(c *consumer, raw amqp.Delivery) bool {
	o := c.inOrder
	c.acks.arrived(raw.DeliveryTag)
	a := arrival{raw: raw, at: time.Now(), on: c}
	text, _ := raw.Headers[header.Line].(string)
	note := order.ParseNote(text)
	if o.gate == "" && len(o.tokens) == 0 && !s.shut(o, 0) {
		return false
	}
	switch note.Kind {
	case order.Token:
		return s.token(o, raw, note)
	case order.Release:
		o.whenKnown(func() { s.unblock(o, a, note) })
	case order.Ask:
		o.whenKnown(func() {
			s.answer(o, &raw)
			_ = c.ack(raw.DeliveryTag)
		})
	case order.Wait, order.Block:
		o.waits(a, note, s.due(&raw))
	}
	return true
}

// whenKnown calls f when everything in the line is known.
func (o *inOrder) whenKnown(f func()) {
	if o.gate == "" {
		f()
		return
	}
	o.later = append(o.later, f)
}

// waits takes a message that waits in the line. A message whose number cannot be read goes first.
func (o *inOrder) waits(a arrival, note order.Note, due time.Time) {
	_, blamed := a.raw.Headers[header.Interruptions]
	key, _ := a.raw.Headers[header.Key].(string)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.line.Returned(order.Waiting[arrival]{
		Key: key, Seq: note.Seq, ID: note.ID, First: note.First, Due: due,
		Size: len(a.raw.Body) + besideBody, Block: note.Kind == order.Block,
		Alone: blamed, Item: a,
	})
}

// due returns when a message of the line may be handled; zero for at once. A forged time, and the
// time of a host whose clock was ahead, is bounded as in other queues.
func (s *Subscription) due(raw *amqp.Delivery) (at time.Time) {
	if _, waits := raw.Headers[header.NotBefore]; !waits {
		return at
	}
	state := header.Parse(s.cfg.Queue, func(key string) (string, bool) {
		text, ok := raw.Headers[key].(string)
		return text, ok
	})
	if left := remaining(&state); left > 0 {
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
func (s *Subscription) fromMain(o *inOrder, raw amqp.Delivery) bool {
	o.main.acks.arrived(raw.DeliveryTag)
	o.asked, o.key = arrival{raw: raw, at: time.Now(), on: o.main}, s.keyOf(o.main, &raw)
	o.late.Reset(promptKey)
	select {
	case key := <-o.key:
		return s.keyed(o, key)
	case <-o.late.C:
		o.late.Reset(lateKey)
		return true
	}
}

// keyed takes the delivery of the main queue whose key was asked for.
func (s *Subscription) keyed(o *inOrder, key string) bool {
	a := o.asked
	o.asked, o.key = arrival{}, nil
	o.late.Stop()
	// Every end of a channel counts against the delivery limit. A copy has a new count.
	must := a.raw.Redelivered && deliveryCount(&a.raw) >= o.main.danger()
	o.mu.Lock()
	o.line.Arrived(key, a, a.raw.Redelivered, must)
	epoch := o.line.Epoch()
	o.mu.Unlock()
	if o.came {
		return true
	}
	o.came = true
	return o.gate != "" || s.shut(o, epoch)
}

// keyOf gets the key of a message as it stands in headers and in answers: as text. It is "" if
// it cannot be read. Such a message is dead-lettered when it is handled. The user's functions may
// hang. A consumer after c then waits for the same call.
func (s *Subscription) keyOf(c *consumer, raw *amqp.Delivery) <-chan string {
	told := make(chan string, 1)
	go func() {
		select {
		case s.asking <- struct{}{}:
		case <-c.ctx.Done():
			return
		}
		defer close(told) // the user's functions may end the goroutine
		defer func() { <-s.asking }()
		told <- order.KeyText(s.askKey(raw))
	}()
	return told
}

func (s *Subscription) askKey(raw *amqp.Delivery) (key string) {
	defer func() {
		s.inKeyBy.Store(false)
		if r := recover(); r != nil {
			key = ""
			s.keyless.Do(func() {
				s.logger.Error("KeyBy of topology.InOrder has panicked: the message has no key and no order",
					fmt.Errorf("panic: %v", r), watermill.LogFields{"message_id": raw.MessageId})
			})
		}
	}()
	seen := *raw
	seen.Acknowledger = nil
	seen.Headers = wire.TextHeaders(raw.Headers)
	msg, err := s.cfg.Decode(seen)
	if err != nil || msg == nil {
		return ""
	}
	s.inKeyBy.Store(true)
	return s.cfg.Order.KeyBy(msg)
}

// logLateKey names the function that keeps the queue waiting.
func (s *Subscription) logLateKey(o *inOrder) {
	if o.key == nil {
		return
	}
	function := "the marshaler"
	if s.inKeyBy.Load() {
		function = "KeyBy of topology.InOrder"
	}
	held := time.Since(o.asked.at)
	s.logger.Error("A message waits for its key, and the messages behind it in the queue wait, too, "+
		"while the line goes on: make KeyBy and the marshaler wait for nothing, and start again",
		hasHad(function, held), watermill.LogFields{"message_id": o.asked.raw.MessageId, "held": held})
}

// mostRenewal is the longest time until the line is read again. So a message that was purged is not
// awaited for ever.
const mostRenewal = time.Hour

// renew gives everything in the line back before the broker's consumer timeout, and reads it
// again.
func (s *Subscription) renew(o *inOrder) bool {
	if o.gate != "" || len(o.tokens) == 0 {
		return true
	}
	if s.heldTooLong(o) {
		return false
	}
	o.mu.Lock()
	items := o.line.Forget()
	epoch := o.line.Epoch()
	o.mu.Unlock()
	c := o.lines
	c.flushAcks()
	var err error
	for _, a := range items {
		c.conn.Together(func() { err = c.ch.Nack(a.raw.DeliveryTag, false, true) })
		c.acks.nacked(a.raw.DeliveryTag)
		if err != nil {
			return false
		}
	}
	return s.shut(o, epoch)
}

// heldTooLong reports whether a message of the main queue waits for its handling until the broker's
// consumer timeout may take it back, which would count and repeat the messages in progress. All go
// back before, in their order, when the messages in progress have ended. RabbitMQ 4.3 has no
// timeout for a quorum queue here; see consumeArguments.
func (s *Subscription) heldTooLong(o *inOrder) bool {
	if !o.lines.NackCounts && !o.lines.Classic {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for a := range o.line.Fresh {
		if time.Since(a.at) > o.lines.hold/2 {
			return true
		}
	}
	return false
}

// unblock takes the mark of a dead letter away.
func (s *Subscription) unblock(o *inOrder, a arrival, note order.Note) {
	key, _ := a.raw.Headers[header.Key].(string)
	var items []arrival
	if s.believes(&a.raw) {
		o.mu.Lock()
		items = o.line.Release(key, note.ID)
		o.mu.Unlock()
	} else {
		s.logDisbelief(&a.raw, note)
	}
	for _, mark := range append(items, a) {
		_ = o.lines.ack(mark.raw.DeliveryTag)
	}
}

// answer tells a tool which keys have messages in the line.
func (s *Subscription) answer(o *inOrder, question *amqp.Delivery) {
	replyTo := question.ReplyTo
	if !strings.HasPrefix(replyTo, s.cfg.Order.Line+".") { // a queue of this library, not of a user
		return
	}
	limits := s.cfg.Order.Limits
	state := order.State{
		Instance: s.cfg.Order.Instance, Epoch: o.epoch.Load(), Since: o.since,
		MaxMessages: limits.Messages, MaxBytes: limits.Bytes, Unbelieved: !s.believes(question),
	}
	o.mu.Lock()
	state.Messages, state.Bytes = o.line.Len()
	for k := range o.line.Keys {
		key := order.KeyState{Key: k.Key, Waiting: k.Waiting, Due: k.Due}
		if k.Mark != nil {
			key.Waiting--
			key.Mark, key.Blocked = k.MarkID.String(), k.Mark.raw.Timestamp
			key.MessageID = k.Mark.raw.MessageId
			key.Replayed = k.Replayed
		}
		state.Keys = append(state.Keys, key)
	}
	o.mu.Unlock()
	name, _ := question.Headers[header.Key].(string)
	state.Sort(name)
	s.wg.Go(func() {
		body, err := json.Marshal(state)
		if err == nil {
			err = s.cfg.Group.Publisher.Publish(s.stop, "", replyTo, amqp.Publishing{
				ContentType: "application/json", Body: body,
			})
		}
		if err != nil {
			s.logger.Debug("Cannot answer a question about the line: "+err.Error(), nil)
		}
	})
}

// besideBody is the memory of a message in the line beside its body.
const besideBody = 2 << 10
