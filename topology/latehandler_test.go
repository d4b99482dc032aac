package topology_test

import (
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
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
	r := rig.Start(t, rig.Config{
		URL: node.URL(), Queue: "orders", Policy: backoff.List{time.Second},
		Configure: func(cfg *wamqp.Config) { rig.QuorumQueue(cfg); rig.Prefetch(1)(cfg) },
		Handler: func(msg *message.Message) ([]*message.Message, error) {
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
		r.Send(body)
	}
	begun := time.Now()
	select {
	case <-told:
	case <-time.After(rig.Patience):
		t.Fatal("the handler was not told that the broker has its message back")
	}
	seen := map[string]bool{}
	for len(seen) < 3 {
		select {
		case body := <-handled:
			seen[body] = true
		case <-time.After(rig.Patience):
			t.Fatalf("handled only %v", seen)
		}
	}
	require.Less(t, time.Since(begun), timeout+rig.Ceiling)
	r.Stop()
	require.Zero(t, testbroker.Depth(t, node.URL(), "orders"))
}
