package rig

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// Picky sets a marshaler that cannot decode some messages. The kind header "cannot be decoded"
// or one of four bodies says so.
func Picky(cfg *wamqp.Config) { cfg.Marshaler = pickyMarshaler{} }

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

// ends says for each body how the message must end: handled, or dead-lettered for a reason.
var ends = map[string]string{
	"fine": "handled", "fails": "exhausted", "is permanent": "permanent", "panics": "exhausted",
	"comes later": "handled", "waits long": "handled", "is nacked": "handled",
	"refuse": "undecodable", "wide": "oversized",
}

// EveryWay completes a configuration with a handler for every way in which a message can end, and
// with a timeline of the messages that were handled. The body of a message names its way.
func EveryWay(c Config) (Config, *Timeline) {
	handled := &Timeline{}
	var mu sync.Mutex
	calls := map[string]int{}
	first := func(way string) bool {
		mu.Lock()
		defer mu.Unlock()
		calls[way]++
		return calls[way] == 1
	}
	c.Configure = Picky
	c.Handler = func(msg *message.Message) ([]*message.Message, error) {
		switch way := string(msg.Payload); {
		case way == "fails" || way == "wide":
			return nil, ErrFailed
		case way == "is permanent":
			return nil, middleware.Permanent(ErrFailed)
		case way == "panics":
			panic("no more")
		case way == "comes later" && first(way):
			return nil, middleware.Snooze(ErrFailed, 50*time.Millisecond)
		case way == "waits long" && first(way):
			return nil, middleware.RetryAfter(ErrFailed, 2500*time.Millisecond)
		}
		handled.Add()
		return nil, nil
	}
	c.Outer = append(c.Outer, func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			if way := string(msg.Payload); way == "is nacked" && first(way) {
				return nil, ErrFailed
			}
			return h(msg)
		}
	})
	return c, handled
}

// RequireEveryWay sends a message of each way through a service and requires its end. It publishes
// and looks with the URL admin. With vanish it first deletes the wait queues.
func RequireEveryWay(t testing.TB, s *Service, handled *Timeline, admin string, vanish bool) {
	t.Helper()
	if vanish {
		ch := testbroker.Channel(t, admin)
		for _, q := range s.Plan.Queues {
			if q.Delay > 0 {
				_, err := ch.QueueDelete(q.Name, false, false, false)
				require.NoError(t, err)
			}
		}
	}
	dead := 0
	for way, end := range ends {
		msg := Message(way)
		msg.MessageId = way
		if way == "wide" {
			msg.Headers = amqp.Table{"wide": strings.Repeat("x", 130_000)}
		}
		Publish(t, admin, "", s.Queue, msg)
		if end != "handled" {
			dead++
		}
	}
	for range dead {
		letter := Take(t, admin, s.Queue+".dlq")
		require.Equal(t, ends[letter.MessageId], letter.Headers[header.DeadReason], letter.MessageId)
		if letter.MessageId == "fails" {
			require.Equal(t, "2", letter.Headers[header.DeadFailures])
		}
	}
	WaitFor(t, "nothing to be left", func() bool {
		left := testbroker.Depth(t, admin, s.Queue)
		for _, q := range s.Plan.Queues {
			left += testbroker.Depth(t, admin, q.Name)
		}
		return left == 0 && handled.Count() >= len(ends)-dead
	})
	require.Equal(t, len(ends)-dead, handled.Count())
}
