package topology_test

import (
	"errors"
	"strings"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
)

// picky sets a marshaler that refuses messages by their body.
func picky(cfg *wamqp.Config) { cfg.Marshaler = pickyMarshaler{} }

type pickyMarshaler struct{ wamqp.DefaultMarshaler }

func (m pickyMarshaler) Unmarshal(d amqp.Delivery) (*message.Message, error) {
	if d.Headers["kind"] == "cannot be decoded" {
		return nil, errors.New("not for me")
	}
	switch string(d.Body) {
	case "refuse":
		return nil, errors.New("not for me")
	case "loud":
		return nil, errors.New(strings.Repeat("not for me ", 100_000))
	case "panic":
		panic("not for me")
	case "nothing":
		return nil, nil
	}
	return m.DefaultMarshaler.Unmarshal(d)
}
