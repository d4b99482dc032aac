package operate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/order"
	"github.com/millpond-go/millpond/topology"
)

// OrderState has the keys in the line of a queue that is handled in order; see inorder.Strategy.
type OrderState struct {
	// Instance is the process that leads, Epoch its fencing token and Since the time since which it
	// leads. Without a process Instance is empty, and Epoch is the highest that was seen.
	Instance string    `json:"instance"`
	Epoch    uint64    `json:"epoch"`
	Since    time.Time `json:"since,omitzero"`
	// Messages and Bytes are in the line. MaxMessages and MaxBytes are its bounds in the process that
	// leads; zero without one.
	Messages    int `json:"messages"`
	Bytes       int `json:"bytes"`
	MaxMessages int `json:"max_messages,omitempty"`
	MaxBytes    int `json:"max_bytes,omitempty"`
	// Keys are those with messages in the line: the blocked ones first, then by the number of
	// messages that wait. At most 1000; FindKey finds the others.
	Keys []OrderKey `json:"keys"`
	// Others is how many keys are left out.
	Others int `json:"others,omitempty"`
}

// OrderKey is a key with messages in the line. As JSON it has key_bytes, in base64, if the key is
// not UTF-8.
type OrderKey struct {
	// Key is empty for a message that has no order. Each such message is an OrderKey.
	Key string
	// Waiting is how many messages wait, without the dead letter that blocks the key.
	Waiting int
	// Due is when the first message is tried again. Zero: it is not known, or there is no delay.
	Due time.Time
	// Mark is the ID of the mark of the dead letter that blocks the key, Blocked the time since which
	// it does, and MessageID the letter's. They are empty while the key goes on.
	Mark      string
	Blocked   time.Time
	MessageID string
	// Replayed says that a copy of the dead letter waits in the line: a replay was interrupted before
	// it could release the key.
	Replayed bool
}

// MarshalJSON implements json.Marshaler.
func (k OrderKey) MarshalJSON() ([]byte, error) { return json.Marshal(order.KeyState(k)) }

// UnmarshalJSON implements json.Unmarshaler.
func (k *OrderKey) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, (*order.KeyState)(k))
}

// BlockedKeys returns the keys that a dead letter blocks.
func (s OrderState) BlockedKeys() (keys []OrderKey) {
	for _, k := range s.Keys {
		if k.Mark != "" {
			keys = append(keys, k)
		}
	}
	return keys
}

// NearBound reports whether the messages or the bytes of the line are near their bound.
func (s OrderState) NearBound() bool {
	near := func(n, most int) bool { return most > 0 && n >= most/5*4 }
	return near(s.Messages, s.MaxMessages) || near(s.Bytes, s.MaxBytes)
}

// Find returns the state of a key. It is false if the key has nothing in the line.
func (s OrderState) Find(key string) (OrderKey, bool) {
	i := slices.IndexFunc(s.Keys, func(k OrderKey) bool { return key != "" && k.Key == key })
	if i < 0 {
		return OrderKey{Key: key}, false
	}
	return s.Keys[i], true
}

const (
	// answerLimit is how long the process that leads may take to answer.
	answerLimit = 2 * time.Second
	// lineLimit is how long the line may be held to read it, because a service that starts meanwhile
	// does not get its messages.
	lineLimit = 5 * time.Second
	// lookForOthers is how often a service that starts is looked for meanwhile.
	lookForOthers = 200 * time.Millisecond
	// lineAhead is the prefetch of a look: the most that AMQP has, because all of the line comes back
	// at once.
	lineAhead = 65535
	// askedFor is how long a question stays in the line if nothing takes it, in milliseconds.
	askedFor = "60000"
	// besideBody is the memory of a message beside its body, as the process that leads counts it.
	besideBody = 2 << 10
)

// Order returns the keys in the line of the plan's queue. The process that leads answers within
// two seconds. If no process consumes the line, Order reads the line itself, for at most five
// seconds, and all messages go back to their places. The user needs the permissions configure,
// write and read for the line and for names that begin with the line's name and a dot.
//
// An error wraps ErrInvalidOptions for a queue that is not handled in order, and ErrUnsafePeek if
// the line cannot be read safely.
func (o *Operator) Order(ctx context.Context, plan topology.Plan) (state OrderState, err error) {
	if plan.Line == "" {
		return state, fmt.Errorf("order: %w: queue %q is not handled in order", ErrInvalidOptions,
			plan.Queue)
	}
	err = o.call(ctx, func(ctx context.Context, conn *link.Conn) error {
		told, err := o.order(ctx, conn, plan, "")
		state = stateOf(told)
		return err
	})
	if err != nil {
		return OrderState{}, fmt.Errorf("order of queue %q: %w", plan.Queue, err)
	}
	return state, nil
}

// FindKey returns the state of a key, also of a key that Order leaves out because there are too
// many. With a mark it returns the key that the mark blocks, and key is not used. Of a key that has
// nothing in the line, and of a mark that blocks none, the state has the key alone.
//
// It fails as Order does.
func (o *Operator) FindKey(
	ctx context.Context, plan topology.Plan, key, mark string,
) (found OrderKey, err error) {
	if plan.Line == "" || key == "" && mark == "" {
		return found, fmt.Errorf("find a key: %w: name a key or a mark, and a queue that is handled in "+
			"order", ErrInvalidOptions)
	}
	err = o.call(ctx, func(ctx context.Context, conn *link.Conn) (err error) {
		found, _, err = o.findKey(ctx, conn, plan, key, mark)
		return err
	})
	if err != nil {
		err = fmt.Errorf("find a key of queue %q: %w", plan.Queue, err)
	}
	return found, err
}

// findKey also reports whether a release of the user of conn counts.
func (o *Operator) findKey(
	ctx context.Context, conn *link.Conn, plan topology.Plan, key, mark string,
) (found OrderKey, believed bool, err error) {
	told, err := o.order(ctx, conn, plan, cmp.Or(mark, key))
	if err != nil {
		return OrderKey{}, false, err
	}
	for _, k := range told.Keys {
		if mark != "" && k.Mark == mark || mark == "" && k.Key == key {
			return OrderKey(k), !told.Unbelieved, nil
		}
	}
	return OrderKey{Key: key}, !told.Unbelieved, nil
}

// errTaken: a service has begun to consume the line.
var errTaken = errors.New("a process consumes the line")

// order asks for the state of the line. The state has a key that name names, by itself or its mark.
func (o *Operator) order(
	ctx context.Context, conn *link.Conn, plan topology.Plan, name string,
) (told order.State, err error) {
	for end := time.Now().Add(callTimeout / 2); ; {
		q, err := audit.Passive(ctx, conn.Do, plan.Line)
		if err != nil {
			return told, err
		}
		if q.Consumers == 0 {
			read, err := o.readLine(ctx, conn, plan, name)
			if errors.Is(err, errTaken) && time.Now().Before(end) {
				continue
			}
			return read, err
		}
		state, answered, err := o.askLeader(ctx, conn, plan.Line, name)
		if err != nil || answered {
			return state, err
		}
		q, err = audit.Passive(ctx, conn.Do, plan.Line)
		if err != nil {
			return told, err
		}
		if q.Consumers > 0 || time.Now().After(end) {
			return told, fmt.Errorf("the process that leads has not answered in %v: it starts, it "+
				"hangs, or it has lost its connection; try again in a minute", answerLimit)
		}
	}
}

// askLeader asks the process that leads.
func (o *Operator) askLeader(
	ctx context.Context, conn *link.Conn, line, key string,
) (state order.State, answered bool, err error) {
	ch, err := conn.Channel()
	if err != nil {
		return state, false, err
	}
	defer func() { _ = ch.Close() }()
	name := line + "." + watermill.NewShortUUID()
	if _, err = ch.QueueDeclare(name, false, true, true, false, nil); err != nil {
		return state, false, fmt.Errorf("declare a queue for the answer: %w", err)
	}
	answers, err := ch.Consume(name, "", true, true, false, false, nil)
	if err != nil {
		return state, false, fmt.Errorf("consume the queue for the answer: %w", err)
	}
	if err := o.publishAs(ctx, conn.User(), line, question(name, key)); err != nil {
		return state, false, err
	}
	limit := time.NewTimer(answerLimit)
	defer limit.Stop()
	select {
	case answer, ok := <-answers:
		if !ok {
			return state, false, amqp.ErrClosed
		}
		if err := json.Unmarshal(answer.Body, &state); err != nil {
			return state, false, fmt.Errorf("the answer of the process that leads: %w", err)
		}
		return state, true, nil
	case <-limit.C:
		return state, false, nil
	case <-ctx.Done():
		return state, false, context.Cause(ctx)
	}
}

// publishAs publishes a note with its user, because services may ask for it. A broker that knows
// the user by another name refuses that, and gets the note without.
func (o *Operator) publishAs(
	ctx context.Context, user, line string, note amqp.Publishing,
) error {
	note.UserId = user
	err := o.publish(ctx, "", line, note)
	if user != "" && audit.IsCode(err, amqp.PreconditionFailed) {
		note.UserId = ""
		err = o.publish(ctx, "", line, note)
	}
	return err
}

// question is a message to the process that leads. It is not for a process that comes much later.
func question(replyTo, name string) amqp.Publishing {
	headers := amqp.Table{keys.Line: order.Note{Kind: order.Ask}.String()}
	if name != "" {
		headers[keys.Key] = order.KeyText(name)
	}
	return amqp.Publishing{
		DeliveryMode: amqp.Persistent, ReplyTo: replyTo, Expiration: askedFor, Headers: headers,
	}
}

func stateOf(s order.State) OrderState {
	state := OrderState{
		Instance: s.Instance, Epoch: s.Epoch, Since: s.Since, Messages: s.Messages, Bytes: s.Bytes,
		MaxMessages: s.MaxMessages, MaxBytes: s.MaxBytes, Others: s.Others, Keys: []OrderKey{},
	}
	for _, k := range s.Keys {
		state.Keys = append(state.Keys, OrderKey(k))
	}
	return state
}

// readLine reads a line that no process consumes. Its messages go back together when the channel
// ends, in their order. A basic.nack, or a basic.cancel while messages are held, would let them go
// back singly, and a service that starts could get some of them before the others.
func (o *Operator) readLine(
	ctx context.Context, conn *link.Conn, plan topology.Plan, name string,
) (none order.State, err error) {
	r := reader{o, conn, plan, plan.Line}
	if err := r.check(ctx); err != nil {
		return none, err
	}
	ch, err := conn.Channel()
	if err != nil {
		return none, err
	}
	defer func() { _ = ch.Close() }()
	ctx, cancel := context.WithTimeout(ctx, lineLimit)
	defer cancel()
	last := watermill.NewShortUUID()
	if err := ch.Qos(lineAhead, 0, false); err != nil {
		return none, err
	}
	messages, err := ch.Consume(plan.Line, "millpond-look-"+last, false, false, false, false, nil)
	if err != nil {
		return none, err
	}
	// Everything that was there before comes before this message.
	end := question("", "")
	end.MessageId = last
	if err := o.publish(ctx, "", plan.Line, end); err != nil {
		return none, err
	}
	l := lineRead{Line: order.New[amqp.Delivery](order.Limits{})}
	others := time.NewTicker(lookForOthers)
	defer others.Stop()
	for {
		select {
		case d, ok := <-messages:
			if !ok {
				return none, amqp.ErrClosed
			}
			if note := l.take(&d); note.Kind == order.Ask && d.ReplyTo == "" { // of a look like this
				if err := d.Ack(false); err != nil {
					return none, err
				}
			}
			if d.MessageId == last {
				return l.state(name), nil
			}
		case <-others.C:
			q, err := audit.Passive(ctx, conn.Do, plan.Line)
			switch {
			case err != nil:
				return none, err
			case q.Consumers > 1:
				return none, errTaken
			}
		case <-ctx.Done():
			return none, fmt.Errorf("%w: the line %q could not be read in %v, with %d messages "+
				"read: start its service, which tells its state", ErrTooSlow, plan.Line, lineLimit, l.n)
		}
	}
}

// lineRead is a line as its messages show it.
type lineRead struct {
	n     int // messages that were taken
	epoch uint64
	*order.Line[amqp.Delivery]
}

// take takes a message of the line, in the order of the line.
func (l *lineRead) take(d *amqp.Delivery) order.Note {
	get := textOf(d)
	text, _ := get(keys.Line)
	note := order.ParseNote(text)
	key, _ := get(keys.Key)
	l.epoch = max(l.epoch, note.Epoch, note.ID.Epoch)
	l.n++
	switch note.Kind {
	case order.Wait, order.Block:
		text, _ = get(keys.NotBefore)
		due, _ := time.Parse(time.RFC3339Nano, text)
		l.Returned(order.Waiting[amqp.Delivery]{
			Key: key, Seq: note.Seq, ID: note.ID, First: note.First, Due: due,
			Size: len(d.Body) + besideBody, Block: note.Kind == order.Block,
			Item: amqp.Delivery{Timestamp: d.Timestamp, MessageId: d.MessageId},
		})
	case order.Release:
		l.Release(key, note.ID)
	case order.Token, order.Ask:
	}
	return note
}

// state returns the state that the process that leads would tell.
func (l *lineRead) state(name string) order.State {
	s := order.State{Epoch: l.epoch}
	s.Messages, s.Bytes = l.Len()
	s.Keys = l.States(func(d amqp.Delivery) (time.Time, string) { return d.Timestamp, d.MessageId })
	s.Sort(name)
	return s
}
