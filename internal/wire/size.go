package wire

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// PropertiesSize returns the bytes in the payload of the content header frame
// of msg: all properties and headers of a message share one frame (F16). It is
// exact where amqp091-go can send the headers, and a guess where it cannot.
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
