package topology_test

import (
	"strings"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

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
	strategy := rig.Levels(t, topology.Quorum)
	strategy.Max = 1500 * time.Millisecond // 100 to 800 ms
	var calls rig.Timeline
	attempts := make(chan int, 10)
	r := rig.Start(t, rig.Config{
		Strategy: strategy, Policy: backoff.List{3500 * time.Millisecond},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			calls.Add()
			attempts <- middleware.Attempt(msg.Context())
			return nil, rig.ErrFailed
		},
	})
	r.Publish(amqp.Publishing{Body: []byte("far")})
	r.DeadLetter()
	calls.RequireGaps(t, 3500*time.Millisecond)
	require.Equal(t, []int{1, 2}, []int{<-attempts, <-attempts})
}

// The broker adds an entry to x-death for each level. Headers that just fit when
// the message was published must still fit the frame when it comes back, or they
// end the connection of whoever consumes it, for ever (F16).
func TestManyHopsLeaveRoomInTheFrame(t *testing.T) {
	t.Parallel()
	strategy := rig.Levels(t, topology.Quorum)
	strategy.Prefix += strings.Repeat("-long", 15)
	strategy.Resolution, strategy.Max, strategy.Tolerance = time.Millisecond, time.Minute, -1
	const delay = 1<<11 - 1 // in milliseconds: eleven hops
	sizes := []int{112_000, 114_000, 116_000, 117_000, 120_000, 126_000}
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		Strategy: strategy, Policy: backoff.List{delay * time.Millisecond},
		Handler: func(*message.Message) ([]*message.Message, error) {
			calls.Add()
			return nil, rig.ErrFailed
		},
	})
	for _, size := range sizes {
		r.Publish(amqp.Publishing{Headers: amqp.Table{"big": strings.Repeat("x", size)}, DeliveryMode: amqp.Persistent})
	}
	reasons := map[any]int{}
	for range sizes {
		dead := r.DeadLetter()
		reasons[dead.Headers[header.DeadReason]]++
	}
	require.NotContains(t, r.Logs.Text(), "lost, reconnecting")
	require.Equal(t, len(sizes), reasons["exhausted"]+reasons["oversized"])
	require.Positive(t, reasons["exhausted"], "some are small enough")
	require.Positive(t, reasons["oversized"], "some are too large for so many hops")
	require.Equal(t, len(sizes)+reasons["exhausted"], calls.Count())
}
