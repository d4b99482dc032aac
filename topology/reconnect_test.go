package topology_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// The broker is restarted twice while thousands of messages are published and
// every tenth fails once: each one that was confirmed is handled. Watermill's
// own TestReconnect does the same, but counts what was published in a data race,
// and its publisher has another with every lost connection.
func TestEveryConfirmedMessageIsHandledAcrossRestarts(t *testing.T) {
	t.Parallel()
	const messages, publishers = 3000, 20
	node := testbroker.Private(t, rig.QuickDeadLettering)
	var mu sync.Mutex
	calls := map[string]int{}
	handled := map[string]bool{}
	r := rig.Start(t, rig.Config{
		URL: node.URL(), Queue: "orders", Configure: rig.QuorumQueue, Policy: backoff.List{500 * time.Millisecond, time.Second, time.Second},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			mu.Lock()
			defer mu.Unlock()
			body := string(msg.Payload)
			calls[body]++
			if calls[body] == 1 && body[len(body)-1] == '7' {
				return nil, rig.ErrFailed
			}
			handled[body] = true
			return nil, nil
		},
	})
	count := func() int { mu.Lock(); defer mu.Unlock(); return len(handled) }

	l, err := link.Open(t.Context(), link.Config{
		URL: node.URL(), Logger: watermill.NopLogger{}, ConnectTimeout: time.Second, WriteTimeout: time.Second,
		Reconnect: link.Backoff{Initial: 100 * time.Millisecond, Max: time.Second, Multiplier: 1.5},
	})
	require.NoError(t, err)
	pub := publisher.New(l, publisher.Config{Timeout: 5 * time.Second, NonceHeader: "nonce"})
	defer pub.Close()
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	work := make(chan int)
	var wg sync.WaitGroup
	for range publishers {
		wg.Go(func() {
			for i := range work {
				msg := amqp.Publishing{Headers: amqp.Table{}, Body: []byte(strconv.Itoa(i)), DeliveryMode: amqp.Persistent}
				for pub.Publish(ctx, "", "orders", msg) != nil && ctx.Err() == nil {
					// Unknown or not sent: publish it again.
				}
			}
		})
	}
	for i := range messages {
		work <- i
		if i == messages/3 || i == messages/2 {
			node.Stop(t)
			node.Start(t)
		}
	}
	close(work)
	wg.Wait()
	require.NoError(t, ctx.Err(), "everything was published")
	rig.WaitFor(t, "every message is handled", func() bool { return count() == messages })
	r.Stop()
	require.Zero(t, testbroker.Depth(t, node.URL(), "orders.dlq"))
}
