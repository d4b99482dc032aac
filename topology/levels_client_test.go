package topology_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// A delay longer than all levels waits in rounds of the longest, which cost no
// attempt.
func TestLevelsWaitInRounds(t *testing.T) {
	t.Parallel()
	strategy := levels(t, topology.Quorum)
	strategy.Max = 1500 * time.Millisecond // 100 to 800 ms
	var calls timeline
	attempts := make(chan int, 10)
	r := newRig(t, rigConfig{
		strategy: strategy, policy: backoff.List{3500 * time.Millisecond},
		handler: func(msg *message.Message) ([]*message.Message, error) {
			calls.add()
			attempts <- middleware.Attempt(msg.Context())
			return nil, errFailed
		},
	})
	r.publish(amqp.Publishing{Body: []byte("far")})
	take(t, r.url, r.queue+".dlq")
	calls.requireGaps(t, 3500*time.Millisecond)
	require.Equal(t, []int{1, 2}, []int{<-attempts, <-attempts})
}

// The broker adds an entry to x-death for each level. Headers that just fit when
// the message was published must still fit the frame when it comes back, or they
// end the connection of whoever consumes it, for ever (F16).
func TestManyHopsLeaveRoomInTheFrame(t *testing.T) {
	t.Parallel()
	strategy := levels(t, topology.Quorum)
	strategy.Prefix += strings.Repeat("-long", 15)
	strategy.Resolution, strategy.Max, strategy.Tolerance = time.Millisecond, time.Minute, -1
	const delay = 1<<11 - 1 // in milliseconds: eleven hops
	sizes := []int{112_000, 114_000, 116_000, 117_000, 120_000, 126_000}
	var calls timeline
	r := newRig(t, rigConfig{
		strategy: strategy, policy: backoff.List{delay * time.Millisecond},
		handler: func(*message.Message) ([]*message.Message, error) {
			calls.add()
			return nil, errFailed
		},
	})
	for _, size := range sizes {
		r.publish(amqp.Publishing{Headers: amqp.Table{"big": strings.Repeat("x", size)}, DeliveryMode: amqp.Persistent})
	}
	reasons := map[any]int{}
	for range sizes {
		dead := take(t, r.url, r.queue+".dlq")
		reasons[dead.Headers[header.DeadReason]]++
	}
	require.NotContains(t, r.logs.text(), "lost, reconnecting")
	require.Equal(t, len(sizes), reasons["exhausted"]+reasons["oversized"])
	require.Positive(t, reasons["exhausted"], "some are small enough")
	require.Positive(t, reasons["oversized"], "some are too large for so many hops")
	require.Equal(t, len(sizes)+reasons["exhausted"], calls.count())
}
