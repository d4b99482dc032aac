package topology_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// ends are what a message can ask for by its body, and what must become of it:
// handled, or dead-lettered for a reason.
var ends = map[string]string{
	"fine": "handled", "fails": "exhausted", "is permanent": "permanent", "panics": "exhausted",
	"comes later": "handled", "waits long": "handled", "is nacked": "handled",
	"refuse": "undecodable", "wide": "oversized",
}

// everyWay adds to a rig what the messages of ends ask for, and counts those that
// are handled.
func everyWay(rc rigConfig) (rigConfig, *timeline) {
	handled := &timeline{}
	var mu sync.Mutex
	calls := map[string]int{}
	first := func(way string) bool {
		mu.Lock()
		defer mu.Unlock()
		calls[way]++
		return calls[way] == 1
	}
	rc.config = picky
	rc.handler = func(msg *message.Message) ([]*message.Message, error) {
		switch way := string(msg.Payload); {
		case way == "fails" || way == "wide":
			return nil, errFailed
		case way == "is permanent":
			return nil, middleware.Permanent(errFailed)
		case way == "panics":
			panic("no more")
		case way == "comes later" && first(way):
			return nil, middleware.Snooze(errFailed, 50*time.Millisecond)
		case way == "waits long" && first(way):
			return nil, middleware.RetryAfter(errFailed, 2500*time.Millisecond)
		}
		handled.add()
		return nil, nil
	}
	rc.outer = append(rc.outer, func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			if way := string(msg.Payload); way == "is nacked" && first(way) {
				return nil, errFailed
			}
			return h(msg)
		}
	})
	return rc, handled
}

// requireEveryWay sends a message of each way through r, as admin, and with
// vanish deletes the wait queues before.
func requireEveryWay(t testing.TB, r *rig, handled *timeline, admin string, vanish bool) {
	t.Helper()
	if vanish {
		ch := testbroker.Channel(t, admin)
		for _, q := range r.plan.Queues {
			if q.Delay > 0 {
				_, err := ch.QueueDelete(q.Name, false, false, false)
				require.NoError(t, err)
			}
		}
	}
	dead := 0
	for way, end := range ends {
		msg := amqp.Publishing{MessageId: way, Body: []byte(way), DeliveryMode: amqp.Persistent}
		if way == "wide" {
			msg.Headers = amqp.Table{"wide": strings.Repeat("x", 130_000)}
		}
		publish(t, admin, "", r.queue, msg)
		if end != "handled" {
			dead++
		}
	}
	for range dead {
		letter := take(t, admin, r.queue+".dlq")
		require.Equal(t, ends[letter.MessageId], letter.Headers[header.DeadReason], letter.MessageId)
		if letter.MessageId == "fails" {
			require.Equal(t, "2", letter.Headers[header.DeadFailures])
		}
	}
	testbroker.WaitFor(t, "nothing to be left", patience, func() bool {
		left := testbroker.Depth(t, admin, r.queue)
		for _, q := range r.plan.Queues {
			left += testbroker.Depth(t, admin, q.Name)
		}
		return left == 0 && handled.count() >= len(ends)-dead
	})
	require.Equal(t, len(ends)-dead, handled.count())
}
