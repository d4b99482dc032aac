package topology_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testbench"
	"github.com/millpond-go/millpond/middleware"
)

var errFailed = errors.New("the shop is closed")

// The scenario row "outbox": 2s, 5s, 15s, so attempts at 0, 2, 7 and 22 s.
func TestOutboxTimeline(t *testing.T) {
	t.Parallel()
	for name, strategy := range strategies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls timeline
			r := newRig(t, rigConfig{
				strategy: strategy,
				policy:   backoff.List{2 * time.Second, 5 * time.Second, 15 * time.Second},
				handler: func(msg *message.Message) ([]*message.Message, error) {
					if calls.add() < 4 {
						return nil, errFailed
					}
					return nil, nil
				},
			})
			r.publish(amqp.Publishing{Body: []byte("order 1")})
			testbench.WaitFor(t, "the fourth attempt", patience, func() bool { return calls.count() == 4 })
			calls.requireGaps(t, 2*time.Second, 5*time.Second, 15*time.Second)
			r.stop()
			require.Equal(t, 0, testbench.Depth(t, r.url, r.queue))
			require.Equal(t, 0, testbench.Depth(t, r.url, r.queue+".dlq"))
		})
	}
}

// Where the last attempt fails too, the message is in the DLQ and is not tried
// again.
func TestOutboxExhausted(t *testing.T) {
	t.Parallel()
	for name, strategy := range strategies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls timeline
			r := newRig(t, rigConfig{
				strategy: strategy,
				policy:   backoff.List{100 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond},
				handler: func(msg *message.Message) ([]*message.Message, error) {
					calls.add()
					return nil, errFailed
				},
			})
			r.publish(amqp.Publishing{Body: []byte("order 1")})
			dead := take(t, r.url, r.queue+".dlq")
			require.Equal(t, "order 1", string(dead.Body))
			require.Equal(t, "exhausted", dead.Headers[middleware.DeadReasonKey])
			require.Equal(t, "4", dead.Headers[middleware.DeadFailuresKey])
			calls.requireGaps(t, 100*time.Millisecond, 200*time.Millisecond, 300*time.Millisecond)
			r.stop()
			require.Equal(t, 4, calls.count(), "no fifth attempt")
			require.Equal(t, 0, testbench.Depth(t, r.url, r.queue))
		})
	}
}
