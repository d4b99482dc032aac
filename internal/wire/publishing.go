package wire

import (
	"bytes"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"
)

// neverRepublished are headers that belong to the broker or steer it. x-death
// on a republished message can lose it or stop the wait queue on 3.10, and is
// ignored from 4.0 (F3); stale counters are passed through (F2); CC and BCC
// would send copies elsewhere on every retry (F15).
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

// Publishing returns the delivery as it arrived, with notes beside its headers:
// body, properties and typed headers untouched, but for the headers above, those
// that drop says belong to earlier notes, the user id (the broker refuses
// another user's, F15) and the expiration (it would shorten the wait).
func Publishing(d *amqp.Delivery, drop func(header string) bool, notes map[string]string) amqp.Publishing {
	headers := make(amqp.Table, len(d.Headers)+len(notes)+1)
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

// Priority returns the priority that a message arrived with first: that in the
// header of the given name, if it is a decimal number from 0 to 255, else the
// property of d.
func Priority(d *amqp.Delivery, header string) uint8 {
	text, _ := d.Headers[header].(string)
	if noted, err := strconv.ParseUint(text, 10, 8); err == nil {
		return uint8(noted)
	}
	return d.Priority
}

// Clone returns a copy of the delivery that shares nothing with it and cannot
// be acked.
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
