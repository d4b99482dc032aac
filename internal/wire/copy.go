// Package wire copies deliveries (copy.go). Publishing turns a delivery into the message that is
// republished. PropertiesSize measures that message. Text turns typed headers into the strings
// that a handler sees. ReplaceUnreadable saves a connection from headers that amqp091-go cannot
// read (readable.go). frames.go and delivery.go write and read the frames that each message needs.
package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// neverRepublished are headers that belong to the broker or steer it. On a republished message,
// x-death can lose it or stop the wait queue on 3.10, and is ignored from 4.0 on (F3). Stale
// counters are passed through (F2). CC and BCC would send copies to other queues on every retry
// (F15).
var neverRepublished = map[string]bool{
	"x-death":                true,
	"x-first-death-exchange": true,
	"x-first-death-queue":    true,
	"x-first-death-reason":   true,
	"x-last-death-exchange":  true,
	"x-last-death-queue":     true,
	"x-last-death-reason":    true,
	"x-delivery-count":       true,
	"x-acquired-count":       true,
	"CC":                     true,
	"BCC":                    true,
}

// IsBrokers reports whether a header belongs to the broker or steers it, so that no copy has it.
func IsBrokers(key string) bool { return neverRepublished[key] }

// usualNotes is the number of headers for which Publishing leaves room at least. A retry has six.
const usualNotes = 6

// Publishing returns the delivery as it arrived, with notes among its headers. Body, properties
// and typed headers are untouched, with these exceptions: the headers above and those for which
// drop returns true are left out. So is the user id, because the broker refuses another user's
// (F15), and the expiration, because it would shorten the wait. The message is persistent.
func Publishing(
	d *amqp.Delivery, drop func(header string) bool, notes map[string]string,
) amqp.Publishing {
	headers := make(amqp.Table, len(d.Headers)+max(len(notes)+1, usualNotes))
	for key, value := range d.Headers {
		if !neverRepublished[key] && !drop(key) {
			headers[key] = value
		}
	}
	for key, value := range notes {
		headers[key] = value
	}
	return amqp.Publishing{
		Headers:         headers,
		ContentType:     d.ContentType,
		ContentEncoding: d.ContentEncoding,
		DeliveryMode:    amqp.Persistent,
		Priority:        d.Priority,
		CorrelationId:   d.CorrelationId,
		ReplyTo:         d.ReplyTo,
		MessageId:       d.MessageId,
		Timestamp:       d.Timestamp,
		Type:            d.Type,
		AppId:           d.AppId,
		Body:            d.Body,
	}
}

// Priority returns the priority with which a message arrived first. It reads the named header if
// that is a decimal number from 0 to 255, and the property of d otherwise.
func Priority(d *amqp.Delivery, header string) uint8 {
	text, _ := d.Headers[header].(string)
	if noted, err := strconv.ParseUint(text, 10, 8); err == nil {
		return uint8(noted)
	}
	return d.Priority
}

// PropertiesSize returns the number of bytes in the payload of the content header frame of msg.
// All properties and headers of a message share that frame (F16). The size is exact if
// amqp091-go can send the headers, and a guess otherwise.
func PropertiesSize(msg *amqp.Publishing) int {
	size := 2 + 2 + 8 + 2 // class, weight, body size, property flags
	for _, s := range []string{
		msg.ContentType, msg.ContentEncoding, msg.CorrelationId, msg.ReplyTo,
		msg.Expiration, msg.MessageId, msg.Type, msg.UserId, msg.AppId,
	} {
		if s != "" {
			size += 1 + len(s)
		}
	}
	if msg.DeliveryMode > 0 {
		size++
	}
	if msg.Priority > 0 {
		size++
	}
	if !msg.Timestamp.IsZero() {
		size += 8
	}
	if len(msg.Headers) > 0 {
		size += tableSize(msg.Headers)
	}
	return size
}

func tableSize(t amqp.Table) int {
	size := 4
	for key, value := range t {
		size += 1 + len(key) + valueSize(value)
	}
	return size
}

// valueSize counts the type's octet and the value.
func valueSize(value any) int {
	switch v := value.(type) {
	case nil:
		return 1
	case bool, int8, uint8:
		return 1 + 1
	case int16, uint16:
		return 1 + 2
	case int, int32, uint32, float32: // an int is sent as 32 bits
		return 1 + 4
	case amqp.Decimal:
		return 1 + 1 + 4
	case int64, float64, time.Time:
		return 1 + 8
	case string:
		return 1 + 4 + len(v)
	case []byte:
		return 1 + 4 + len(v)
	case amqp.Table:
		return 1 + tableSize(v)
	case []any:
		size := 1 + 4
		for _, item := range v {
			size += valueSize(item)
		}
		return size
	}
	return 1 + 8
}

// Text returns a header's value as metadata. Strings stay as they are. Numbers and bools are
// formatted by strconv, a time in RFC 3339, bytes in base64, and tables, arrays and nil as JSON.
func Text(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case []byte:
		return base64.StdEncoding.EncodeToString(v)
	case time.Time:
		return v.UTC().Format(time.RFC3339)
	case bool:
		return strconv.FormatBool(v)
	case int, int8, int16, int32, int64, uint8, uint16, uint32, uint64:
		return fmt.Sprint(v)
	case float32:
		return strconv.FormatFloat(float64(v), 'g', -1, 32)
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	case amqp.Decimal:
		return decimal(v)
	}
	text, err := json.Marshal(jsonValue(value))
	if err != nil { // a type that never comes off the wire
		return fmt.Sprint(value)
	}
	return string(text)
}

// TextHeaders returns a copy of headers in which every value is a string. Watermill's marshalers
// understand nothing else.
func TextHeaders(headers amqp.Table) amqp.Table {
	out := make(amqp.Table, len(headers)+1)
	for key, value := range headers {
		if _, is := value.(string); !is { // a string as it is takes no new memory
			value = Text(value)
		}
		out[key] = value
	}
	return out
}

// jsonValue returns value for JSON. It writes the values that JSON cannot hold as Text does.
func jsonValue(value any) any {
	switch v := value.(type) {
	case amqp.Table:
		out := make(map[string]any, len(v))
		for key, item := range v {
			out[key] = jsonValue(item)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = jsonValue(item)
		}
		return out
	case amqp.Decimal:
		return json.Number(decimal(v))
	case float32:
		if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
			return Text(v)
		}
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return Text(v)
		}
	case []byte, time.Time:
		return Text(v)
	}
	return value
}

// decimal writes Value × 10^-Scale without rounding.
func decimal(d amqp.Decimal) string {
	digits, sign := strconv.FormatInt(int64(d.Value), 10), ""
	if rest, negative := strings.CutPrefix(digits, "-"); negative {
		digits, sign = rest, "-"
	}
	if d.Scale == 0 {
		return sign + digits
	}
	scale := int(d.Scale)
	if missing := scale + 1 - len(digits); missing > 0 {
		digits = strings.Repeat("0", missing) + digits
	}
	return sign + digits[:len(digits)-scale] + "." + digits[len(digits)-scale:]
}

// Clone returns a copy of the delivery that shares nothing with it and cannot be acked.
func Clone(d *amqp.Delivery) amqp.Delivery {
	c := *d
	c.Acknowledger = nil
	c.Headers, _ = cloneValue(d.Headers).(amqp.Table)
	c.Body = bytes.Clone(d.Body)
	return c
}

func cloneValue(value any) any {
	switch v := value.(type) {
	case amqp.Table:
		if v == nil {
			return v
		}
		out := make(amqp.Table, len(v))
		for key, item := range v {
			out[key] = cloneValue(item)
		}
		return out
	case []any:
		if v == nil {
			return v
		}
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = cloneValue(item)
		}
		return out
	case []byte:
		return bytes.Clone(v)
	}
	return value
}
