package e2e_test

import (
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
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
