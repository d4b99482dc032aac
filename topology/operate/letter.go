package operate

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware/header"
)

// Letter is a dead letter. A field that is not known is the zero value. Its fields are as reliable
// as its publishers: any user who may publish to the queue may write them.
type Letter struct {
	// ID is the message id, else Watermill's UUID of at most 255 bytes, else "sha256:" and the first
	// twelve digits of a hash of the payload. It need not be unique.
	ID string `json:"id"`
	// Position in the queue when it was looked at, 1 for the oldest.
	Position int `json:"position"`
	// Queue is the queue whose handler gave up.
	Queue string `json:"queue,omitempty"`
	// DeadAt is when it was dead-lettered, by the broker itself: the time in x-death.
	DeadAt time.Time `json:"dead_at,omitzero"`
	// Attempts that failed in the last round.
	Attempts int `json:"attempts"`
	// Reason is a reason of the middleware, or of the broker: expired, rejected, maxlen,
	// delivery_limit.
	Reason header.Reason `json:"reason,omitempty"`
	// Error is the last error, which may be cut.
	Error string `json:"error,omitempty"`
	// Class of the last error.
	Class header.Class `json:"class,omitempty"`
	// Handler that gave up.
	Handler string `json:"handler,omitempty"`
	// Deadline is the end of the message's own expiration, of a letter with header.ReasonDeadline.
	// DeadlineFrom names the time that the expiration was counted from, such as
	// header.FromTimestamp; it is empty where that was not noted.
	Deadline     time.Time `json:"deadline,omitzero"`
	DeadlineFrom string    `json:"deadline_from,omitempty"`
	// Replays is how often Replay has moved it back before.
	Replays int `json:"replays"`
	// History has an entry for each failed attempt, oldest first, also of earlier rounds; of very many
	// the oldest are missing.
	History []header.AttemptError `json:"history,omitempty"`
	// OriginExchange and OriginRoutingKey are how it was published first.
	OriginExchange, OriginRoutingKey string `json:"-"`
	// Delivery is the message as it is in the queue. It cannot be acked or nacked.
	Delivery amqp.Delivery `json:"-"`

	waits time.Duration // the delay of its wait queue
}

// newLetter reads a dead letter.
func newLetter(d amqp.Delivery, position int) Letter {
	get := textOf(&d)
	queue, state := header.ParseDead(get)
	l := letterOf(d, position, queue, state)
	if l.Error == "" {
		l.Error, _ = get(wmiddleware.ReasonForPoisonedKey)
	}
	if l.Handler == "" {
		l.Handler, _ = get(wmiddleware.PoisonedHandlerKey)
	}
	l.readDeath()
	return l
}

// letterOf keeps a delivery without the means to settle it.
func letterOf(d amqp.Delivery, position int, queue string, state header.RetryState) Letter {
	d.Acknowledger = nil
	return Letter{
		ID: idOf(&d), Position: position, Queue: queue,
		DeadAt: state.DeadAt, Attempts: state.Failures, Reason: state.Reason, Error: state.Error,
		Class: state.Class, Handler: state.Handler, Deadline: state.Deadline,
		DeadlineFrom: state.DeadlineFrom, Replays: header.ParseReplays(textOf(&d)),
		History: state.History, OriginExchange: state.OriginExchange,
		OriginRoutingKey: state.OriginRoutingKey, Delivery: d,
	}
}

// readDeath reads the fields of a letter that the broker has dead-lettered.
func (l *Letter) readDeath() {
	deaths, _ := l.Delivery.Headers["x-death"].([]any)
	if len(deaths) == 0 || l.Queue != "" || l.Reason != "" {
		return
	}
	death, _ := deaths[0].(amqp.Table)
	l.Queue, _ = death["queue"].(string)
	reason, _ := death["reason"].(string)
	l.Reason = header.Reason(reason)
	l.DeadAt, _ = death["time"].(time.Time)
}

func idOf(d *amqp.Delivery) string {
	if d.MessageId != "" {
		return d.MessageId
	}
	if id, _ := d.Headers[wire.UUIDHeader].(string); id != "" && len(id) <= maxName {
		return id
	}
	sum := sha256.Sum256(d.Body)
	return "sha256:" + hex.EncodeToString(sum[:6])
}

// textOf returns the text headers of a delivery.
func textOf(d *amqp.Delivery) func(key string) (string, bool) {
	return func(key string) (string, bool) {
		text, ok := d.Headers[key].(string)
		return text, ok
	}
}

// HeaderText returns a header's value as text, as Watermill's metadata has it: strings as they are,
// times in RFC 3339, bytes in base64, tables and arrays as JSON.
func HeaderText(value any) string { return wire.Text(value) }
