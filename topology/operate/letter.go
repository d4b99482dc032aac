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

// uuidHeader is where watermill-amqp keeps Watermill's UUID.
const uuidHeader = "_watermill_message_uuid"

// Letter is a dead letter. What is not known of it is the zero value: whoever
// may publish to the queue may also write what it says.
type Letter struct {
	// ID is the message id, else Watermill's UUID, else "sha256:" and the first
	// twelve digits of a hash of the payload. It need not be unique.
	ID string
	// Position in the queue when it was looked at, 1 for the oldest.
	Position int
	// Queue is the one whose handler gave up.
	Queue string
	// DeadAt is when. Of what the broker has dead-lettered itself, it is the time
	// in x-death.
	DeadAt time.Time
	// Attempts that failed in the last round.
	Attempts int
	// Reason is one of middleware's, or of the broker's: expired, rejected,
	// maxlen, delivery_limit.
	Reason header.Reason
	// Error is the last error, as it was cut.
	Error string
	// Class of the last error.
	Class header.Class
	// Handler that gave up.
	Handler string
	// Deadline is the end of the message's own expiration, of a letter with
	// middleware.ReasonDeadline. DeadlineFrom says what the expiration was counted from,
	// such as middleware.DeadlineFromTimestamp; it is empty where that was not noted.
	Deadline     time.Time
	DeadlineFrom string
	// Replays is how often Replay has moved it back before.
	Replays int
	// History has an entry for each failed attempt, oldest first, those of earlier
	// rounds as well; the oldest of very many are missing.
	History []header.AttemptError
	// OriginExchange and OriginRoutingKey are where it first came from.
	OriginExchange, OriginRoutingKey string
	// Delivery is the message as it is in the queue. It must not be acked or
	// nacked: what becomes of it is up to this package.
	Delivery amqp.Delivery
}

// newLetter reads a delivery, which it keeps without the means to settle it.
func newLetter(d amqp.Delivery, position int) Letter {
	d.Acknowledger = nil
	get := func(key string) (string, bool) {
		text, ok := d.Headers[key].(string)
		return text, ok
	}
	queue, notes := header.ParseDead(get)
	l := Letter{
		ID: idOf(&d), Position: position, Queue: queue,
		DeadAt: notes.DeadAt, Attempts: notes.Failures, Reason: notes.Reason, Error: notes.Error, Class: notes.Class,
		Handler: notes.Handler, Deadline: notes.Deadline, DeadlineFrom: notes.DeadlineFrom, Replays: header.ParseReplays(get), History: notes.History,
		OriginExchange: notes.OriginExchange, OriginRoutingKey: notes.OriginRoutingKey, Delivery: d,
	}
	if l.Error == "" {
		l.Error, _ = get(wmiddleware.ReasonForPoisonedKey)
	}
	if l.Handler == "" {
		l.Handler, _ = get(wmiddleware.PoisonedHandlerKey)
	}
	l.readDeath()
	return l
}

// readDeath fills in what only the broker has said.
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
	if id, _ := d.Headers[uuidHeader].(string); id != "" {
		return id
	}
	sum := sha256.Sum256(d.Body)
	return "sha256:" + hex.EncodeToString(sum[:6])
}

// HeaderText returns a header's value as text, as metadata has it: strings as they
// are, times in RFC 3339, bytes in base64, tables and arrays as JSON.
func HeaderText(value any) string { return wire.Text(value) }
