package middlewaretest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology/operate"
)

// Letters returns the dead letters that "millpond dead export" or operate.Export wrote, in their
// order. Each is the message that a replay brings to its handler, at attempt 1: payload, metadata
// and UUID as watermill-amqp's default marshaler reads them, and the attempts of earlier rounds in
// its state. The Delivery names the queue, the handler and the topic that gave the message up. The
// names are empty if millpond did not dead-letter it.
//
// Empty lines are skipped. An error names the line that cannot be read, and there are no letters.
func Letters(r io.Reader) (letters []*message.Message, err error) {
	exported, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("read dead letters: %w", err)
	}
	n := 0
	for line := range bytes.Lines(exported) {
		n++
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		msg, err := letter(line)
		if err != nil {
			return nil, fmt.Errorf("read dead letters, line %d: %w", n, err)
		}
		letters = append(letters, msg)
	}
	return letters, nil
}

func letter(line []byte) (*message.Message, error) {
	d, err := operate.Decode(line)
	if err != nil {
		return nil, err
	}
	get := func(key string) (string, bool) { text, ok := d.Headers[key].(string); return text, ok }
	queue, dead := header.ParseDead(get)
	topic, _ := get(wmiddleware.PoisonedTopicKey)
	delivery := middleware.Delivery{
		Queue: queue, Handler: dead.Handler, Topic: topic,
		MessageID: d.MessageId, CorrelationID: d.CorrelationId, State: header.Parse(queue, get),
	}
	replays := map[string]string{header.Replays: strconv.Itoa(header.ParseReplays(get) + 1)}
	d.Headers = wire.TextHeaders(wire.Publishing(&d, keys.IsLive, replays).Headers)
	msg, err := amqp.DefaultMarshaler{}.Unmarshal(d)
	if err != nil {
		return nil, err
	}
	attach(context.Background(), msg, delivery)
	return msg, nil
}
