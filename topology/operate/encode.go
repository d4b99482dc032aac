package operate

import (
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/excerpt"
)

// record is a message as a line of JSON, lossless: strings that are not UTF-8 are written in
// base64, and headers with their AMQP types.
type record struct {
	Exchange        text             `json:"exchange,omitempty"`
	RoutingKey      text             `json:"routing_key,omitempty"`
	Redelivered     bool             `json:"redelivered,omitempty"`
	MessageID       text             `json:"message_id,omitempty"`
	CorrelationID   text             `json:"correlation_id,omitempty"`
	ContentType     text             `json:"content_type,omitempty"`
	ContentEncoding text             `json:"content_encoding,omitempty"`
	DeliveryMode    uint8            `json:"delivery_mode,omitempty"`
	Priority        uint8            `json:"priority,omitempty"`
	ReplyTo         text             `json:"reply_to,omitempty"`
	Expiration      text             `json:"expiration,omitempty"`
	Timestamp       *int64           `json:"timestamp,omitempty"` // seconds, as AMQP has it
	Type            text             `json:"type,omitempty"`
	UserID          text             `json:"user_id,omitempty"`
	AppID           text             `json:"app_id,omitempty"`
	Headers         map[string]field `json:"headers,omitempty"`
	Body            text             `json:"body"`
}

// Encode writes a message as a line of JSON that Import reads, without the line's end: payload,
// properties and headers with their types, lossless. Characters that a terminal may not show are
// escaped.
func Encode(d amqp.Delivery) ([]byte, error) {
	r := record{
		Exchange: text(d.Exchange), RoutingKey: text(d.RoutingKey), Redelivered: d.Redelivered,
		MessageID: text(d.MessageId), CorrelationID: text(d.CorrelationId),
		ContentType: text(d.ContentType), ContentEncoding: text(d.ContentEncoding),
		DeliveryMode: d.DeliveryMode, Priority: d.Priority, ReplyTo: text(d.ReplyTo),
		Expiration: text(d.Expiration), Type: text(d.Type), UserID: text(d.UserId),
		AppID: text(d.AppId), Body: text(d.Body),
	}
	if !d.Timestamp.IsZero() {
		seconds := d.Timestamp.Unix()
		r.Timestamp = &seconds
	}
	var err error
	if r.Headers, err = fieldsOf(d.Headers); err != nil {
		return nil, fmt.Errorf("encode message %q: %w", idOf(&d), err)
	}
	line, err := json.Marshal(r)
	return []byte(excerpt.JSON(string(line))), err
}

// Decode reads a message that Encode wrote. It cannot be acked.
func Decode(line []byte) (amqp.Delivery, error) {
	var r record
	if err := json.Unmarshal(line, &r); err != nil {
		return amqp.Delivery{}, fmt.Errorf("decode message: %w", err)
	}
	headers, err := tableOf(r.Headers)
	if err != nil {
		return amqp.Delivery{}, fmt.Errorf("decode message: %w", err)
	}
	d := amqp.Delivery{
		Exchange: string(r.Exchange), RoutingKey: string(r.RoutingKey), Redelivered: r.Redelivered,
		MessageId: string(r.MessageID), CorrelationId: string(r.CorrelationID),
		ContentType: string(r.ContentType), ContentEncoding: string(r.ContentEncoding),
		DeliveryMode: r.DeliveryMode, Priority: r.Priority, ReplyTo: string(r.ReplyTo),
		Expiration: string(r.Expiration), Type: string(r.Type), UserId: string(r.UserID),
		AppId: string(r.AppID), Headers: headers, Body: []byte(r.Body),
	}
	if r.Timestamp != nil {
		d.Timestamp = time.Unix(*r.Timestamp, 0)
	}
	return d, nil
}

// text is a string of any bytes. As JSON it is a string where it is UTF-8 and few bytes need an
// escape, else an object with its base64.
type text string

type encoded struct {
	Base64 []byte `json:"base64"`
}

func (t text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		// An escape takes six bytes, and base64 a third more than the text.
		quoted, err := json.Marshal(string(t))
		quoted = []byte(excerpt.JSON(string(quoted)))
		if err != nil || len(quoted) <= 2*len(t)+64 {
			return quoted, err
		}
	}
	return json.Marshal(encoded{[]byte(t)})
}

func (t *text) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '{' {
		var e encoded
		err := json.Unmarshal(data, &e)
		*t = text(e.Base64)
		return err
	}
	return json.Unmarshal(data, (*string)(t))
}
