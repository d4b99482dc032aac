package publisher

import (
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/wire"
)

const (
	// maxShort is the length of the longest short string of AMQP.
	maxShort = 255
	// frameOverhead is the number of bytes that a frame adds to its payload.
	frameOverhead = 8
)

// check refuses a message that amqp091-go cannot send. amqp091-go itself reports a value of an
// unsupported type. A short string that is too long makes it close the whole connection (F15).
func check(exchange, routingKey string, msg *amqp.Publishing) error {
	for _, s := range [...]struct{ name, value string }{
		{"exchange", exchange},
		{"routing key", routingKey},
		{"content type", msg.ContentType},
		{"content encoding", msg.ContentEncoding},
		{"correlation id", msg.CorrelationId},
		{"reply-to", msg.ReplyTo},
		{"expiration", msg.Expiration},
		{"message id", msg.MessageId},
		{"type", msg.Type},
		{"user id", msg.UserId},
		{"app id", msg.AppId},
	} {
		if len(s.value) > maxShort {
			return tooLong(s.name, s.value)
		}
	}
	if err := checkKeys(msg.Headers); err != nil {
		return err
	}
	return msg.Headers.Validate()
}

func checkKeys(value any) error {
	switch v := value.(type) {
	case amqp.Table:
		for key, item := range v {
			if len(key) > maxShort {
				return tooLong("name of a header", key)
			}
			if err := checkKeys(item); err != nil {
				return err
			}
		}
	case []any:
		for _, item := range v {
			if err := checkKeys(item); err != nil {
				return err
			}
		}
	}
	return nil
}

func tooLong(name, value string) error {
	return fmt.Errorf("%s is %d bytes long, AMQP allows %d", name, len(value), maxShort)
}

// checkFrame refuses headers that do not fit in one frame, because the broker would close the
// whole connection (F16). A frameSize of 0 is no limit.
func checkFrame(frameSize int, msg *amqp.Publishing) error {
	if frameSize <= 0 {
		return nil
	}
	if size, limit := wire.PropertiesSize(msg), frameSize-frameOverhead; size > limit {
		return fmt.Errorf("properties and headers take %d bytes, a frame of the broker allows %d",
			size, limit)
	}
	return nil
}
