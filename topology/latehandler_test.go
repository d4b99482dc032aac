package topology_test

import (
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// A handler works for longer than the broker's consumer timeout. Its context ends,
// because the broker delivers the message again. The queue goes on at once: from
// 4.3 on a late ack would keep the next message away for another timeout (F33).
func TestHandlerBeyondTheConsumerTimeoutStopsNothing(t *testing.T) {
	t.Parallel()
	const timeout = 3 * time.Second
	node := testbroker.Private(t, testbroker.WithAdvancedConfig("[{rabbit, [{consumer_timeout, 3000}, {channel_tick_interval, 500}]}]."))
	told, handled := make(chan struct{}, 10), make(chan string, 100)
	first := true
	r := newRig(t, rigConfig{
		url: node.URL(), queue: "orders", policy: backoff.List{time.Second},
		config: func(cfg *wamqp.Config) { quorumQueue(cfg); prefetch(1)(cfg) },
		handler: func(msg *message.Message) ([]*message.Message, error) {
			if first { // one handler at a time
				first = false
				<-msg.Context().Done()
				told <- struct{}{}
				return nil, nil // its ack comes late
			}
			handled <- string(msg.Payload)
			return nil, nil
		},
	})
	for _, body := range []string{"slow", "next", "last"} {
		r.publish(amqp.Publishing{Body: []byte(body), DeliveryMode: amqp.Persistent})
	}
	begun := time.Now()
	select {
	case <-told:
	case <-time.After(patience):
		t.Fatal("the handler was not told that the broker has its message back")
	}
	seen := map[string]bool{}
	for len(seen) < 3 {
		select {
		case body := <-handled:
			seen[body] = true
		case <-time.After(patience):
			t.Fatalf("handled only %v", seen)
		}
	}
	require.Less(t, time.Since(begun), timeout+ceiling)
	r.stop()
	require.Zero(t, testbroker.Depth(t, node.URL(), "orders"))
}
